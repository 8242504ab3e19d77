package pgstore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

func TestReusedKeyIsProvedWhileTheOtherRequestRuns(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store, peer := open(t, pgstore.Transactional, db), open(t, pgstore.Transactional, db)
	claim := owned(t, store, request("key"))
	same := found(t, peer, request("key"))
	require.Equal(t, server.Record{
		Status: server.Processing, Operation: claim.Operation.ID, Attempt: 1, LeaseLeft: request("key").Lease,
	}, same)
	other := found(t, peer, somethingElse(request("key")))
	require.True(t, other.Reused)
	require.Equal(t, server.Processing, other.Status)

	newer := somethingElse(request("key"))
	newer.Fingerprint.Version++
	require.False(t, found(t, peer, newer).Reused, "another scheme proves nothing")
	require.Equal(t, claim.Operation.ID, same.Operation)
}

func TestReusedKeyIsNotProvedByARequestThatOnlyLooks(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store, peer := open(t, pgstore.Transactional, db), open(t, pgstore.Transactional, db)
	require.NoError(t, owned(t, store, request("key")).Lease.Release(t.Context(), nil))

	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	for range 4 {
		looking.Go(func() {
			for ctx.Err() == nil {
				claim, err := peer.Claim(ctx, somethingElse(request("key")))
				if err == nil && (claim.Lease != nil || !claim.Record.Reused) {
					t.Errorf("a request for something else got %+v", claim)
				}
			}
		})
	}
	defer looking.Wait()
	defer cancel()
	for attempt := 2; attempt <= 100; attempt++ {
		claim, err := store.Claim(t.Context(), request("key"))
		require.NoError(t, err)
		require.NotNil(t, claim.Lease, "attempt %d got %+v", attempt, claim.Record)
		require.Equal(t, attempt, claim.Operation.Attempt)
		require.NoError(t, claim.Lease.Release(t.Context(), nil))
	}
}

// Equal requests never prove one another to be different, however their
// transactions begin and end.
func TestEqualRequestsAreNeverReported(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store, peer := open(t, pgstore.Transactional, db), open(t, pgstore.Transactional, db)
	for round := range 20 {
		req := request("key" + string(rune('a'+round)))
		var claims sync.WaitGroup
		for i := range 16 {
			claims.Go(func() {
				s := []*pgstore.Store{store, peer}[i%2]
				rec, err := execute(t.Context(), s, req, inTransaction)
				if err != nil || rec.Reused {
					t.Errorf("got %+v and the error %v", rec, err)
				}
			})
		}
		claims.Wait()
		require.Equal(t, 1, effects(t, db, req.ID.Key))
	}
}

func TestNoLockOutlivesItsTransaction(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	const held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	completing, releasing := owned(t, store, request("completing")), owned(t, store, request("releasing"))
	require.Equal(t, 4, pgtest.Value[int](t, db, held))
	completed(t, completing, answer(201, "done"))
	require.NoError(t, releasing.Lease.Release(t.Context(), nil))
	require.Equal(t, 0, pgtest.Value[int](t, db, held))

	ctx, cancel := context.WithCancel(t.Context())
	owned(t, store, request("cancelled"))
	cancel()
	_, err := store.Claim(ctx, request("cancelled"))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 2, pgtest.Value[int](t, db, held), "the owner's and nobody else's")
}

func TestDuplicatesWaitForNoLock(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			store, peer := open(t, newStore, db), open(t, newStore, db)
			owned(t, store, request("key"))
			began := time.Now()
			require.Equal(t, server.Processing, found(t, peer, request("key")).Status)
			require.Less(t, time.Since(began), 2*time.Second)
			require.Equal(t, 0, pgtest.Value[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
			visible := map[string]string{"lease": "processing", "transactional": ""}[name]
			require.Equal(t, visible, recorded(t, db, "key"))
		})
	}
}

// withoutLocks makes the functions for advisory locks do nothing, as some
// compatible engines do, and shadows them for the given database.
func withoutLocks(t *testing.T, db *pgtest.DB) *pgtest.DB {
	t.Helper()
	return shadowed(t, db, `
		CREATE FUNCTION shadow.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		CREATE FUNCTION shadow.pg_advisory_xact_lock(bigint) RETURNS void LANGUAGE sql AS 'SELECT'`)
}

func TestWithoutRealLocksTheIndexDecides(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	engine := withoutLocks(t, db)
	store, peer := open(t, pgstore.Transactional, engine), open(t, pgstore.Transactional, engine)

	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	began := time.Now()
	rec := found(t, peer, request("key"))
	require.Less(t, time.Since(began), time.Second)
	require.Equal(t, server.Processing, rec.Status)
	require.Equal(t, claim.Operation.ID, rec.Operation)
	completed(t, claim, answer(201, "done"))
	require.Equal(t, "done", string(found(t, peer, request("key")).Response.Body))
	require.Equal(t, 1, effects(t, db, "key"))

	failed, ctx := begun(t, store, request("failing"))
	done(t, ctx, "failing")
	require.NoError(t, failed.Lease.Release(t.Context(), nil))
	next, ctx := begun(t, peer, request("failing"))
	require.Equal(t, 2, next.Operation.Attempt)
	done(t, ctx, "failing")
	_, err := next.Lease.Complete(t.Context(), answer(404, "rejected"), time.Hour)
	require.NoError(t, err)
	require.Equal(t, 404, found(t, store, request("failing")).Response.StatusCode)
	require.Equal(t, 0, effects(t, db, "failing"))
}

func TestWithoutRealLocksUnknownCommitsAreLookedUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verdict pgtest.Verdict
		err     error
	}{
		"committed":     {pgtest.CutReply, nil},
		"not committed": {pgtest.Cut, server.ErrRestart},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			w := newWire(t, db)
			store := open(t, pgstore.Transactional, withoutLocks(t, w.DB))
			claim, ctx := begun(t, store, request("key"))
			done(t, ctx, "key")
			w.Intercept(onceAt("COMMIT", always(c.verdict)))
			rec, err := claim.Lease.Complete(t.Context(), answer(201, "done"), time.Hour)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, err == nil, rec.Status == server.Completed)
			require.Equal(t, err == nil, effects(t, db, "key") == 1)
		})
	}
}

func TestWithoutRealLocksOneOfManyExecutes(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	engine := withoutLocks(t, db)
	store, peer := open(t, pgstore.Transactional, engine), open(t, pgstore.Transactional, engine)
	var claims sync.WaitGroup
	for i := range 20 {
		claims.Go(func() {
			if _, err := execute(t.Context(), []*pgstore.Store{store, peer}[i%2], request("key"), inTransaction); err != nil {
				t.Error(err)
			}
		})
	}
	claims.Wait()
	require.Equal(t, 1, effects(t, db, "key"))
}
