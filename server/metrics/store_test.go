package metrics_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/metrics"
)

// stater is a store whose counts are a function.
type stater func(context.Context) (server.Stats, error)

func (f stater) Stats(ctx context.Context) (server.Stats, error) { return f(ctx) }

func TestTheStoreIsAskedWhatItHolds(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Store: stater(func(context.Context) (server.Stats, error) {
		return server.Stats{
			Processing: 2, Completed: 30, Failed: 4, Bytes: 5000,
			OldestProcessing: 1500 * time.Millisecond, CleanupLag: time.Hour,
		}, nil
	})})
	require.NoError(t, testutil.CollectAndCompare(m, bytes.NewBufferString(`
# HELP idem_store_bytes Size of everything stored, indexes included.
# TYPE idem_store_bytes gauge
idem_store_bytes 5000
# HELP idem_store_cleanup_lag_seconds For how long the oldest expired record has been so.
# TYPE idem_store_cleanup_lag_seconds gauge
idem_store_cleanup_lag_seconds 3600
# HELP idem_store_oldest_processing_seconds Age of the oldest record that is still processing.
# TYPE idem_store_oldest_processing_seconds gauge
idem_store_oldest_processing_seconds 1.5
# HELP idem_store_records Records in the store, by status.
# TYPE idem_store_records gauge
idem_store_records{status="completed"} 30
idem_store_records{status="failed"} 4
idem_store_records{status="processing"} 2
# HELP idem_store_scrape_errors_total How often the store could not be asked for these metrics.
# TYPE idem_store_scrape_errors_total counter
idem_store_scrape_errors_total 0
`), "idem_store_bytes", "idem_store_cleanup_lag_seconds", "idem_store_oldest_processing_seconds",
		"idem_store_records", "idem_store_scrape_errors_total"))
}

func TestAStoreThatFailsSaysNothingElse(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	m := metrics.New(metrics.Config{
		Store:         stater(func(context.Context) (server.Stats, error) { return server.Stats{Bytes: 1}, errOutage }),
		StoreInterval: -1,
		Logger:        slog.New(slog.NewTextHandler(&log, nil)),
	})
	m.Observe(t.Context(), server.Event{Result: server.ResultExecuted, Method: "POST"})
	for _, times := range []string{"1", "2"} {
		text := exposition(t, m)
		require.Contains(t, text, "\nidem_store_scrape_errors_total "+times+"\n")
		require.NotRegexp(t, `idem_store_(records|bytes|oldest|cleanup)`, text)
		require.Contains(t, text, `result="executed"`, "everything else is shown")
	}
	require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("the store is down")))
}

func TestAStoreThatCannotTellIsNoFailure(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	m := metrics.New(metrics.Config{
		Store: stater(func(context.Context) (server.Stats, error) {
			return server.Stats{}, fmt.Errorf("somestore: %w", errors.ErrUnsupported)
		}),
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	text := exposition(t, m)
	require.Contains(t, text, "\nidem_store_scrape_errors_total 0\n")
	require.NotRegexp(t, `idem_store_(records|bytes|oldest|cleanup)`, text)
	require.Empty(t, log.String())
}

func TestAStoreThatHangsDelaysAScrapeByItsTimeout(t *testing.T) {
	t.Parallel()
	for seconds, configured := range map[string]time.Duration{"5": 0, "1": time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := metrics.New(metrics.Config{
				Store: stater(func(ctx context.Context) (server.Stats, error) {
					<-ctx.Done()
					return server.Stats{}, ctx.Err()
				}),
				StoreTimeout: configured,
				Logger:       slog.New(slog.DiscardHandler),
			})
			start := time.Now()
			text := exposition(t, m)
			require.Equal(t, seconds+"s", time.Since(start).String())
			require.Contains(t, text, "\nidem_store_scrape_errors_total 1\n")
			require.Contains(t, text, "\nidem_store_scrape_duration_seconds "+seconds+"\n")
		})
	}
}

func TestTheStoreIsAskedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		m := metrics.New(metrics.Config{Store: stater(func(context.Context) (server.Stats, error) {
			asked.Add(1)
			time.Sleep(time.Second)
			return server.Stats{Bytes: asked.Load()}, nil
		})})
		var scrapes sync.WaitGroup
		for range 10 {
			scrapes.Go(func() { testutil.CollectAndCount(m) })
		}
		scrapes.Wait()
		require.EqualValues(t, 1, asked.Load(), "one question serves all")
		time.Sleep(59 * time.Second)
		require.Contains(t, exposition(t, m), "idem_store_bytes 1\n")
		time.Sleep(time.Second)
		require.Contains(t, exposition(t, m), "idem_store_bytes 2\n")
	})
}
