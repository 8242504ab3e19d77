package pgstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
	"github.com/idemhttp/idem/server/storetest"
)

// sqlDB returns db for those who work with database/sql.
func sqlDB(t *testing.T, db *pgtest.DB) *sql.DB {
	t.Helper()
	opened, err := sql.Open("pgx", db.URL)
	require.NoError(t, err)
	opened.SetMaxOpenConns(16)
	opened.SetMaxIdleConns(16)
	t.Cleanup(func() { require.NoError(t, opened.Close()) })
	return opened
}

func openFromDB(t *testing.T, db *pgtest.DB) *pgstore.Store {
	t.Helper()
	return checked(t, pgstore.FromDB(sqlDB(t, db)))
}

func checked(t *testing.T, store *pgstore.Store) *pgstore.Store {
	t.Helper()
	store.Logger = quiet
	require.NoError(t, store.Check(t.Context()))
	return store
}

// sqlTx returns the transaction in which the handler with ctx works.
func sqlTx(t *testing.T, ctx context.Context) *sql.Tx {
	t.Helper()
	tx, err := pgstore.SQLTx(ctx)
	require.NoError(t, err)
	return tx
}

func TestStoreFromDB(t *testing.T) {
	t.Parallel()
	for way, open := range map[string]func(*testing.T, *pgtest.DB) *pgtest.DB{
		"prepared statements": func(_ *testing.T, db *pgtest.DB) *pgtest.DB { return db },
		"pgbouncer and cached descriptions": func(t *testing.T, db *pgtest.DB) *pgtest.DB {
			t.Helper()
			return db.Bouncer(t).With("default_query_exec_mode", "cache_describe")
		},
		"locks that are not real": withoutLocks,
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			db := open(t, pgtest.New(t))
			one, other := sqlDB(t, db), sqlDB(t, db)
			var tables atomic.Int64
			storetest.RunShared(t, func(t *testing.T) (server.Store, server.Store) {
				t.Helper()
				store, peer := pgstore.FromDB(one), pgstore.FromDB(other)
				store.Table = fmt.Sprintf("records_%d", tables.Add(1))
				peer.Table = store.Table
				store.Logger, peer.Logger = quiet, quiet
				require.NoError(t, store.Migrate(t.Context()))
				return store, peer
			})
		})
	}
}

func TestAnswerDecidesHowASQLTransactionEnds(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := openFromDB(t, db)
	for _, c := range []struct {
		name    string
		status  int
		handler func(ctx context.Context, tx *sql.Tx)
		err     error
		effects int
		record  string
	}{
		{name: "201 commits", status: 201, effects: 1, record: "completed"},
		{name: "404 is stored and rolls back", status: 404, record: "completed"},
		{name: "422 after an error of the database is stored", status: 422, handler: sqlExec("SELECT 1/0"), record: "completed"},
		{name: "201 after an error that was ignored is not believed", status: 201, handler: sqlExec("SELECT 1/0"), err: server.ErrRolledBack},
		{
			name: "201 after an error that a savepoint healed commits", status: 201, effects: 1, record: "completed",
			handler: sqlExec("SAVEPOINT a", "SELECT 1/0", "ROLLBACK TO a"),
		},
		{name: "201 with rows left open commits", status: 201, handler: leavingSQLRows, effects: 1, record: "completed"},
		{
			name: "201 with rows left open that end in an error is not believed", status: 201,
			handler: leavingSQLRowsThatFail, err: server.ErrRolledBack,
		},
		{name: "201 after a deadlock runs again", status: 201, handler: sqlExec(raise("40P01")), err: server.ErrRestart},
		{name: "409 after a serialization failure runs again", status: 409, handler: sqlExec(raise("40001")), err: server.ErrRestart},
		{name: "201 after a serialization failure in a query runs again", status: 201, handler: sqlQuery, err: server.ErrRestart},
		{name: "201 after a serialization failure in a later row runs again", status: 201, handler: sqlLaterRow, err: server.ErrRestart},
		{name: "201 after a serialization failure in a prepared query runs again", status: 201, handler: sqlPreparedQuery, err: server.ErrRestart},
		{name: "201 after a serialization failure in a prepared statement runs again", status: 201, handler: sqlPreparedExec, err: server.ErrRestart},
		{name: "201 after the handler's own Commit commits", status: 201, handler: sqlCommit, effects: 1, record: "completed"},
		{name: "201 after the handler's own Rollback commits", status: 201, handler: sqlRollback, effects: 1, record: "completed"},
		{name: "404 after the handler's own Commit rolls back", status: 404, handler: sqlCommit, record: "completed"},
		{name: "201 after a statement of its own that committed is stored", status: 201, handler: sqlExec("COMMIT"), effects: 1, record: "completed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			claim, ctx := begun(t, store, request(c.name))
			tx := sqlTx(t, ctx)
			_, err := tx.ExecContext(ctx, insertEffect, c.name, claim.Operation.ID, 1)
			require.NoError(t, err)
			if c.handler != nil {
				c.handler(ctx, tx)
			}
			r := answer(c.status, "said")
			rec, err := claim.Lease.Complete(t.Context(), r, time.Hour)
			require.Equal(t, c.effects, effects(t, db, c.name))
			require.Equal(t, c.record, recorded(t, db, c.name))
			_, late := tx.ExecContext(t.Context(), "SELECT 1")
			require.ErrorIs(t, late, sql.ErrTxDone)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				require.Equal(t, claim.Operation, owned(t, store, request(c.name)).Operation)
				return
			}
			require.NoError(t, err)
			require.Equal(t, &r, rec.Response)
			require.Equal(t, r, *found(t, store, request(c.name)).Response)
		})
	}
}

