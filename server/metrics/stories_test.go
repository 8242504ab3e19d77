package metrics_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

// Each story tells everything that the endpoint shows of it.
func TestTheEndpointShowsWhatHappens(t *testing.T) {
	t.Parallel()
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := openShop(t, story.guard)
				require.Equal(t, story.moved, s.moved(func() { story.tell(s) }))
			})
		})
	}
}

type samples = map[string]float64

var stories = map[string]struct {
	guard func(*server.Middleware)
	tell  func(s *shop)
	moved samples
}{
	"an answer is lost": {
		tell: func(s *shop) {
			require.Zero(s.t, s.pay("key", "drop"))
			require.Equal(s.t, 201, s.pay("key", ""))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`: 1,
			`idem_requests_total{result="replayed"}`: 1,
			`idem_handler_duration_seconds_count`:    1,
			`idem_store_records{status="completed"}`: 1,
		},
	},
	"a handler fails twice before it works": {
		tell: func(s *shop) {
			require.Equal(s.t, 503, s.pay("key", "fail=503, times=2"))
			require.Equal(s.t, 503, s.pay("key", "fail=503, times=2"))
			require.Equal(s.t, 201, s.pay("key", "fail=503, times=2"))
		},
		moved: samples{
			`idem_requests_total{result="failed"}`:   2,
			`idem_requests_total{result="executed"}`: 1,
			`idem_handler_duration_seconds_count`:    3,
			`idem_store_records{status="completed"}`: 1,
		},
	},
	"20 clients send the same payment at once": {
		tell: func(s *shop) {
			var sent []<-chan int
			for range 20 {
				sent = append(sent, s.begin("key", "delay=50ms"))
			}
			for _, status := range sent {
				require.Equal(s.t, 201, <-status)
			}
		},
		moved: samples{
			`idem_requests_total{result="executed"}`: 1,
			`idem_requests_total{result="replayed"}`: 19,
			`idem_wait_duration_seconds_count`:       19,
			`idem_wait_duration_seconds_sum`:         19 * .05,
			`idem_handler_duration_seconds_count`:    1,
			`idem_handler_duration_seconds_sum`:      .05,
			`idem_store_records{status="completed"}`: 1,
		},
	},
	"a payment takes longer than a duplicate waits": {
		guard: func(m *server.Middleware) { m.Wait = 100 * time.Millisecond },
		tell: func(s *shop) {
			first := s.begin("key", "delay=800ms")
			require.Equal(s.t, 202, s.pay("key", "delay=800ms"))
			require.Equal(s.t, 201, <-first)
			require.Equal(s.t, 201, s.pay("key", "delay=800ms"))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`:  1,
			`idem_requests_total{result="in_flight"}`: 1,
			`idem_requests_total{result="replayed"}`:  1,
			`idem_wait_duration_seconds_count`:        1,
			`idem_wait_duration_seconds_sum`:          .1,
			`idem_handler_duration_seconds_count`:     1,
			`idem_handler_duration_seconds_sum`:       .8,
			`idem_store_records{status="completed"}`:  1,
		},
	},
	"a key is used for another payment": {
		tell: func(s *shop) {
			require.Equal(s.t, 201, s.payAmount(1200, "key", ""))
			require.Equal(s.t, 409, s.payAmount(9900, "key", ""))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`: 1,
			`idem_requests_total{result="reused"}`:   1,
			`idem_conflicts_total{reason="reused"}`:  1,
			`idem_handler_duration_seconds_count`:    1,
			`idem_store_records{status="completed"}`: 1,
		},
	},
	"the handler says that there is a conflict": {
		tell: func(s *shop) {
			require.Equal(s.t, 409, s.pay("key", "fail=409"))
			require.Equal(s.t, 409, s.pay("key", "fail=409"))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`: 1,
			`idem_requests_total{result="replayed"}`: 1,
			`idem_conflicts_total{reason="handler"}`: 2,
			`idem_handler_duration_seconds_count`:    1,
			`idem_store_records{status="completed"}`: 1,
		},
	},
	"an answer is too large to keep": {
		guard: func(m *server.Middleware) { m.MaxStored = 10 },
		tell: func(s *shop) {
			require.Equal(s.t, 201, s.pay("key", ""))
			require.Equal(s.t, 409, s.pay("key", ""))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`:  1,
			`idem_requests_total{result="not_kept"}`:  1,
			`idem_conflicts_total{reason="not_kept"}`: 1,
			`idem_handler_duration_seconds_count`:     1,
			`idem_store_records{status="completed"}`:  1,
		},
	},
	"requests are refused": {
		guard: func(m *server.Middleware) { m.MaxBody = 100 },
		tell: func(s *shop) {
			acme, key := []string{"acme"}, []string{"key"}
			require.Equal(s.t, 400, s.send("{}", http.Header{"X-Account-Id": acme}))
			require.Equal(s.t, 400, s.send("{}", http.Header{"X-Account-Id": acme, "Idempotency-Key": {"k e y"}}))
			require.Equal(s.t, 401, s.send("{}", http.Header{"Idempotency-Key": key}))
			require.Equal(s.t, 413, s.send(string(make([]byte, 101)), http.Header{"X-Account-Id": acme, "Idempotency-Key": key}))
		},
		moved: samples{
			`idem_requests_total{result="missing"}`:    1,
			`idem_requests_total{result="invalid"}`:    1,
			`idem_requests_total{result="no_account"}`: 1,
			`idem_requests_total{result="too_large"}`:  1,
		},
	},
	"the store is down": {
		tell: func(s *shop) {
			s.store.fail("claim", errOutage, errOutage)
			require.Equal(s.t, 503, s.pay("key", ""))
			require.Equal(s.t, 503, s.pay("key", ""))
			require.Equal(s.t, 201, s.pay("key", ""))
		},
		moved: samples{
			`idem_requests_total{result="store_error"}`: 2,
			`idem_requests_total{result="executed"}`:    1,
			`idem_handler_duration_seconds_count`:       1,
			`idem_store_records{status="completed"}`:    1,
		},
	},
	"a payment takes long": {
		tell: func(s *shop) { require.Equal(s.t, 201, s.pay("key", "delay=25s")) },
		moved: samples{
			`idem_requests_total{result="executed"}`: 1,
			`idem_lease_extensions_total`:            2,
			`idem_handler_duration_seconds_count`:    1,
			`idem_handler_duration_seconds_sum`:      25,
			`idem_store_records{status="completed"}`: 1,
		},
	},
	"a lease is lost": {
		guard: func(m *server.Middleware) { m.Lease = 3 * time.Second },
		tell: func(s *shop) {
			s.store.fail("extend", errOutage, errOutage, errOutage, errOutage, server.ErrLeaseLost)
			require.Equal(s.t, 201, s.pay("key", "delay=10s"))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`: 1,
			`idem_leases_lost_total`:                 1,
			`idem_handler_duration_seconds_count`:    1,
			`idem_handler_duration_seconds_sum`:      10,
			`idem_store_records{status="completed"}`: 1,
		},
	},
	"an attempt takes over from one that was lost": {
		tell: func(s *shop) {
			s.loseOwner("key")
			require.Equal(s.t, 201, s.pay("key", ""))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`: 1,
			`idem_takeovers_total`:                   1,
			`idem_handler_duration_seconds_count`:    1,
			`idem_store_records{status="completed"}`: 1,
		},
	},
	"an attempt was lost and nobody may take over": {
		guard: func(m *server.Middleware) { m.Takeover = server.Refuse },
		tell: func(s *shop) {
			s.loseOwner("key")
			require.Equal(s.t, 409, s.pay("key", ""))
		},
		moved: samples{
			`idem_requests_total{result="indeterminate"}`:  1,
			`idem_conflicts_total{reason="indeterminate"}`: 1,
			`idem_store_records{status="processing"}`:      1,
			`idem_store_oldest_processing_seconds`:         60,
		},
	},
	"nothing of an attempt is durable": {
		tell: func(s *shop) {
			s.store.fail("complete", server.ErrRestart, server.ErrRestart)
			require.Equal(s.t, 201, s.pay("key", "delay=1s"))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`: 1,
			`idem_handler_restarts_total`:            2,
			`idem_handler_duration_seconds_count`:    1,
			`idem_handler_duration_seconds_sum`:      3,
			`idem_store_records{status="completed"}`: 1,
		},
	},
	"an answer is recorded later": {
		tell: func(s *shop) {
			s.store.fail("complete", errOutage)
			require.Equal(s.t, 201, s.pay("key", ""))
			require.NoError(s.t, s.guard.Drain(s.t.Context()))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`:         1,
			`idem_late_completions_total{result="recorded"}`: 1,
			`idem_handler_duration_seconds_count`:            1,
			`idem_store_records{status="completed"}`:         1,
		},
	},
	"an answer is never recorded": {
		tell: func(s *shop) {
			s.store.fail("complete", errOutage, server.ErrLeaseLost)
			start := time.Now()
			require.Equal(s.t, 201, s.pay("key", ""))
			require.NoError(s.t, s.guard.Drain(s.t.Context()))
			time.Sleep(time.Until(start.Add(time.Minute)))
		},
		moved: samples{
			`idem_requests_total{result="executed"}`:           1,
			`idem_late_completions_total{result="unrecorded"}`: 1,
			`idem_handler_duration_seconds_count`:              1,
			`idem_store_records{status="processing"}`:          1,
			`idem_store_oldest_processing_seconds`:             60,
		},
	},
	"much is under way": {
		tell: func(s *shop) {
			s.store.fail("complete", errOutage, errOutage, errOutage, errOutage, errOutage, errOutage)
			require.Equal(s.t, 201, s.pay("late", ""))
			s.begin("key", "delay=900ms")
			s.begin("key", "delay=900ms")
			s.begin("key", "delay=900ms")
			s.begin("other", "delay=900ms")
			time.Sleep(500 * time.Millisecond)
		},
		moved: samples{
			`idem_requests_total{result="executed"}`:  1,
			`idem_handler_duration_seconds_count`:     1,
			`idem_operations_executing`:               3,
			`idem_waiters`:                            2,
			`idem_completions_pending`:                1,
			`idem_store_records{status="processing"}`: 3,
			`idem_store_oldest_processing_seconds`:    .5,
		},
	},
	"expired records are deleted late": {
		guard: func(m *server.Middleware) { m.TTL = time.Minute },
		tell: func(s *shop) {
			for _, key := range []string{"one", "two", "three"} {
				require.Equal(s.t, 201, s.pay(key, ""))
			}
			time.Sleep(2 * time.Minute)
			require.InDelta(s.t, 60, s.scrape()["idem_store_cleanup_lag_seconds"], 0)
			cleanup := &server.Cleanup{Store: slowCleaner{s.store}, Batch: 2, Observe: s.metrics.ObserveCleanup}
			ctx, stop := context.WithTimeout(s.t.Context(), 10*time.Second)
			defer stop()
			require.ErrorIs(s.t, cleanup.Run(ctx), context.DeadlineExceeded)
		},
		moved: samples{
			`idem_requests_total{result="executed"}`: 3,
			`idem_handler_duration_seconds_count`:    3,
			`idem_cleanup_deleted_total`:             3,
			`idem_cleanup_duration_seconds_count`:    2,
			`idem_cleanup_duration_seconds_sum`:      2,
		},
	},
	"expired records cannot be deleted": {
		tell: func(s *shop) {
			broken := server.CleanupEvent{Took: time.Second, Err: errOutage}
			s.metrics.ObserveCleanup(s.t.Context(), broken)
			stopping, stop := context.WithCancel(s.t.Context())
			stop()
			s.metrics.ObserveCleanup(stopping, broken)
		},
		moved: samples{
			`idem_cleanup_errors_total`:           1,
			`idem_cleanup_duration_seconds_count`: 2,
			`idem_cleanup_duration_seconds_sum`:   2,
		},
	},
}

// slowCleaner takes a second for a batch.
type slowCleaner struct{ server.Cleaner }

func (c slowCleaner) Cleanup(ctx context.Context, limit int) (int, error) {
	time.Sleep(time.Second)
	return c.Cleaner.Cleanup(ctx, limit)
}

// loseOwner leaves a payment behind that is processing, a minute old, and whose
// owner was lost.
func (s *shop) loseOwner(key string) {
	claim, err := s.store.Claim(s.t.Context(), server.ClaimRequest{
		ID: server.ID{Account: "acme", Key: key}, Lease: time.Second, TTL: time.Hour,
	})
	require.NoError(s.t, err)
	require.NotNil(s.t, claim.Lease)
	time.Sleep(time.Minute)
}
