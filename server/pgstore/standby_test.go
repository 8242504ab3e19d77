package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// startPrimary returns a server of the test's own with the tables of newDB. It
// forgets nothing but in a crash of the machine.
func startPrimary(t *testing.T) *pgtest.Server {
	t.Helper()
	primary, err := pgtest.Start(pgtest.Options{Mode: pgtest.CrashSafe, Settings: "-c fsync=off"})
	require.NoError(t, err)
	t.Cleanup(primary.Stop)
	steps, err := pgstore.Migrations("")
	require.NoError(t, err)
	for _, step := range append(steps, effectsTable) {
		primary.DB().Exec(t, step)
	}
	return primary
}

// loseStandby makes every COMMIT wait for a standby that is away, until the
// test ends or back is called.
func loseStandby(t *testing.T, db *pgtest.DB) (back func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, db.URL)
	require.NoError(t, err)
	set := func(standbys string) {
		_, err := conn.Exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = "+standbys)
		require.NoError(t, err)
		_, err = conn.Exec(ctx, "SELECT pg_reload_conf()")
		require.NoError(t, err)
	}
	back = func() { set("''") }
	t.Cleanup(func() { conn.Close(ctx) })
	t.Cleanup(back)
	set("away")
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		probe, err := pgx.Connect(ctx, db.URL)
		if err != nil {
			return false
		}
		defer probe.Close(ctx)
		_, err = probe.Exec(ctx, "SELECT pg_logical_emit_message(true, '', '')")
		return errors.Is(err, context.DeadlineExceeded)
	}, 10*time.Second, time.Millisecond)
	return back
}

// brief is less time than a standby is away.
func brief(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// away is an operation that is to be completed while no standby is there.
type away struct {
	mode  string
	how   string // the wait for the standby ends: "give-up" by its owner, "cancel" or "terminate" at the server
	db    *pgtest.DB
	claim server.Claim
	store *pgstore.Store
	other *pgstore.Store // of another process
}

func (a away) req() server.ClaimRequest { return request(a.mode + "-" + a.how) }

// ends makes the store lose its COMMIT, and returns when that has happened.
func (a away) ends(t *testing.T) {
	t.Helper()
	waiting := fmt.Sprintf("FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = '%s-%s'", a.mode, a.how)
	require.Eventually(t, func() bool {
		return pgtest.Value[int](t, a.db, "SELECT count(*) "+waiting) > 0
	}, 10*time.Second, 5*time.Millisecond)
	if a.how != "give-up" {
		pgtest.Value[int](t, a.db, "SELECT count(pg_"+a.how+"_backend(pid)) "+waiting)
		require.Eventually(t, func() bool { return recorded(t, a.db, a.req().ID.Key) == "completed" }, 10*time.Second, 5*time.Millisecond)
	}
}

// An answer that no standby has is lost if the primary is. Nobody is told that
// it is stored, and unless somebody ends the wait at the server, nobody else
// sees it either.
func TestWhileNoStandbyIsThereNothingIsAcknowledged(t *testing.T) { //nolint:tparallel // the group inside ends before the standby is back
	t.Parallel()
	db := startPrimary(t).DB()
	var all []away
	for mode, newStore := range modes {
		do := inTransaction
		if mode == "lease" {
			do = elsewhere(db.Pool(t))
		}
		for _, how := range []string{"give-up", "cancel", "terminate"} {
			a := away{mode: mode, how: how, db: db, other: open(t, newStore, db)}
			pool, err := pgstore.Open(t.Context(), db.With("application_name", mode+"-"+how).URL)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			a.store = newStore(pool)
			a.store.Logger = quiet
			a.claim = owned(t, a.store, a.req())
			require.NoError(t, do(a.claim.Lease.Context(t.Context()), a.claim.Operation))
			all = append(all, a)
		}
	}
	store := open(t, pgstore.New, db)
	failing := owned(t, store, request("failing"))

	back := loseStandby(t, db)
	t.Run("away", func(t *testing.T) {
		for _, a := range all {
			t.Run(a.mode+"-"+a.how, func(t *testing.T) {
				t.Parallel()
				a.checkUnacknowledged(t)
			})
		}
		t.Run("claims and releases", func(t *testing.T) {
			t.Parallel()
			_, err := store.Claim(brief(t), request("unclaimed"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, failing.Lease.Release(brief(t), nil), context.DeadlineExceeded)
		})
	})
	back()

	for _, a := range all {
		key := a.req().ID.Key
		require.Eventually(t, func() bool { return recorded(t, db, key) == "completed" }, 10*time.Second, 5*time.Millisecond)
		rec, err := a.claim.Lease.Complete(t.Context(), answer(201, "done"), time.Hour)
		require.NoError(t, err)
		require.Equal(t, rec, found(t, a.other, a.req()))
		require.Equal(t, "done", string(rec.Response.Body))
		require.Equal(t, 1, effects(t, db, key))
	}
}

func (a away) checkUnacknowledged(t *testing.T) {
	t.Helper()
	completed := make(chan error, 1)
	go func() {
		ctx := brief(t)
		if a.how != "give-up" {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
		}
		_, err := a.claim.Lease.Complete(ctx, answer(201, "done"), time.Hour)
		completed <- err
		completed <- err
	}()
	a.ends(t)
	err := <-completed
	require.Error(t, err)
	require.NotErrorIs(t, err, server.ErrRestart)
	require.NotErrorIs(t, err, server.ErrRolledBack)
	_, err = a.claim.Lease.Complete(brief(t), answer(201, "done"), time.Hour)
	require.Error(t, err, "the next try cannot know more")
	if a.how != "give-up" {
		return
	}
	claim, err := a.other.Claim(brief(t), a.req())
	require.Nil(t, claim.Lease)
	require.Nil(t, claim.Record.Response)
	if a.mode == "lease" { // a claim waits for whoever is changing the record
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return
	}
	require.NoError(t, err)
	require.Equal(t, server.Processing, claim.Record.Status)
}
