package server_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

// losing returns a handler whose first attempt abandons its operation and ends
// as end says. The others answer 201.
func losing(t *testing.T, end func(w http.ResponseWriter)) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		if op, _ := server.OperationFrom(r.Context()); op.Attempt > 1 {
			created(w, r)
			return
		}
		assert.NoError(t, server.Abandon(r.Context()))
		end(w)
	}
}

func badGateway(w http.ResponseWriter) { http.Error(w, "lost", http.StatusBadGateway) }

func TestAnAbandonedOperationIsLeftUntilItsLeaseEnds(t *testing.T) {
	t.Parallel()
	for takeover, want := range map[server.Takeover]int{server.Rerun: http.StatusCreated, server.Refuse: http.StatusConflict} {
		synctest.Test(t, func(t *testing.T) {
			s := newService(func(m *server.Middleware) { m.Takeover = takeover }, losing(t, badGateway))
			lost := serve(s, post("{}"))
			require.Equal(t, http.StatusBadGateway, lost.Code)
			require.Equal(t, "lost\n", lost.Body.String())
			require.Equal(t, server.ResultAbandoned, s.lastEvent().Result)
			require.Zero(t, s.store.called("release"))

			time.Sleep(28 * time.Second)
			requireProcessing(t, serve(s, post("{}")), "1") // after a wait of one second
			require.Equal(t, http.StatusConflict, serve(s, post(`{"other":1}`)).Code)
			time.Sleep(time.Second)
			again := serve(s, post("{}"))
			require.Equal(t, want, again.Code)
			if takeover == server.Refuse {
				requireProblem(t, again, http.StatusConflict, "OPERATION_INDETERMINATE")
				require.EqualValues(t, 1, s.runs.Load())
				return
			}
			require.Equal(t, "attempt 2", again.Body.String())
			require.True(t, s.lastEvent().TakenOver)
		})
	}
}

func TestHoweverAnAbandonedAttemptEndsNothingIsKept(t *testing.T) {
	t.Parallel()
	ends := map[string]func(w http.ResponseWriter){
		"a failure":       badGateway,
		"a final answer":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) },
		"no answer":       func(http.ResponseWriter) {},
		"a broken answer": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "9") },
		"a panic":         func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService(nil, losing(t, end))
				func() {
					defer func() { _ = recover() }()
					serve(s, post("{}"))
				}()
				require.Equal(t, server.ResultAbandoned, s.lastEvent().Result)
				require.Zero(t, s.store.called("release"))
				require.Zero(t, s.store.called("complete"))
				time.Sleep(28 * time.Second)
				requireProcessing(t, serve(s, post("{}")), "1")
				time.Sleep(time.Second)
				require.Equal(t, "attempt 2", serve(s, post("{}")).Body.String())
			})
		})
	}
}

func TestWhatIsAbandonedInDoIsLeftUntilItsLeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaultStore()
		req := server.ClaimRequest{ID: server.ID{Account: "acme", Key: "key"}}
		errLost := errors.New("the answer was lost")
		_, err := server.Do(t.Context(), store, req, func(ctx context.Context) ([]byte, error) {
			assert.NoError(t, server.Abandon(ctx))
			return nil, errLost
		})
		require.ErrorIs(t, err, errLost)

		work := func(context.Context) ([]byte, error) { return []byte("done"), nil }
		var inFlight *server.InFlightError
		_, err = server.Do(t.Context(), store, req, work)
		require.ErrorAs(t, err, &inFlight)
		require.Equal(t, 30*time.Second, inFlight.LeaseLeft)
		time.Sleep(inFlight.LeaseLeft)
		done, err := server.Do(t.Context(), store, req, work)
		require.NoError(t, err)
		require.Equal(t, "done", string(done.Value))
	})
}

func TestATransactionCannotBeAbandoned(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
		assert.ErrorIs(t, server.Abandon(r.Context()), errors.ErrUnsupported)
		badGateway(w)
	})
	s.store.atomic = true
	require.Equal(t, http.StatusBadGateway, serve(s, post("{}")).Code)
	require.Equal(t, server.ResultFailed, s.lastEvent().Result)
	require.Equal(t, 1, s.store.called("release"))
}

func TestAbandonNeedsAnOperation(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, server.Abandon(t.Context()), "needs the context of a handler")
	s := newService(func(m *server.Middleware) { m.Optional = true }, func(_ http.ResponseWriter, r *http.Request) {
		assert.Error(t, server.Abandon(r.Context()))
	})
	r := request(http.MethodPost, "/payments", "key", "{}")
	r.Header.Del("Idempotency-Key")
	require.Equal(t, http.StatusOK, serve(s, r).Code)
	require.Empty(t, strings.TrimSpace(s.log.String()))
}