func raise(code string) string {
	return "DO $$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = '" + code + "'; END $$"
}

func sqlExec(statements ...string) func(context.Context, *sql.Tx) {
	return func(ctx context.Context, tx *sql.Tx) {
		for _, s := range statements {
			_, _ = tx.ExecContext(ctx, s)
		}
	}
}

func leavingSQLRows(ctx context.Context, tx *sql.Tx) {
	rows, err := tx.QueryContext(ctx, "SELECT * FROM generate_series(1, 100000)") //nolint:sqlclosecheck,rowserrcheck // that is the point
	if err == nil {
		rows.Next()
	}
}

func leavingSQLRowsThatFail(ctx context.Context, tx *sql.Tx) {
	rows, err := tx.QueryContext(ctx, "SELECT 1/(10000-n) FROM generate_series(1, 10000) AS n") //nolint:sqlclosecheck,rowserrcheck // that is the point
	if err == nil {
		rows.Next()
	}
}

func sqlQuery(ctx context.Context, tx *sql.Tx) {
	_, _ = tx.ExecContext(ctx, createRaise)
	_ = tx.QueryRowContext(ctx, raise40001).Scan(new(int))
}

func sqlLaterRow(ctx context.Context, tx *sql.Tx) {
	_, _ = tx.ExecContext(ctx, createRaise)
	rows, err := tx.QueryContext(ctx, "SELECT CASE WHEN n = 1000 THEN pg_temp.raise() END FROM generate_series(1, 1000) AS n") //nolint:rowserrcheck // that is the point
	if err != nil {
		return
	}
	defer rows.Close()
	for rows.Next() {
	}
}

func sqlPreparedQuery(ctx context.Context, tx *sql.Tx) {
	_, _ = tx.ExecContext(ctx, createRaise)
	statement, err := tx.PrepareContext(ctx, raise40001)
	if err != nil {
		return
	}
	defer statement.Close()
	_ = statement.QueryRowContext(ctx).Scan(new(int))
}

func sqlPreparedExec(ctx context.Context, tx *sql.Tx) {
	_, _ = tx.ExecContext(ctx, createRaise)
	statement, err := tx.PrepareContext(ctx, raise40001)
	if err != nil {
		return
	}
	defer statement.Close()
	_, _ = statement.ExecContext(ctx)
}

func sqlCommit(_ context.Context, tx *sql.Tx) { _ = tx.Commit() }

func sqlRollback(_ context.Context, tx *sql.Tx) { _ = tx.Rollback() }

func TestSQLTransactionIsTheOperations(t *testing.T) {
	t.Parallel()
	store := openFromDB(t, newDB(t))
	for name, end := range map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		claim, ctx := begun(t, store, request(name))
		tx := sqlTx(t, ctx)
		require.ErrorIs(t, end(tx), pgstore.ErrTxOwned)
		require.ErrorIs(t, end(tx), sql.ErrTxDone)
		require.NoError(t, claim.Lease.Release(t.Context(), nil))
	}
}

func TestSQLTransactionIsThereOnRoutesOfItsStoreOnly(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	_, err := pgstore.SQLTx(t.Context())
	require.ErrorIs(t, err, pgstore.ErrNoTx)
	_, ctx := begun(t, open(t, pgstore.Transactional, db), request("pgx"))
	_, err = pgstore.SQLTx(ctx)
	require.ErrorIs(t, err, pgstore.ErrNoTx)
	_, ctx = begun(t, openFromDB(t, db), request("database/sql"))
	isOver(t, ctx, pgstore.Tx(ctx), pgstore.ErrNoTx)
}

func TestOperationInASQLTransactionCostsNoRoundTripMore(t *testing.T) {
	t.Parallel()
	w := newWire(t, newDB(t))
	db := sqlDB(t, w.DB)
	db.SetMaxOpenConns(1)
	store := checked(t, pgstore.FromDB(db))
	run := func(key string) {
		_, err := execute(t.Context(), store, request(key), inSQLTransaction)
		require.NoError(t, err)
	}
	run("prepares the statements")
	before := w.Flights()
	run("key")
	require.Equal(t, 3, w.Flights()-before, "claim, effect, completion")
}

