package pgstore_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server/pgstore"
)

func TestStatsOfALargeTableAreEstimates(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	const records = 20_000
	fill(t, db, "key-", records, "1 hour")
	db.Exec(t, "UPDATE pg_class SET reltuples = 5000000 WHERE relname = 'idem_operations'") // so that a fifth is read
	w := newWire(t, db)
	store := open(t, pgstore.New, w.DB)
	stats, err := store.Stats(t.Context())
	require.NoError(t, err)
	require.InEpsilon(t, records, stats.Completed, 0.4)
	require.Zero(t, stats.Completed%5, "as many times five as were read")
	require.Zero(t, stats.Processing)
	require.Zero(t, stats.CleanupLag)
	require.Greater(t, stats.Bytes, int64(records*100))
}

// A handler's answer finds room beside its claim, so that no index is touched,
// also when many operations share their pages.
func TestCompletionsUpdateInPlace(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	pool := db.Pool(t)
	store := pgstore.New(pool)
	store.Logger = quiet
	response := answer(201, strings.Repeat("x", 500))
	const workers, each = 16, 100
	var running sync.WaitGroup
	for worker := range workers {
		running.Go(func() {
			for i := range each {
				req := request(fmt.Sprintf("%d-%d", worker, i))
				claim, err := store.Claim(t.Context(), req)
				if err == nil {
					_, err = claim.Lease.Complete(t.Context(), response, req.TTL)
				}
				if !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	running.Wait()
	pool.Close() // sessions report their counts when they end
	updates := func(column string) int {
		return pgtest.Value[int](t, db, "SELECT "+column+" FROM pg_stat_user_tables WHERE relname = 'idem_operations'")
	}
	require.Eventually(t, func() bool { return updates("n_tup_upd") == workers*each }, 10*time.Second, 20*time.Millisecond)
	require.Greater(t, updates("n_tup_hot_upd"), workers*each*9/10)
}
