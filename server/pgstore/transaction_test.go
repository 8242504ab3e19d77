package pgstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// begun claims req and returns the handler's context as well.
func begun(t *testing.T, store server.Store, req server.ClaimRequest) (server.Claim, context.Context) {
	t.Helper()
	claim := owned(t, store, req)
	return claim, claim.Lease.Context(t.Context())
}

func done(t *testing.T, ctx context.Context, key string) {
	t.Helper()
	_, err := pgstore.Tx(ctx).Exec(ctx, "INSERT INTO effects VALUES ($1, gen_random_uuid(), 1)", key)
	require.NoError(t, err)
}

func TestEffectAndAnswerCommitTogether(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	require.Equal(t, 0, effects(t, db, "key"))
	require.Empty(t, recorded(t, db, "key"))
	completed(t, claim, answer(201, "done"))
	require.Equal(t, 1, effects(t, db, "key"))
	require.Equal(t, "completed", recorded(t, db, "key"))
}

func TestAnswerDecidesHowTheTransactionEnds(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	for _, c := range []struct {
		name    string
		status  int
		handler func(ctx context.Context, tx pgx.Tx)
		err     error
		effects int
		record  string
	}{
		{name: "201 commits", status: 201, effects: 1, record: "completed"},
		{name: "303 commits", status: 303, effects: 1, record: "completed"},
		{name: "404 is stored and rolls back", status: 404, effects: 0, record: "completed"},
		{name: "422 after an error of the database is stored", status: 422, handler: failing, record: "completed"},
		{name: "201 after an error that was ignored is not believed", status: 201, handler: failing, err: server.ErrRolledBack},
		{name: "201 after an error that a savepoint healed commits", status: 201, handler: healing, effects: 1, record: "completed"},
		{name: "201 with rows left open is not believed", status: 201, handler: leavingRows, err: server.ErrRolledBack},
		{name: "201 after a deadlock runs again", status: 201, handler: raising("40P01"), err: server.ErrRestart},
		{name: "409 after a serialization failure runs again", status: 409, handler: raising("40001"), err: server.ErrRestart},
		{name: "201 after a serialization failure that a savepoint healed commits", status: 201, handler: healingSerialization, effects: 1, record: "completed"},
		{name: "201 after a statement of its own that committed is stored", status: 201, handler: endingBy("COMMIT"), effects: 1, record: "completed"},
		{name: "201 after a statement of its own that rolled back is stored", status: 201, handler: endingBy("ROLLBACK"), record: "completed"},
		{name: "201 that violates a deferred constraint is not believed", status: 201, handler: violatingAtCommit, err: server.ErrRolledBack},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			claim, ctx := begun(t, store, request(c.name))
			done(t, ctx, c.name)
			if c.handler != nil {
				c.handler(ctx, pgstore.Tx(ctx))
			}
			r := answer(c.status, "said")
			rec, err := claim.Lease.Complete(t.Context(), r, time.Hour)
			require.Equal(t, c.effects, effects(t, db, c.name))
			require.Equal(t, c.record, recorded(t, db, c.name))
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				next := owned(t, store, request(c.name))
				require.Equal(t, claim.Operation, next.Operation)
				require.NoError(t, next.Lease.Release(t.Context(), nil))
				return
			}
			require.NoError(t, err)
			require.Equal(t, &r, rec.Response)
			require.Equal(t, r, *found(t, store, request(c.name)).Response)
		})
	}
}

func failing(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, "SELECT 1/0") }

func raising(code string) func(context.Context, pgx.Tx) {
	return func(ctx context.Context, tx pgx.Tx) {
		_, _ = tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = '"+code+"'; END $$")
	}
}

func healing(ctx context.Context, tx pgx.Tx) {
	_ = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		_, err := savepoint.Exec(ctx, "SELECT 1/0")
		return err
	})
}

func healingSerialization(ctx context.Context, tx pgx.Tx) {
	_ = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		raising("40001")(ctx, savepoint)
		return errors.New("roll back to the savepoint")
	})
}

func leavingRows(ctx context.Context, tx pgx.Tx) {
	rows, _ := tx.Query(ctx, "SELECT * FROM generate_series(1, 100000)")
	rows.Next()
}

