package server_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

// heap is a store with a number of expired records.
type heap struct {
	expired atomic.Int64
	calls   []int // limits that were asked for
	takes   time.Duration
	err     error
}

func (h *heap) Cleanup(_ context.Context, limit int) (int, error) {
	h.calls = append(h.calls, limit)
	time.Sleep(h.takes)
	if h.err != nil {
		return 0, h.err
	}
	n := min(int64(limit), h.expired.Load())
	h.expired.Add(-n)
	return int(n), nil
}

func TestCleanupWorksInBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &heap{takes: time.Second}
		store.expired.Store(25)
		var batches []server.CleanupEvent
		cleanup := &server.Cleanup{
			Store: store, Batch: 10, Interval: time.Hour,
			Observe: func(_ context.Context, e server.CleanupEvent) { batches = append(batches, e) },
		}
		stop := errors.New("the process stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- cleanup.Run(ctx) }()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		atOnce := []server.CleanupEvent{
			{Deleted: 10, Took: time.Second}, {Deleted: 10, Took: time.Second}, {Deleted: 5, Took: time.Second},
		}
		require.Equal(t, atOnce, batches, "until nothing is left")
		store.expired.Store(3)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		afterwards := server.CleanupEvent{Deleted: 3, Took: time.Second}
		require.Equal(t, append(atOnce, afterwards), batches, "after the interval")
		require.Equal(t, []int{10, 10, 10, 10}, store.calls)
		cancel(stop)
		require.Equal(t, stop, <-ended)
	})
}

func TestCleanupGoesOnAfterErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &heap{err: errOutage}
		var log bytes.Buffer
		var observed []error
		cleanup := &server.Cleanup{
			Store: store, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Observe: func(_ context.Context, e server.CleanupEvent) { observed = append(observed, e.Err) },
		}
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		require.ErrorIs(t, cleanup.Run(ctx), context.DeadlineExceeded)
		require.Equal(t, []int{1000, 1000, 1000}, store.calls, "every minute, by default")
		require.Equal(t, 3, bytes.Count(log.Bytes(), []byte("the store is down")))
		require.Equal(t, []error{errOutage, errOutage, errOutage}, observed)
	})
}

func TestCleanupEndsWhereThereIsNothingToCleanUp(t *testing.T) {
	t.Parallel()
	store := &heap{err: errors.ErrUnsupported}
	require.ErrorIs(t, (&server.Cleanup{Store: store}).Run(t.Context()), errors.ErrUnsupported)
	require.Len(t, store.calls, 1)
}

func TestCleanupRefusesBadUse(t *testing.T) {
	t.Parallel()
	for _, cleanup := range []*server.Cleanup{
		{},
		{Store: new(heap), Batch: -1},
		{Store: new(heap), Interval: -1},
	} {
		require.ErrorContains(t, cleanup.Run(t.Context()), "Cleanup needs a Store")
	}
}