// inSQLTransaction is inTransaction by way of database/sql.
func inSQLTransaction(ctx context.Context, op server.Operation) error {
	tx, err := pgstore.SQLTx(ctx)
	if err == nil {
		_, err = tx.ExecContext(ctx, insertEffect, op.Key, op.ID, op.Attempt)
	}
	return err
}

func TestRetriesAcrossPgxAndDatabaseSQLReplay(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	bySQL, byPgx := openFromDB(t, db), open(t, pgstore.Transactional, db)
	claim, _ := begun(t, bySQL, request("key"))
	require.Equal(t, server.Processing, found(t, byPgx, request("key")).Status)
	completed(t, claim, answer(201, "done"))
	require.Equal(t, "done", string(found(t, byPgx, request("key")).Response.Body))
}

func TestFromDBOfAPgxPool(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	pool := db.Pool(t)
	opened := stdlib.OpenDBFromPool(pool)
	defer opened.Close()
	_, err := execute(t.Context(), checked(t, pgstore.FromDB(opened)), request("key"), inSQLTransaction)
	require.NoError(t, err)
	require.Equal(t, 1, effects(t, db, "key"))
	require.Equal(t, server.Completed, found(t, checked(t, pgstore.New(pool)), request("key")).Status)
}

func TestSQLTransactionSurvivesTheContextOfItsClaim(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := openFromDB(t, db)
	short, cancel := context.WithCancel(t.Context())
	claim, err := store.Claim(short, request("key"))
	require.NoError(t, err)
	require.NoError(t, inSQLTransaction(claim.Lease.Context(t.Context()), claim.Operation))
	cancel()
	completed(t, claim, answer(201, "done"))
	require.Equal(t, 1, effects(t, db, "key"))
}

func TestSQLTransactionOfALostSessionRunsAgain(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := openFromDB(t, db.With("application_name", "victim"))
	claim, ctx := begun(t, store, request("key"))
	require.NoError(t, inSQLTransaction(ctx, claim.Operation))
	require.Equal(t, 1, db.Terminate(t, "application_name = 'victim' AND state = 'idle in transaction'"))
	require.Error(t, inSQLTransaction(ctx, claim.Operation))
	_, err := claim.Lease.Complete(t.Context(), answer(201, "all is well"), time.Hour)
	require.ErrorIs(t, err, server.ErrRestart)
	next, _ := comesToOwn(t, store, request("key"))
	require.NoError(t, inSQLTransaction(next.Lease.Context(t.Context()), next.Operation))
	completed(t, next, answer(201, "done"))
	require.Equal(t, 1, effects(t, db, "key"))
}

func TestDeadConnectionsOfASQLDBAreReplaced(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	opened := sqlDB(t, db.With("application_name", "victim"))
	store := checked(t, pgstore.FromDB(opened))
	for round := range 3 {
		require.Positive(t, db.Terminate(t, "application_name = 'victim'"))
		_, err := execute(t.Context(), store, request(fmt.Sprint(round)), inSQLTransaction)
		require.NoError(t, err)
	}
	require.Equal(t, 0, opened.Stats().InUse)
}

// A handler that panics is released by the middleware, whatever its transaction
// was in the middle of.
func TestPanicReturnsTheConnectionOfASQLTransaction(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	opened := sqlDB(t, db)
	h := guarded(checked(t, pgstore.FromDB(opened)), func(w http.ResponseWriter, r *http.Request) {
		op, _ := server.OperationFrom(r.Context())
		tx, err := pgstore.SQLTx(r.Context())
		if err != nil || inSQLTransaction(r.Context(), op) != nil {
			http.Error(w, "no effect", http.StatusInternalServerError)
			return
		}
		if op.Attempt == 1 {
			leavingSQLRows(r.Context(), tx)
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusCreated)
	})
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { post(h, "key", "{}") })
	require.Equal(t, 0, effects(t, db, "key"))
	require.Equal(t, http.StatusCreated, post(h, "key", "{}").Code)
	require.Equal(t, 1, effects(t, db, "key"))
	require.Eventually(t, func() bool { return opened.Stats().InUse == 0 }, 10*time.Second, time.Millisecond)
}

