package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
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

// fill makes n completed records, numbered from 1, that expire after ttl.
func fill(t *testing.T, db *pgtest.DB, prefix string, n int, ttl string) {
	t.Helper()
	db.Exec(t, `
		INSERT INTO idem_operations (account_id, idempotency_key, operation_id, fingerprint, fingerprint_version,
			status, attempt, claim_token, response_status, response_headers, response_flags, created_at, completed_at, expires_at)
		SELECT 'acme', $1 || i, gen_random_uuid(), sha256('this'), 1,
			'completed', 1, gen_random_uuid(), 200, '', 1, now(), now(), now() + $2::interval
		FROM generate_series(1, $3) AS i`, prefix, ttl, n)
}

func records(t *testing.T, db *pgtest.DB) int {
	t.Helper()
	return pgtest.Value[int](t, db, "SELECT count(*) FROM idem_operations")
}

// runs has stores clean up until the test ends or stop is called.
func runs(t *testing.T, stores ...*pgstore.Store) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	errEnough := errors.New("enough")
	var running sync.WaitGroup
	for _, store := range stores {
		running.Go(func() {
			if err := store.Run(ctx); !errors.Is(err, errEnough) {
				t.Errorf("Run returned %v", err)
			}
		})
	}
	stop = func() {
		cancel(errEnough)
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func TestTwoCleanersDeleteWhatHasExpiredAndNothingElse(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	fill(t, db, "expired-", 5500, "-1 hour")
	fill(t, db, "live-", 500, "1 hour")
	var deleted, longest atomic.Int64
	var stores []*pgstore.Store
	for range 2 {
		store := open(t, pgstore.New, db)
		store.CleanupInterval = 10 * time.Millisecond
		store.ObserveCleanup = func(_ context.Context, e server.CleanupEvent) {
			deleted.Add(int64(e.Deleted))
			longest.Store(max(longest.Load(), int64(e.Lag)))
			if e.Deleted > 1000 || e.Err != nil {
				t.Errorf("got %+v", e)
			}
		}
		stores = append(stores, store)
	}
	runs(t, stores...)
	require.Eventually(t, func() bool { return deleted.Load() == 5500 }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, 500, records(t, db))
	require.InDelta(t, time.Hour, longest.Load(), float64(time.Minute))
}

var (
	cleanupRecords = flag.Int("cleanup.records", 10_000, "expired records that are deleted beside claims")
	cleanupTimed   = flag.Bool("cleanup.timed", false, "demand that claims take no more than twice as long meanwhile, on a server that syncs")
)

// slice is for how long a system lets one process run before another. What takes
// less may take as long when there are more processes than processors.
const slice = 3 * time.Millisecond

// Two cleaners delete records beside 500 claims a second. How long the claims
// take tells something only on a machine that does nothing else.
func TestCleanupBesideClaims(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	if *cleanupTimed {
		db = newDBIn(t, pgtest.CrashSafe)
	}
	const live = 1000
	expired := *cleanupRecords
	fill(t, db, "live-", live, "1 hour")
	store := open(t, pgstore.New, db)
	claims := startClaims(t, store)
	alone := claims.p99(t, func(n int) bool { return n == 2500 })

	fill(t, db, "expired-", expired, "-1 hour")
	db.Exec(t, "ANALYZE idem_operations")
	var deleted atomic.Int64
	cleaners := []*pgstore.Store{open(t, pgstore.New, db), open(t, pgstore.New, db)}
	for _, cleaner := range cleaners {
		cleaner.CleanupInterval = 10 * time.Millisecond
		cleaner.ObserveCleanup = func(_ context.Context, e server.CleanupEvent) {
			deleted.Add(int64(e.Deleted))
			if e.Deleted > 1000 || e.Err != nil {
				t.Errorf("got %+v", e)
			}
		}
	}
	stop := runs(t, cleaners...)
	beside := claims.p99(t, func(int) bool { return deleted.Load() >= int64(expired) })
	stop()
	t.Logf("the slowest percent of claims takes %v, and %v beside cleanup", alone, beside)
	require.Equal(t, int64(expired), deleted.Load())
	require.Equal(t, live+claims.stop(), records(t, db))
	require.Equal(t, 0, pgtest.Value[int](t, db, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))
	if *cleanupTimed {
		require.LessOrEqual(t, beside, 2*max(alone, slice))
	}
}

// claims are 500 operations a second, claimed and completed.
type claims struct {
	took chan time.Duration
	stop func() (made int)
}

func startClaims(t *testing.T, store *pgstore.Store) *claims {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &claims{took: make(chan time.Duration, 100_000)}
	var running sync.WaitGroup
	var made int
	running.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			made++
			req := request(fmt.Sprintf("claimed-%d", made))
			running.Go(func() {
				began := time.Now()
				claim, err := store.Claim(context.WithoutCancel(ctx), req)
				c.took <- time.Since(began)
				if err != nil || claim.Lease == nil {
					t.Errorf("got %+v, %v", claim.Record, err)
					return
				}
				if _, err := claim.Lease.Complete(context.WithoutCancel(ctx), answer(201, "done"), time.Hour); err != nil {
					t.Error(err)
				}
			})
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	c.stop = sync.OnceValue(func() int {
		cancel()
		running.Wait()
		return made
	})
	t.Cleanup(func() { c.stop() })
	return c
}

// p99 returns the time that 99% of the claims from now on stay below, until
// there are enough of them.
func (c *claims) p99(t *testing.T, enough func(n int) bool) time.Duration {
	t.Helper()
	var took []time.Duration
	for len(c.took) > 0 { // those before
		<-c.took
	}
	for len(took) == 0 || !enough(len(took)) {
		took = append(took, <-c.took)
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// A record lives at least its TTL, and while its lease does, under cleaners
// that never pause.
func TestCleanersAndOperations(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			store := open(t, newStore, db)
			cleaners := []*pgstore.Store{open(t, newStore, db), open(t, newStore, db)}
			for _, cleaner := range cleaners {
				cleaner.CleanupInterval = time.Millisecond
			}
			stop := runs(t, cleaners...)
			var operations sync.WaitGroup
			for i := range 4 {
				operations.Go(func() {
					for n := range 10 {
						req := request(fmt.Sprintf("%d-%d", i, n))
						req.TTL = time.Millisecond
						claim := owned(t, store, req)
						completed(t, claim, answer(201, "done"))
						rec := found(t, store, req)
						if rec.Response == nil || string(rec.Response.Body) != "done" {
							t.Errorf("got %+v", rec)
						}
					}
				})
			}
			operations.Wait()
			stop()
			require.Equal(t, 40, records(t, db))
		})
	}
}