func endingBy(statement string) func(context.Context, pgx.Tx) {
	return func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, statement) }
}

func violatingAtCommit(ctx context.Context, tx pgx.Tx) {
	_, _ = tx.Exec(ctx, "CREATE TABLE once (id integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	_, _ = tx.Exec(ctx, "INSERT INTO once VALUES (1), (1)")
}

func TestFailureIsRememberedWithoutItsEffects(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			store := open(t, newStore, db)
			claim, ctx := begun(t, store, request("key"))
			if name == "transactional" {
				done(t, ctx, "key")
				failing(ctx, pgstore.Tx(ctx))
			}
			require.NoError(t, claim.Lease.Release(t.Context(), errors.New("500")))
			require.Equal(t, 0, effects(t, db, "key"))
			require.Equal(t, "failed", recorded(t, db, "key"))

			require.True(t, found(t, store, somethingElse(request("key"))).Reused)
			next := owned(t, store, request("key"))
			require.Equal(t, 2, next.Operation.Attempt)
			require.Equal(t, claim.Operation.ID, next.Operation.ID)
			completed(t, next, answer(201, "done"))
			require.Equal(t, 2, pgtest.Value[int](t, db, "SELECT attempt FROM idem_operations"))
		})
	}
}

func TestFailureAfterADeadlockRunsAgain(t *testing.T) {
	t.Parallel()
	store := open(t, pgstore.Transactional, newDB(t))
	for name, handler := range map[string]func(context.Context, pgx.Tx){
		"exec": raising("40P01"),
		"query": func(ctx context.Context, tx pgx.Tx) {
			_ = tx.QueryRow(ctx, raise40001).Scan(new(int))
		},
		"rows": func(ctx context.Context, tx pgx.Tx) {
			rows, _ := tx.Query(ctx, raise40001)
			rows.Close()
		},
		"batch": func(ctx context.Context, tx pgx.Tx) {
			b := &pgx.Batch{}
			b.Queue(raise40001)
			_ = tx.SendBatch(ctx, b).Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim, ctx := begun(t, store, request(name))
			if name != "exec" {
				_, err := pgstore.Tx(ctx).Exec(ctx, createRaise)
				require.NoError(t, err)
			}
			handler(ctx, pgstore.Tx(ctx))
			require.ErrorIs(t, claim.Lease.Release(t.Context(), errors.New("500")), server.ErrRestart)
		})
	}
}

const (
	createRaise = `CREATE FUNCTION pg_temp.raise() RETURNS integer LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = '40001'; END $$`
	raise40001 = "SELECT pg_temp.raise()"
)

func TestTransactionIsTheOperations(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim, ctx := begun(t, store, request("key"))
	tx := pgstore.Tx(ctx)
	require.ErrorIs(t, tx.Commit(ctx), pgstore.ErrTxOwned)
	require.ErrorIs(t, tx.Rollback(ctx), pgstore.ErrTxOwned)

	done(t, ctx, "key")
	savepoint, err := tx.Begin(ctx)
	require.NoError(t, err)
	inner, err := savepoint.Begin(ctx)
	require.NoError(t, err)
	_, err = inner.Exec(ctx, "DELETE FROM effects")
	require.NoError(t, err)
	require.NoError(t, inner.Rollback(ctx))
	require.ErrorIs(t, inner.Rollback(ctx), pgx.ErrTxClosed)
	require.NoError(t, savepoint.Commit(ctx))

	copied, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"key", "operation_id", "attempt"},
		pgx.CopyFromRows([][]any{{"copied", claim.Operation.ID, 1}}))
	require.NoError(t, err)
	require.Equal(t, int64(1), copied)
	rows, err := tx.Query(ctx, "SELECT key FROM effects ORDER BY key")
	require.NoError(t, err)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"copied", "key"}, keys)
	require.ErrorIs(t, tx.QueryRow(ctx, "SELECT key FROM effects WHERE key = 'none'").Scan(new(string)), pgx.ErrNoRows)
	b := &pgx.Batch{}
	b.Queue("SELECT count(*) FROM effects")
	results := tx.SendBatch(ctx, b)
	var n int
	require.NoError(t, results.QueryRow().Scan(&n))
	require.NoError(t, results.Close())
	require.Equal(t, 2, n)
	_, err = tx.Prepare(ctx, "", "SELECT 1")
	require.NoError(t, err)
	require.NotNil(t, tx.Conn())

	completed(t, claim, answer(201, "done"))
	isOver(t, ctx, tx, pgx.ErrTxClosed)
	isOver(t, ctx, savepoint, pgx.ErrTxClosed)
	require.Equal(t, 1, effects(t, db, "key"))
}