func TestGoroutineLeftInASQLStatementLosesItsSession(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	claim, ctx := begun(t, openFromDB(t, db), request("key"))
	require.NoError(t, inSQLTransaction(ctx, claim.Operation))
	tx, left := sqlTx(t, ctx), make(chan error, 1)
	go func() {
		_, err := tx.ExecContext(context.WithoutCancel(ctx), "SELECT pg_sleep(60)")
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

// Rows in whose memory the handler may still read cannot be closed by anybody
// else. They keep neither the answer waiting nor the connection.
func TestRawBytesLeftInOpenRowsLoseTheirSession(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	opened := sqlDB(t, db)
	opened.SetMaxOpenConns(1)
	store := checked(t, pgstore.FromDB(opened))
	claim, ctx := begun(t, store, request("key"))
	require.NoError(t, inSQLTransaction(ctx, claim.Operation))
	rows, err := sqlTx(t, ctx).QueryContext(ctx, "SELECT 'x'::bytea FROM generate_series(1, 3)")
	require.NoError(t, err)
	defer rows.Close()
	require.True(t, rows.Next())
	require.NoError(t, rows.Scan(new(sql.RawBytes)))

	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = claim.Lease.Complete(short, answer(201, "done"), time.Hour)
	require.ErrorIs(t, err, server.ErrRolledBack)
	next, _ := comesToOwn(t, store, request("key"))
	require.NoError(t, inSQLTransaction(next.Lease.Context(t.Context()), next.Operation))
	completed(t, next, answer(201, "done"))
	require.Equal(t, 1, effects(t, db, "key"))
	require.False(t, rows.Next())
	require.Error(t, rows.Err())
}

func TestWaitingHoldsNoConnectionOfASQLDB(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	opened := sqlDB(t, db)
	opened.SetMaxOpenConns(1)
	store := checked(t, pgstore.FromDB(opened))
	owner, _ := begun(t, openFromDB(t, db), request("key"))
	waited := make(chan error, 10)
	for range cap(waited) {
		go func() { waited <- store.Wait(t.Context(), request("key").ID) }()
	}
	other := request("other")
	completed(t, owned(t, store, other), answer(201, "done"))
	require.Equal(t, server.Completed, found(t, store, other).Status)
	completed(t, owner, answer(201, "done"))
	for range cap(waited) {
		require.NoError(t, <-waited)
	}

	owned(t, store, request("holds the only connection"))
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := store.Claim(short, request("gets none"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestFinishInASQLTransaction(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	opened := sqlDB(t, db)
	store := checked(t, pgstore.FromDB(opened))
	claim := owned(t, store, request("key"))
	acceptor, ok := claim.Lease.(server.Acceptor)
	require.True(t, ok)
	ticket := acceptor.Ticket()
	_, err := acceptor.Accept(t.Context(), answer(202, "soon"), time.Minute)
	require.NoError(t, err)

	finish := func(body string) error {
		tx, err := opened.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), insertEffect, "key", claim.Operation.ID, 1)
		require.NoError(t, err)
		if err := store.FinishSQLTx(t.Context(), tx, ticket, answer(201, body), time.Hour); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	require.NoError(t, finish("first"))
	require.ErrorIs(t, finish("second"), server.ErrLeaseLost)
	require.Equal(t, 1, effects(t, db, "key"))
	require.Equal(t, "first", string(found(t, store, request("key")).Response.Body))
}

func TestFromDBRefusesOtherDrivers(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(otherDriver{})
	defer db.Close()
	store := pgstore.FromDB(db)
	require.ErrorIs(t, store.Check(t.Context()), pgstore.ErrDriver)
	_, err := store.Claim(t.Context(), request("key"))
	require.ErrorIs(t, err, pgstore.ErrDriver)
	require.ErrorContains(t, err, "pgstore_test.otherDriver")
	require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, 10*time.Second, time.Millisecond)
}

// otherDriver is none of pgx's.
type otherDriver struct{ driver.Conn }

func (d otherDriver) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (d otherDriver) Driver() driver.Driver                        { return nil }
func (d otherDriver) Close() error                                 { return nil }

func TestCheckOfASQLDBSaysWhatToDo(t *testing.T) {
	t.Parallel()
	store := pgstore.FromDB(sqlDB(t, newDB(t).Bouncer(t)))
	store.Logger = quiet
	require.ErrorContains(t, store.Check(t.Context()), "default_query_exec_mode=cache_describe")

	unreachable, err := sql.Open("pgx", "host=/nonexistent")
	require.NoError(t, err)
	defer unreachable.Close()
	require.ErrorContains(t, pgstore.FromDB(unreachable).Check(t.Context()), "/nonexistent")
}

func TestStatementsOfASQLDBDoNotFitItsOperations(t *testing.T) {
	t.Parallel()
	opened := sqlDB(t, newDB(t))
	statement, err := opened.PrepareContext(t.Context(), "SELECT 1")
	require.NoError(t, err)
	defer statement.Close()
	_, ctx := begun(t, checked(t, pgstore.FromDB(opened)), request("key"))
	inOperation := sqlTx(t, ctx).StmtContext(ctx, statement)
	defer inOperation.Close()
	require.ErrorContains(t, inOperation.QueryRowContext(ctx).Scan(new(int)), "different database")
}
