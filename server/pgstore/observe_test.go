package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

func TestRunTellsWhatBecameOfEachBatch(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.New, db)
	for _, key := range []string{"one", "two", "three"} {
		_, err := owned(t, store, request(key)).Lease.Complete(t.Context(), answer(201, "done"), time.Hour)
		require.NoError(t, err)
	}
	pool := db.Pool(t)
	_, err := pool.Exec(t.Context(), "UPDATE "+pgstore.DefaultTable+" SET expires_at = expires_at - interval '3 hours' WHERE idempotency_key <> 'three'")
	require.NoError(t, err)

	batches := make(chan server.CleanupEvent)
	store.CleanupInterval = 10 * time.Millisecond
	store.ObserveCleanup = func(ctx context.Context, e server.CleanupEvent) {
		select {
		case batches <- e:
		case <-ctx.Done():
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	batch := <-batches
	require.NoError(t, batch.Err)
	require.Equal(t, 2, batch.Deleted)
	require.Positive(t, batch.Took)
	require.InDelta(t, 2*time.Hour, batch.Lag, float64(time.Minute))
	batch = <-batches
	batch.Took = 0
	require.Equal(t, server.CleanupEvent{}, batch, "nothing is left")

	_, err = pool.Exec(t.Context(), "DROP TABLE "+pgstore.DefaultTable+" CASCADE")
	require.NoError(t, err)
	for batch.Err == nil {
		batch = <-batches
	}
	require.ErrorContains(t, batch.Err, "does not exist")
	require.Zero(t, batch.Deleted)
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}