func TestThereIsNoTransactionElsewhere(t *testing.T) {
	t.Parallel()
	isOver(t, t.Context(), pgstore.Tx(t.Context()), pgstore.ErrNoTx)
	require.Nil(t, pgstore.Tx(t.Context()).Conn())
	lobs := pgstore.Tx(t.Context()).LargeObjects()
	_, err := lobs.Create(t.Context(), 0)
	require.ErrorIs(t, err, pgx.ErrTxClosed)

	claim, ctx := begun(t, open(t, pgstore.New, newDB(t)), request("key"))
	isOver(t, ctx, pgstore.Tx(ctx), pgstore.ErrNoTx)
	require.NoError(t, claim.Lease.Release(t.Context(), nil))
}

// isOver demands that every method of tx returns want.
func isOver(t *testing.T, ctx context.Context, tx pgx.Tx, want error) {
	t.Helper()
	_, err := tx.Begin(ctx)
	require.ErrorIs(t, err, want)
	require.ErrorIs(t, tx.Commit(ctx), want)
	require.ErrorIs(t, tx.Rollback(ctx), want)
	_, err = tx.Exec(ctx, "SELECT 1")
	require.ErrorIs(t, err, want)
	rows, err := tx.Query(ctx, "SELECT 1")
	require.ErrorIs(t, err, want)
	require.False(t, rows.Next())
	require.ErrorIs(t, rows.Err(), want)
	require.ErrorIs(t, tx.QueryRow(ctx, "SELECT 1").Scan(new(int)), want)
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"effects"}, nil, pgx.CopyFromRows(nil))
	require.ErrorIs(t, err, want)
	_, err = tx.Prepare(ctx, "", "SELECT 1")
	require.ErrorIs(t, err, want)
	b := &pgx.Batch{}
	b.Queue("SELECT 1")
	require.ErrorIs(t, tx.SendBatch(ctx, b).Close(), want)
}

// A goroutine that outlives its handler, in the middle of a statement, neither
// keeps the answer waiting beyond its deadline nor gets at somebody else's
// transaction.
func TestGoroutineLeftInAStatementLosesItsSession(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	left := make(chan error, 1)
	go func() {
		_, err := pgstore.Tx(ctx).Exec(context.WithoutCancel(ctx), "SELECT pg_sleep(60)")
		left <- err
	}()
	require.Eventually(t, func() bool {
		return pgtest.Value[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)' AND state = 'active'") > 0
	}, 10*time.Second, time.Millisecond)

	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := claim.Lease.Complete(short, answer(201, "done"), time.Hour)
	require.ErrorIs(t, err, server.ErrRolledBack)
	require.Error(t, <-left)
	require.Equal(t, 0, effects(t, db, "key"))
}

// One that reads rows is not told that it has read them all.
func TestGoroutineLeftReadingRowsIsStopped(t *testing.T) {
	t.Parallel()
	claim, ctx := begun(t, open(t, pgstore.Transactional, newDB(t)), request("key"))
	reads, left := make(chan struct{}), make(chan error, 1)
	go func() {
		rows, _ := pgstore.Tx(ctx).Query(ctx, "SELECT * FROM generate_series(1, 10000000)")
		rows.Next()
		close(reads)
		for rows.Next() {
		}
		left <- rows.Err()
		rows.Close()
	}()
	<-reads
	_, err := claim.Lease.Complete(t.Context(), answer(201, "done"), time.Hour)
	require.ErrorIs(t, err, server.ErrRolledBack)
	require.ErrorIs(t, <-left, pgx.ErrTxClosed)
}

