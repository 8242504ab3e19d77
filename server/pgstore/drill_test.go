package pgstore_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

var (
	drillOps    = flag.Int("drill.ops", 40, "operations in each mode that are acknowledged before a failover drill's failover, and after it")
	drillRounds = flag.Int("drill.rounds", 1, "failovers, each of a pair of servers of its own")
)

// TestFailoverDrill kills a primary under load and promotes its synchronous
// standby. Nothing that was acknowledged may be lost, and nothing happen twice.
// Before every other failover, the first among them, the standby is away.
func TestFailoverDrill(t *testing.T) {
	t.Parallel()
	for round := range *drillRounds {
		t.Run(fmt.Sprintf("round %d", round+1), func(t *testing.T) {
			t.Parallel()
			primary := startPrimary(t)
			standby, err := primary.Standby()
			require.NoError(t, err)
			t.Cleanup(standby.Stop)
			standbyDecidesNothing(t, pgtest.Writable(standby, primary), standby)

			var drills []*drill
			var load sync.WaitGroup
			for mode := range modes {
				d := newDrill(t, mode, pgtest.Writable(primary, standby))
				drills = append(drills, d)
				load.Go(func() { d.run(t) })
			}
			t.Cleanup(load.Wait)
			for _, d := range drills {
				<-d.enough
			}
			fail(t, primary, standby, round%2 == 0)
			for _, d := range drills {
				d.end.Store(d.acknowledged.Load() + int64(*drillOps))
			}
			load.Wait()
			for _, d := range drills {
				d.check(t, standby.DB())
			}
		})
	}
}

// fail replaces the primary by its standby. If the standby was away before that,
// COMMITs had been waiting for it until their clients lost patience.
func fail(t *testing.T, primary, standby *pgtest.Server, away bool) {
	t.Helper()
	if away {
		require.NoError(t, standby.Halt())
		select {
		case <-time.After(3 * drillPatience):
		case <-t.Context().Done():
		}
	}
	require.NoError(t, primary.Crash())
	if away {
		require.NoError(t, standby.Resume())
	}
	require.NoError(t, standby.Promote())
}

// drillPatience is how long a client waits for one attempt.
const drillPatience = 500 * time.Millisecond

// standbyDecidesNothing demands that claims go to the primary, however far
// behind the standby is that is named first.
func standbyDecidesNothing(t *testing.T, url string, standby *pgtest.Server) {
	t.Helper()
	standby.DB().Exec(t, "SELECT pg_wal_replay_pause()")
	defer standby.DB().Exec(t, "SELECT pg_wal_replay_resume()")
	for mode := range modes {
		store := openURL(t, mode, url)
		claim := owned(t, store, request(mode))
		require.Equal(t, server.Processing, found(t, store, request(mode)).Status)
		completed(t, claim, answer(201, "done"))
		require.Equal(t, "done", string(found(t, openURL(t, mode, url), request(mode)).Response.Body))
		require.Empty(t, recorded(t, standby.DB(), mode), "the standby has not got so far")

		lost := modes[mode](standby.DB().Pool(t))
		lost.Logger = quiet
		_, err := lost.Claim(t.Context(), request(mode))
		require.ErrorContains(t, err, "the server is a standby", "an error, and not the answer that the key is free")
	}
}

// openURL returns a store with a pool of its own.
func openURL(t *testing.T, mode, url string) *pgstore.Store {
	t.Helper()
	pool, err := pgstore.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store := modes[mode](pool)
	store.Logger = quiet
	return store
}

// drill is the load in one mode, made by two processes as it were.
type drill struct {
	mode         string
	stores       [2]*pgstore.Store
	begun        atomic.Int64  // operations
	acknowledged atomic.Int64  // operations of which a client has the answer
	enough       chan struct{} // closed when enough are for the failover
	end          atomic.Int64  // when to end, by the number acknowledged

	mu      sync.Mutex
	answers map[string]server.Record      // the first that was acknowledged for each key
	charged map[string]map[uuid.UUID]bool // by a provider, who tells operations apart
}

func newDrill(t *testing.T, mode, url string) *drill {
	t.Helper()
	d := &drill{
		mode: mode, stores: [2]*pgstore.Store{openURL(t, mode, url), openURL(t, mode, url)},
		enough:  make(chan struct{}),
		answers: make(map[string]server.Record), charged: make(map[string]map[uuid.UUID]bool),
	}
	d.end.Store(math.MaxInt64)
	return d
}

func (d *drill) key(n int64) string { return fmt.Sprintf("%s-%d", d.mode, n) }

// run has every operation asked for by two clients at once, eight operations at
// a time.
func (d *drill) run(t *testing.T) {
	t.Helper()
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for d.acknowledged.Load() < d.end.Load() && t.Context().Err() == nil {
				key := d.key(d.begun.Add(1))
				var duplicate sync.WaitGroup
				duplicate.Go(func() { d.insist(t, d.stores[0], key) })
				d.insist(t, d.stores[1], key)
				duplicate.Wait()
			}
		})
	}
	clients.Wait()
}

// insist sends a request until it is answered.
func (d *drill) insist(t *testing.T, store *pgstore.Store, key string) {
	t.Helper()
	for t.Context().Err() == nil {
		rec, err := d.try(t.Context(), store, key)
		if err == nil && rec.Status == server.Completed {
			d.acknowledge(t, key, rec)
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

func (d *drill) try(ctx context.Context, store *pgstore.Store, key string) (server.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, drillPatience)
	defer cancel()
	req := request(key)
	req.Lease = time.Second
	claim, err := store.Claim(ctx, req)
	if err != nil || claim.Lease == nil {
		return claim.Record, err
	}
	if err := d.effect(claim.Lease.Context(ctx), claim.Operation); err != nil {
		return server.Record{}, errors.Join(err, claim.Lease.Release(ctx, err))
	}
	return claim.Lease.Complete(ctx, answer(201, uuid.NewString()), req.TTL)
}

func (d *drill) effect(ctx context.Context, op server.Operation) error {
	if d.mode == "transactional" {
		return inTransaction(ctx, op)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.charged[op.Key] == nil {
		d.charged[op.Key] = make(map[uuid.UUID]bool)
	}
	d.charged[op.Key][op.ID] = true
	return nil
}

func (d *drill) acknowledge(t *testing.T, key string, rec server.Record) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if first, ok := d.answers[key]; ok {
		if string(first.Response.Body) != string(rec.Response.Body) {
			t.Errorf("%s was answered by %q and %q", key, first.Response.Body, rec.Response.Body)
		}
		return
	}
	d.answers[key] = rec
	if d.acknowledged.Add(1) == int64(*drillOps) {
		close(d.enough)
	}
}

// check compares what was acknowledged with what the new primary has.
func (d *drill) check(t *testing.T, db *pgtest.DB) {
	t.Helper()
	require.Len(t, d.answers, int(d.begun.Load()))
	store := open(t, modes[d.mode], db)
	for n := range d.begun.Load() {
		key := d.key(n + 1)
		require.Equal(t, d.answers[key], found(t, store, request(key)), key)
		if d.mode == "transactional" {
			require.Equal(t, 1, effects(t, db, key), key)
		} else {
			require.Len(t, d.charged[key], 1, key)
		}
	}
}
