package pgstore_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

func TestMigrateByTenProcessesAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var processes sync.WaitGroup
	start := make(chan struct{})
	for range 10 {
		pool := db.Pool(t)
		processes.Go(func() {
			<-start
			if err := pgstore.Migrate(t.Context(), pool); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	processes.Wait()
	require.Equal(t, 1, pgtest.Value[int](t, db, "SELECT count(*) FROM idem_operations_schema"))
	require.NoError(t, open(t, pgstore.New, db).Check(t.Context()))
}

func TestMigrateWithoutRealLocks(t *testing.T) {
	t.Parallel()
	direct := pgtest.New(t)
	db := withoutLocks(t, direct)
	var processes sync.WaitGroup
	for range 4 {
		pool := db.Pool(t)
		processes.Go(func() {
			if err := pgstore.Migrate(t.Context(), pool); err != nil {
				t.Error(err)
			}
		})
	}
	processes.Wait()
	require.Equal(t, 1, pgtest.Value[int](t, direct, "SELECT count(*) FROM idem_operations_schema"))
}

// The stand-in for Citus notes what is asked of it, and distributes nothing.
func TestMigrateDistributesTheTableThatItMakesWhereCitusIs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := shadowed(t, db, `
		CREATE VIEW shadow.pg_extension AS SELECT 'citus'::name AS extname;
		CREATE TABLE shadow.asked (what text);
		CREATE FUNCTION shadow.create_distributed_table(regclass, text) RETURNS void LANGUAGE sql
		AS $$ INSERT INTO shadow.asked VALUES (format('distribute %s by %s', $1, $2)) $$;
		CREATE FUNCTION shadow.create_reference_table(regclass) RETURNS void LANGUAGE sql
		AS $$ INSERT INTO shadow.asked VALUES (format('copy %s', $1)) $$`).Pool(t)
	for range 2 {
		require.NoError(t, pgstore.Migrate(t.Context(), pool))
	}
	require.Equal(t, "distribute idem_operations by account_id, copy idem_operations_schema",
		pgtest.Value[string](t, db, "SELECT string_agg(what, ', ') FROM shadow.asked"))
}

func TestMigrationsDoNothingTheSecondTime(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	claim := owned(t, open(t, pgstore.New, db), request("key"))
	completed(t, claim, answer(201, "done"))
	steps, err := pgstore.Migrations("")
	require.NoError(t, err)
	for range 2 {
		db.Exec(t, strings.Join(steps, ";"))
		require.NoError(t, pgstore.Migrate(t.Context(), db.Pool(t)))
	}
	require.Equal(t, "done", string(found(t, open(t, pgstore.New, db), request("key")).Response.Body))
}

func TestMigrateOnlyReadsWhenThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.Exec(t, "CREATE ROLE "+readerOf(t, db)+" LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+readerOf(t, db))
	require.NoError(t, pgstore.Migrate(t.Context(), db.With("user", readerOf(t, db)).Pool(t)))
}

func readerOf(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	return "reader_" + pgtest.Value[string](t, db, "SELECT current_database()::text")
}

func TestTableIsSelectable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "CREATE SCHEMA billing")
	store := pgstore.New(db.Pool(t))
	store.Logger = quiet
	store.Table = "billing.keys"
	require.NoError(t, store.Migrate(t.Context()))
	completed(t, owned(t, store, request("key")), answer(201, "done"))
	require.Equal(t, 1, pgtest.Value[int](t, db, "SELECT count(*) FROM billing.keys"))

	for _, name := range []string{"Keys", "a.b.c", "a b", "a;b", "1a", ".a", "a.", strings.Repeat("a", 49), `"a"`} {
		bad := pgstore.New(db.Pool(t))
		bad.Table = name
		require.ErrorContains(t, bad.Migrate(t.Context()), "table name", name)
		require.ErrorContains(t, bad.Check(t.Context()), "table name", name)
		_, err := pgstore.Migrations(name)
		require.ErrorContains(t, err, "table name", name)
	}
}

func TestWhatANewerVersionWroteIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"an answer":      "UPDATE idem_operations SET response_flags = 2",
		"a flag":         "UPDATE idem_operations SET response_flags = response_flags | 512",
		"a status":       "UPDATE idem_operations SET status = 'parked'",
		"a fingerprint":  `UPDATE idem_operations SET fingerprint = '\x01'`,
		"damaged fields": `UPDATE idem_operations SET response_headers = '\x01'`,
	} {
		for mode, newStore := range modes {
			t.Run(name+" in "+mode+" mode", func(t *testing.T) {
				t.Parallel()
				db := newDB(t)
				store := open(t, newStore, db)
				completed(t, owned(t, store, request("key")), answer(201, "done"))
				db.Exec(t, change)
				claim, err := store.Claim(t.Context(), request("key"))
				require.ErrorContains(t, err, "cannot read")
				require.Equal(t, server.Claim{}, claim)
			})
		}
	}
	t.Run("the schema", func(t *testing.T) {
		t.Parallel()
		db := newDB(t)
		db.Exec(t, "UPDATE idem_operations_schema SET version = 1000")
		store := pgstore.New(db.Pool(t))
		store.Logger = quiet
		const want = "the schema has version 1000, this program knows versions up to 1"
		require.ErrorContains(t, store.Migrate(t.Context()), want)
		require.ErrorContains(t, store.Check(t.Context()), want)
		_, err := store.Claim(t.Context(), request("key"))
		require.ErrorContains(t, err, want)
	})
}

func TestTextViewCanBeRead(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	completed(t, owned(t, open(t, pgstore.New, db), request("key")), answer(201, "caf\xe9 and \"text\""))
	require.Equal(t, `acme|key|completed|1|201|12:Content-Type,10:text/plain,|caf\351 and "text"|false`,
		pgtest.Value[string](t, db, `SELECT concat_ws('|', account_id, idempotency_key, status, attempt, response_status,
			response_headers, response_body, not_kept::text) FROM idem_operations_text`))
}

// A transaction of ours does not depend on the database's defaults.
func TestDefaultsOfTheDatabaseDoNotMatter(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			strict := db.With("default_transaction_isolation", "serializable").With("default_transaction_read_only", "on")
			store := open(t, newStore, strict)
			claim := owned(t, store, request("key"))
			require.Equal(t, server.Processing, found(t, store, request("key")).Status)
			completed(t, claim, answer(201, "done"))
			require.NoError(t, owned(t, store, request("failing")).Lease.Release(t.Context(), nil))
			require.Equal(t, "failed", recorded(t, db, "failing"))
			_, err := store.Cleanup(t.Context(), 1)
			require.NoError(t, err)
			_, err = store.Stats(t.Context())
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, store.Wait(ctx, request("key").ID))
		})
	}
}

// statementsOf returns the texts of all statements that stores of both modes
// send in their lives.
func statementsOf(t *testing.T) (statements []string) {
	t.Helper()
	db := newDB(t)
	w := newWire(t, db)
	var mu sync.Mutex
	seen := map[string]bool{}
	w.Intercept(func(s pgtest.Statement) pgtest.Verdict {
		mu.Lock()
		defer mu.Unlock()
		seen[s.SQL] = true
		return pgtest.Pass
	})
	for name, newStore := range modes {
		store := open(t, newStore, w.DB)
		completed(t, owned(t, store, request(name+" completed")), answer(201, "done"))
		found(t, store, request(name+" completed"))
		require.NoError(t, owned(t, store, request(name+" failed")).Lease.Release(t.Context(), nil))
		completed(t, owned(t, store, request(name+" failed")), answer(201, "done"))
		claim := owned(t, store, request(name+" rejected"))
		found(t, store, request(name+" rejected"))
		require.NoError(t, claim.Lease.Extend(t.Context(), time.Minute))
		completed(t, claim, answer(404, "rejected"))
		_, err := claim.Lease.Complete(t.Context(), answer(404, "again"), time.Hour)
		require.NoError(t, err)
		ticket := accepted(t, owned(t, store, request(name+" accepted")), time.Minute)
		require.NoError(t, store.Renew(t.Context(), ticket, time.Minute))
		_, err = store.Find(t.Context(), request(name+" accepted").ID)
		require.NoError(t, err)
		_, err = store.Finish(t.Context(), ticket, answer(201, "done"), time.Hour)
		require.NoError(t, err)
		require.NoError(t, store.Wait(t.Context(), request(name).ID))
		_, err = store.Cleanup(t.Context(), 1)
		require.NoError(t, err)
	}
	mu.Lock()
	defer mu.Unlock()
	for statement := range seen {
		if strings.Contains(statement, "idem_operations") {
			statements = append(statements, statement)
		}
	}
	return statements
}