func TestOneLeaderCleansUp(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	fill(t, db, "expired-", 10, "-1 hour")
	w := newWire(t, db)
	leader, other := open(t, pgstore.New, w.DB), open(t, pgstore.New, db)
	leader.CleanupInterval, other.CleanupInterval = time.Millisecond, time.Millisecond
	var rounds atomic.Int64
	other.ObserveCleanup = func(context.Context, server.CleanupEvent) { rounds.Add(1) }
	arrived, goOn := hangs(t, w, "DELETE")
	runs(t, leader)
	<-arrived
	stop := runs(t, other)
	select {
	case <-time.After(200 * time.Millisecond):
	case <-t.Context().Done():
	}
	stop()
	require.Zero(t, rounds.Load(), "rounds while another process leads")
	require.Equal(t, 10, records(t, db))
	w.Intercept(nil)
	goOn()
	require.Eventually(t, func() bool { return records(t, db) == 0 }, 10*time.Second, time.Millisecond)
}

func TestCleanupRestsWhenTheClockJumps(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	fill(t, db, "live-", 10, "1 day")
	var log lockedBuffer
	store := open(t, pgstore.New, shadowed(t, db, `
		CREATE TABLE shadow.clock AS SELECT interval '0' AS ahead;
		CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
		AS $$ SELECT pg_catalog.clock_timestamp() + ahead FROM shadow.clock $$`))
	store.CleanupInterval = time.Millisecond
	store.Logger = slog.New(slog.NewTextHandler(&log, nil))
	var rounds atomic.Int64
	store.ObserveCleanup = func(context.Context, server.CleanupEvent) { rounds.Add(1) }
	runs(t, store)
	require.Eventually(t, func() bool { return rounds.Load() > 2 }, 10*time.Second, time.Millisecond)
	db.Exec(t, "UPDATE shadow.clock SET ahead = interval '30 days'")
	require.Eventually(t, func() bool { return bytes.Contains(log.Bytes(), []byte("clock jumped")) }, 10*time.Second, time.Millisecond)
	before := rounds.Load()
	require.Never(t, func() bool { return rounds.Load() > before }, 200*time.Millisecond, 10*time.Millisecond)
	require.Equal(t, 10, records(t, db))
}

func TestRunOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	var log lockedBuffer
	store := open(t, pgstore.New, w.DB)
	store.CleanupInterval = time.Millisecond
	store.Logger = slog.New(slog.NewTextHandler(&log, nil))
	w.Intercept(always(pgtest.Cut))
	runs(t, store)
	require.Eventually(t, func() bool { return bytes.Contains(log.Bytes(), []byte("could not be cleaned up")) }, 10*time.Second, time.Millisecond)
	fill(t, db, "expired-", 10, "-1 hour")
	w.Intercept(nil)
	require.Eventually(t, func() bool { return records(t, db) == 0 }, 10*time.Second, time.Millisecond)
}

func TestRunRefusesANegativeInterval(t *testing.T) {
	t.Parallel()
	store := pgstore.New(newDB(t).Pool(t))
	store.CleanupInterval = -1
	require.ErrorContains(t, store.Run(t.Context()), "CleanupInterval")
}

// A backlog that the planner does not know of yet must not be read as a whole to
// delete a batch of it.
func TestCleanupReadsWhatItDeletes(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	fill(t, db, "live-", 100_000, "1 day")
	fill(t, db, "expired-", 100, "-1 day")
	db.Exec(t, "UPDATE idem_operations SET expires_at = expires_at + random() * interval '1 hour'")
	db.Exec(t, "VACUUM ANALYZE idem_operations")
	fill(t, db, "more-", 20000, "-1 day")
	w := newWire(t, db)
	var sql string
	w.Intercept(onceAt("DELETE", func(s pgtest.Statement) pgtest.Verdict {
		sql = s.SQL
		return pgtest.Pass
	}))
	n, err := open(t, pgstore.New, w.DB).Cleanup(t.Context(), 250)
	require.NoError(t, err)
	require.Equal(t, 250, n)
	db.Exec(t, "CREATE FUNCTION plan(q text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE line text; lines text := ''; BEGIN "+
		"FOR line IN EXECUTE 'EXPLAIN ' || q LOOP lines := lines || line || chr(10); END LOOP; RETURN lines; END $$")
	planned := func(f string) string {
		return pgtest.Value[string](t, db, "SELECT "+f+"(replace(replace($1, '$1', '250'), '$2', quote_literal('-infinity')))", sql)
	}
	plan := planned("plan")
	require.Equal(t, 1, strings.Count(plan, "Scan using idem_operations_expires_at"), plan)
	require.Equal(t, 1, strings.Count(plan, "Scan using idem_operations_pkey"), plan)
	require.NotContains(t, plan, "Seq Scan")

	n, err = open(t, pgstore.New, db).Cleanup(t.Context(), 19_000)
	require.NoError(t, err)
	require.Equal(t, 19_000, n)
	db.Exec(t, "CREATE FUNCTION read_to_plan(q text) RETURNS text LANGUAGE plpgsql AS $$ DECLARE plan json; BEGIN "+
		"FOR i IN 1..2 LOOP EXECUTE 'EXPLAIN (BUFFERS, FORMAT JSON) ' || q INTO plan; END LOOP; "+
		"RETURN plan->0->'Planning'->>'Shared Hit Blocks'; END $$")
	pages, err := strconv.Atoi(planned("read_to_plan"))
	require.NoError(t, err)
	require.Less(t, pages, 10, "nothing of what was deleted")
}

func TestStatsTellTheAges(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.New, db)
	owned(t, store, request("processing"))
	db.Exec(t, "UPDATE idem_operations SET created_at = now() - interval '1 hour'")
	fill(t, db, "expired-", 3, "-2 hours")
	stats, err := store.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), stats.Processing)
	require.Equal(t, int64(3), stats.Completed)
	require.InDelta(t, time.Hour, stats.OldestProcessing, float64(time.Minute))
	require.InDelta(t, 2*time.Hour, stats.CleanupLag, float64(time.Minute))
	require.Positive(t, stats.Bytes)
}

// lockedBuffer is a bytes.Buffer for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.b.Bytes())
}
