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
	err     error
}

func (h *heap) Cleanup(_ context.Context, limit int) (int, error) {
	h.calls = append(h.calls, limit)
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
		store := new(heap)
		store.expired.Store(25)
		var deleted []int
		cleanup := &server.Cleanup{
			Store: store, Batch: 10, Interval: time.Hour, Observe: func(n int) { deleted = append(deleted, n) },
		}
		stop := errors.New("the process stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- cleanup.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, []int{10, 10, 5}, deleted, "at once, until nothing is left")
		store.expired.Store(3)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []int{10, 10, 5, 3}, deleted, "and again after the interval")
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
		cleanup := &server.Cleanup{Store: store, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		require.ErrorIs(t, cleanup.Run(ctx), context.DeadlineExceeded)
		require.Equal(t, []int{1000, 1000, 1000}, store.calls, "every minute, by default")
		require.Equal(t, 3, bytes.Count(log.Bytes(), []byte("the store is down")))
	})
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
