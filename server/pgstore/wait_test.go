package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

func TestManyWaitersShareOneLookAndHoldNoConnection(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			w := newWire(t, db)
			owner := open(t, newStore, db.With("pool_max_conns", "60"))
			pool := w.With("pool_max_conns", "4").Pool(t)
			waiting := newStore(pool)
			waiting.Logger = quiet
			require.NoError(t, waiting.Check(t.Context()))
			var looks atomic.Int64
			w.Intercept(func(s pgtest.Statement) pgtest.Verdict {
				if strings.Contains(s.SQL, "unnest") {
					looks.Add(1)
				}
				return pgtest.Pass
			})

			const waiters = 50
			for i := range waiters {
				owned(t, owner, request(fmt.Sprint(i)))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var waits sync.WaitGroup
			for i := range waiters {
				waits.Go(func() {
					if err := waiting.Wait(ctx, request(fmt.Sprint(i)).ID); !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Wait returned %v while the operation runs", err)
					}
				})
			}
			slowest := time.Duration(0)
			for n := 0; ctx.Err() == nil; n++ {
				began := time.Now()
				claim := owned(t, waiting, request(fmt.Sprint("unrelated ", n)))
				completed(t, claim, answer(201, "done"))
				slowest = max(slowest, time.Since(began))
			}
			waits.Wait()
			require.Less(t, slowest, 500*time.Millisecond)
			require.InDelta(t, 10, looks.Load(), 5, "looks in a second, of all waiters together")

			require.Eventually(t, func() bool { return pool.Stat().AcquiredConns() == 0 }, 5*time.Second, time.Millisecond)
			before := looks.Load()
			select {
			case <-time.After(300 * time.Millisecond):
			case <-t.Context().Done():
			}
			require.Equal(t, before, looks.Load(), "looks after the last waiter has left")
		})
	}
}

func TestWaitEndsSoonAfterTheOperation(t *testing.T) {
	t.Parallel()
	for ownerMode, newOwner := range modes {
		for mode, newStore := range modes {
			if ownerMode == "transactional" && mode == "lease" {
				continue // a store in lease mode does not look for locks
			}
			t.Run(mode+" waits for "+ownerMode, func(t *testing.T) {
				t.Parallel()
				db := newDB(t)
				owner, waiting := open(t, newOwner, db), open(t, newStore, db)
				for name, end := range map[string]func(server.Claim){
					"completed": func(c server.Claim) { completed(t, c, answer(201, "done")) },
					"released":  func(c server.Claim) { require.NoError(t, c.Lease.Release(t.Context(), nil)) },
				} {
					claim := owned(t, owner, request(name))
					ended := make(chan error, 2)
					for range cap(ended) {
						go func() { ended <- waiting.Wait(t.Context(), request(name).ID) }()
					}
					select {
					case err := <-ended:
						require.Fail(t, "Wait returned while the operation runs", "%v", err)
					case <-time.After(300 * time.Millisecond):
					}
					end(claim)
					began := time.Now()
					for range cap(ended) {
						require.NoError(t, <-ended)
					}
					require.Less(t, time.Since(began), time.Second)
				}
			})
		}
	}
}

func TestWaitOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	owner, waiting := open(t, pgstore.New, db), open(t, pgstore.New, w.DB)
	claim := owned(t, owner, request("key"))
	var cuts atomic.Int64
	w.Intercept(func(pgtest.Statement) pgtest.Verdict {
		cuts.Add(1)
		return pgtest.Cut
	})
	ended := make(chan error, 1)
	go func() { ended <- waiting.Wait(t.Context(), request("key").ID) }()
	require.Eventually(t, func() bool { return cuts.Load() >= 3 }, 10*time.Second, time.Millisecond)
	require.Empty(t, ended)
	w.Intercept(nil)
	completed(t, claim, answer(201, "done"))
	require.NoError(t, <-ended)
}