// One that waits for something else than the database keeps nothing but its
// connection, and that from the pool only.
func TestGoroutineLeftInACopyKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim, ctx := begun(t, store, request("key"))
	source := endless{asked: make(chan struct{}, 1), end: make(chan struct{})}
	left := make(chan error, 1)
	go func() {
		_, err := pgstore.Tx(ctx).CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"key"}, source)
		left <- err
	}()
	<-source.asked
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := claim.Lease.Complete(short, answer(201, "done"), time.Hour)
	require.ErrorIs(t, err, server.ErrRolledBack)
	next, _ := comesToOwn(t, store, request("key"))
	require.NoError(t, inTransaction(next.Lease.Context(t.Context()), next.Operation))
	completed(t, next, answer(201, "done"))
	close(source.end)
	require.Error(t, <-left)
	require.Equal(t, 1, effects(t, db, "key"))
}

// endless is a source of rows that has none before its end.
type endless struct{ asked, end chan struct{} }

func (e endless) Next() bool {
	e.asked <- struct{}{}
	<-e.end
	return false
}

func (endless) Values() ([]any, error) { return nil, nil }
func (endless) Err() error             { return nil }

func TestCompletionThatFailedIsGivenUp(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	pool := db.Pool(t)
	store := pgstore.Transactional(pool)
	store.Logger = quiet
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := claim.Lease.Complete(canceled, answer(201, "done"), time.Hour)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, claim.Lease.Release(t.Context(), err))
	require.Zero(t, pool.Stat().AcquiredConns())
	require.Equal(t, 0, effects(t, db, "key"))
	require.Equal(t, 2, owned(t, store, request("key")).Operation.Attempt)
}

func TestCompletionThatMeetsAnotherRunsAgain(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	other := owned(t, open(t, pgstore.New, db), request("key")) // does not know about locks
	_, err := claim.Lease.Complete(t.Context(), answer(201, "one"), time.Hour)
	require.ErrorIs(t, err, server.ErrRestart)
	require.Equal(t, 0, effects(t, db, "key"))
	completed(t, other, answer(201, "other"))
	require.Equal(t, "other", string(found(t, store, request("key")).Response.Body))
}

func TestRejectionThatMeetsAnotherGivesWay(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim, _ := begun(t, store, request("key"))
	other := owned(t, open(t, pgstore.New, db), request("key"))
	completed(t, other, answer(201, "other"))
	rec, err := claim.Lease.Complete(t.Context(), answer(404, "one"), time.Hour)
	require.NoError(t, err)
	require.Equal(t, "other", string(rec.Response.Body))
}

func TestDeadRecordIsReplaced(t *testing.T) {
	t.Parallel()
	for name, dead := range map[string]string{
		"failed":     "UPDATE idem_operations SET status = 'failed', lease_until = NULL",
		"expired":    "UPDATE idem_operations SET expires_at = now() - interval '1 second', lease_until = now() - interval '1 minute'",
		"owner lost": "UPDATE idem_operations SET lease_until = now()",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			store := open(t, pgstore.Transactional, db)
			before := owned(t, open(t, pgstore.New, db), request("key"))
			db.Exec(t, dead)
			claim, ctx := begun(t, store, request("key"))
			require.Equal(t, name != "expired", claim.Operation.ID == before.Operation.ID)
			require.Equal(t, map[bool]int{true: 1, false: 2}[name == "expired"], claim.Operation.Attempt)
			require.Equal(t, name == "owner lost", claim.TakenOver)
			done(t, ctx, "key")
			completed(t, claim, answer(201, "done"))
			require.Equal(t, 1, effects(t, db, "key"))
			require.Equal(t, "done", string(found(t, store, request("key")).Response.Body))
		})
	}
}

func TestDeadRecordThatCameToLifeIsNotReplaced(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store, leases := open(t, pgstore.Transactional, db), open(t, pgstore.New, db)
	require.NoError(t, owned(t, leases, request("key")).Lease.Release(t.Context(), nil))
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	owned(t, leases, request("key"))
	_, err := claim.Lease.Complete(t.Context(), answer(201, "done"), time.Hour)
	require.ErrorIs(t, err, server.ErrRestart)
	require.Equal(t, 0, effects(t, db, "key"))
	require.Equal(t, "processing", recorded(t, db, "key"))
}

