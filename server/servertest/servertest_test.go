package servertest_test

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/refserver"
	"github.com/idemhttp/idem/server/servertest"
)

type payment struct {
	ID       string `json:"payment_id,omitempty"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

var lunch = payment{Amount: 1200, Currency: "RUB"}

func pay(t *testing.T, s *servertest.Server) (idem.Result[payment], error) {
	t.Helper()
	client := &idem.Client{BaseURL: s.URL, Transport: s.Transport, Header: servertest.As("acme")}
	return idem.Post[payment](t.Context(), client, "/payments", lunch)
}

func TestCountersTellWhatReallyHappened(t *testing.T) {
	t.Parallel()
	start := map[string]func(t *testing.T) *servertest.Server{
		"over a socket": func(t *testing.T) *servertest.Server {
			t.Helper()
			return servertest.Start(t)
		},
		"in memory": func(t *testing.T) *servertest.Server {
			t.Helper()
			return servertest.StartInMemory(t, refserver.Config{})
		},
	}
	for name, start := range start {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.FaultNext("fail", "drop", "truncate=5")
			res, err := pay(t, s)
			require.NoError(t, err)
			require.Equal(t, 4, res.Attempts)
			require.True(t, res.Replayed)
			require.Equal(t, 4, s.Requests())
			require.Equal(t, 2, s.Executions(), "the one that failed and the one whose answer was dropped")
			require.Equal(t, 2, s.Replays(), "the one that was cut and the one that arrived")
			require.Equal(t, []refserver.Entry{{
				PaymentID: res.Value.ID, AccountID: "acme", Amount: 1200, Currency: "RUB", Status: "succeeded",
			}}, s.Ledger("acme"))
			require.Empty(t, s.Ledger("globex"))
		})
	}
}

func TestWaitingTakesNoTimeInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := servertest.StartInMemory(t, refserver.Config{})
		s.FaultNext("delay=1m")
		begin := time.Now()
		res, err := pay(t, s)
		require.NoError(t, err)
		require.True(t, res.Replayed)
		require.GreaterOrEqual(t, time.Since(begin), time.Minute)
		require.Equal(t, 1, s.Executions())
	})
}

func TestChancesComeAndGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := servertest.StartInMemory(t, refserver.Config{})
		s.SetChances(refserver.Chances{Fail: 1})
		_, err := pay(t, s)
		var gaveUp *idem.IncompleteError
		require.ErrorAs(t, err, &gaveUp)
		require.Equal(t, idem.ReasonAttempts, gaveUp.Reason)
		require.Equal(t, 5, s.Executions())

		s.SetChances(refserver.Chances{})
		_, err = pay(t, s)
		require.NoError(t, err)
		require.Equal(t, 6, s.Executions())
		require.Len(t, s.Ledger("acme"), 1)
	})
}

func TestTheEndOfATestWaitsForNoDelay(t *testing.T) {
	begin := time.Now()
	t.Run("a client that has gone", func(t *testing.T) {
		s := servertest.Start(t)
		s.FaultNext("delay=1m")
		client := &idem.Client{
			BaseURL: s.URL, Transport: s.Transport, Header: servertest.As("acme"),
			Retry: idem.RetryPolicy{MaxAttempts: 1, AttemptTimeout: 50 * time.Millisecond},
		}
		_, err := idem.Post[payment](t.Context(), client, "/payments", lunch)
		require.Equal(t, idem.Unknown, idem.OutcomeOf(err))
		require.Equal(t, 1, s.Executions())
	})
	require.Less(t, time.Since(begin), 30*time.Second)
}

func TestInAStormOfFaultsEveryPaymentIsMadeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const payments = 200
		s := servertest.StartInMemory(t, refserver.Config{Chances: refserver.Chances{
			Seed: 1, Fail: 0.2, FailAfter: 0.2, Drop: 0.2, Truncate: 0.2, Delay: 0.2, DelayFor: 10 * time.Second,
		}})
		client := &idem.Client{
			BaseURL: s.URL, Transport: s.Transport, Header: servertest.As("acme"),
			Retry: idem.RetryPolicy{
				MaxAttempts: 100, MaxElapsed: idem.NoLimit, AttemptTimeout: 5 * time.Second,
				Budget: &idem.Budget{Burst: idem.NoLimit},
			},
		}
		var mu sync.Mutex
		ids := make(map[string]bool)
		var paying sync.WaitGroup
		for range payments {
			paying.Go(func() {
				res, err := idem.Post[payment](t.Context(), client, "/payments", lunch)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[res.Value.ID] = true
			})
		}
		paying.Wait()
		require.Len(t, ids, payments)
		require.Len(t, s.Ledger("acme"), payments)
		for _, e := range s.Ledger("acme") {
			require.Contains(t, ids, e.PaymentID)
		}
		require.Greater(t, s.Executions(), payments, "some were executed again")
		require.NotZero(t, s.Replays())
	})
}

func TestStartConfigTakesTheMiddleware(t *testing.T) {
	t.Parallel()
	nobody := func(*http.Request) (string, error) { return "", server.ErrNoAccount }
	s := servertest.StartConfig(t, refserver.Config{Payments: &server.Middleware{Account: nobody}})
	_, err := pay(t, s)
	var refused *idem.StatusError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusUnauthorized, refused.StatusCode)
}

func TestMistakesFailTheTest(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		mistake func(tb testing.TB)
		want    string
	}{
		{"unknown fault", func(tb testing.TB) {
			tb.Helper()
			servertest.Start(tb).FaultNext("explode")
		}, `the fault "explode" is unknown`},
		{"bad middleware", func(tb testing.TB) {
			tb.Helper()
			servertest.StartConfig(tb, refserver.Config{Orders: &server.Middleware{TTL: -1}})
		}, "TTL is -1ns"},
		{"broken ledger", func(tb testing.TB) {
			tb.Helper()
			servertest.StartConfig(tb, refserver.Config{Ledger: brokenLedger{}}).Ledger("acme")
		}, "the ledger is broken"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			recorded := &recorder{TB: t}
			done := make(chan struct{})
			go func() { // Fatalf ends its goroutine
				defer close(done)
				tt.mistake(recorded)
			}()
			<-done
			require.Contains(t, recorded.fatal, tt.want)
		})
	}
}