func TestOperationIDSurvivesACrashAndIsItsTablesOwn(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim := owned(t, store, request("key"))
	isVersion8(t, claim.Operation.ID)
	db.Terminate(t, "state = 'idle in transaction'")
	next, _ := comesToOwn(t, open(t, pgstore.Transactional, db), request("key"))
	require.Equal(t, claim.Operation, next.Operation)

	otherDB := pgtest.New(t)
	require.NoError(t, pgstore.Migrate(t.Context(), otherDB.Pool(t)))
	elsewhere := owned(t, open(t, pgstore.Transactional, otherDB), request("key"))
	require.NotEqual(t, claim.Operation.ID, elsewhere.Operation.ID)
}

// hangs stops the next such statement on its way until goOn is called, which
// cuts its connection.
func hangs(t *testing.T, w *wire, statement string) (arrived chan struct{}, goOn func()) {
	t.Helper()
	arrived, released := make(chan struct{}), make(chan struct{})
	goOn = sync.OnceFunc(func() { close(released) })
	t.Cleanup(goOn)
	w.Intercept(onceAt(statement, func(pgtest.Statement) pgtest.Verdict {
		close(arrived)
		<-released
		return pgtest.Cut
	}))
	return arrived, goOn
}

func TestUnknownCommitIsLookedUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verdict pgtest.Verdict
		err     error
		effects int
	}{
		"committed":     {pgtest.CutReply, nil, 1},
		"not committed": {pgtest.Cut, server.ErrRestart, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			w := newWire(t, db)
			store := open(t, pgstore.Transactional, w.DB)
			claim, ctx := begun(t, store, request("key"))
			done(t, ctx, "key")
			cut := onceAt("COMMIT", always(c.verdict))
			w.Intercept(func(s pgtest.Statement) pgtest.Verdict {
				w.note(s)
				return cut(s)
			})
			w.reset()
			rec, err := claim.Lease.Complete(t.Context(), answer(201, "done"), time.Hour)
			require.ErrorIs(t, err, c.err)
			if c.err == nil {
				require.Equal(t, "done", string(rec.Response.Body))
			}
			require.Equal(t, c.effects, effects(t, db, "key"))
			require.Contains(t, w.seen(), "SELECT pg_advisory_xact_lock($1::bigint)", "under the key's lock")
		})
	}
}

// As long as the server may still be committing, the answer is neither known
// nor may the operation run again.
func TestUnknownCommitOfASessionThatLivesIsNotGuessed(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	store := open(t, pgstore.Transactional, w.DB)
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	_, goOn := hangs(t, w, "COMMIT")
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := claim.Lease.Complete(short, answer(201, "done"), time.Hour)
	require.ErrorContains(t, err, "unknown")
	require.NotErrorIs(t, err, server.ErrRestart)
	require.NotErrorIs(t, err, server.ErrRolledBack)
	require.Less(t, time.Since(began), 3*time.Second)
	goOn()
	next, _ := comesToOwn(t, open(t, pgstore.Transactional, db), request("key"))
	require.NoError(t, next.Lease.Release(t.Context(), nil))
}

func TestRejectionIsStoredAlsoAfterItsSessionIsLost(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db.With("application_name", "victim"))
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	db.Terminate(t, "application_name = 'victim' AND state = 'idle in transaction'")
	completed(t, claim, answer(404, "rejected"))
	require.Equal(t, 0, effects(t, db, "key"))
	require.Equal(t, "rejected", string(found(t, store, request("key")).Response.Body))
}

func TestRejectionNeedsNoSecondConnection(t *testing.T) {
	t.Parallel()
	pool := newDB(t).With("pool_max_conns", "2").Pool(t)
	store := pgstore.Transactional(pool)
	store.Logger = quiet
	claim := owned(t, store, request("key"))
	other, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer other.Release()
	completed(t, claim, answer(404, "rejected"))
}
