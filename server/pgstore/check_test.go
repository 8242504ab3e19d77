package pgstore_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

func TestCheckSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open func(t *testing.T) *pgtest.DB
		want string
	}{
		"no schema": {
			func(t *testing.T) *pgtest.DB { t.Helper(); return pgtest.New(t) },
			"run pgstore.Migrate",
		},
		"a standby": {
			func(t *testing.T) *pgtest.DB {
				t.Helper()
				return shadowed(t, newDB(t), "CREATE FUNCTION shadow.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'")
			},
			"target_session_attrs=read-write",
		},
		"prepared statements behind pgbouncer": {
			func(t *testing.T) *pgtest.DB { t.Helper(); return newDB(t).Bouncer(t) },
			"default_query_exec_mode=cache_describe",
		},
		"described statements behind pgbouncer": {
			func(t *testing.T) *pgtest.DB {
				t.Helper()
				return newDB(t).Bouncer(t).With("default_query_exec_mode", "describe_exec")
			},
			"default_query_exec_mode=cache_describe",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := pgstore.New(c.open(t).Pool(t))
			store.Logger = quiet
			require.ErrorContains(t, store.Check(t.Context()), c.want)
			_, err := store.Claim(t.Context(), request("key"))
			require.ErrorContains(t, err, c.want, "the first claim checks too")
		})
	}
}

func TestCheckLeavesNothingBehindThePooler(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := pgstore.New(db.Bouncer(t).Pool(t))
	store.Logger = quiet
	for range 3 {
		require.Error(t, store.Check(t.Context()))
	}
	pool, err := pgstore.Open(t.Context(), db.Bouncer(t).URL)
	require.NoError(t, err)
	defer pool.Close()
	var prepared int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'idem%'").Scan(&prepared))
	require.Equal(t, 0, prepared)
}

func TestAStoreWithoutAPoolSaysSo(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]*pgstore.Store{
		"zero value":    {Table: "orders"},
		"New":           pgstore.New(nil),
		"Transactional": pgstore.Transactional(nil),
		"FromDB":        pgstore.FromDB(nil),
	} {
		const want = "pgstore: the Store has no pool: give one to New or Transactional, or a sql.DB to FromDB"
		require.EqualError(t, store.Check(t.Context()), want, name)
		_, err := store.Claim(t.Context(), server.ClaimRequest{
			ID: server.ID{Account: "a", Key: "k"}, Lease: time.Second, TTL: time.Hour,
		})
		require.EqualError(t, err, want, name)
	}
}

func TestFailedCheckIsNotKept(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	store := pgstore.New(db.Pool(t))
	store.Logger = quiet
	_, err := store.Claim(t.Context(), request("key"))
	require.Error(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	completed(t, owned(t, store, request("key")), answer(201, "done"))
}

func TestCheckWarnsOfSettingsThatLoseAnswers(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	store := pgstore.New(newDB(t).Pool(t))
	store.Logger = slog.New(slog.NewTextHandler(&log, nil))
	require.NoError(t, store.Check(t.Context()))
	require.Contains(t, log.String(), `off="[fsync full_page_writes synchronous_commit]"`)

	log.Reset()
	steps, err := pgstore.Migrations("")
	require.NoError(t, err)
	safe := pgstore.New(pgtest.NewIn(t, pgtest.CrashSafe, steps...).Pool(t))
	safe.Logger = slog.New(slog.NewTextHandler(&log, nil))
	require.NoError(t, safe.Check(t.Context()))
	require.Empty(t, log.String())
}

func TestCheckEndsWithItsContext(t *testing.T) {
	t.Parallel()
	pool := newDB(t).With("pool_max_conns", "2").Pool(t)
	for range 2 {
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
	}
	store := pgstore.New(pool)
	began := time.Now()
	claims := make(chan error, 20)
	for range cap(claims) {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := store.Claim(ctx, request("key"))
			claims <- err
		}()
	}
	for range cap(claims) {
		require.ErrorIs(t, <-claims, context.DeadlineExceeded)
	}
	require.Less(t, time.Since(began), 3*time.Second)
}

func TestPoolOfOne(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	for name, newStore := range modes {
		store := newStore(db.With("pool_max_conns", "1").Pool(t))
		store.Logger = quiet
		require.NoError(t, store.Check(t.Context()))
		for _, status := range []int{201, 404} {
			req := request(fmt.Sprintf("%s/%d", name, status))
			completed(t, owned(t, store, req), answer(status, "done"))
			require.Equal(t, server.Completed, found(t, store, req).Status)
		}
	}
}

func TestOpenChoosesAModeForPoolers(t *testing.T) {
	t.Parallel()
	db := newDB(t).Bouncer(t)
	pool, err := pgstore.Open(t.Context(), db.URL)
	require.NoError(t, err)
	defer pool.Close()
	require.Equal(t, pgx.QueryExecModeCacheDescribe, pool.Config().ConnConfig.DefaultQueryExecMode)
	store := pgstore.Transactional(pool)
	store.Logger = quiet
	require.NoError(t, store.Check(t.Context()))

	given, err := pgstore.Open(t.Context(), db.With("default_query_exec_mode", "cache_statement").URL)
	require.NoError(t, err)
	defer given.Close()
	require.Equal(t, pgx.QueryExecModeCacheStatement, given.Config().ConnConfig.DefaultQueryExecMode)
}

func TestOpenDoesNotRepeatAConnectionStringThatIsMalformed(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"host=db password = 'open sesame' port=abc": "cannot parse `the connection string`: invalid port",
		"host=db password='open sesame port=1":      "unterminated quoted string",
		"sesame":                                    "invalid keyword/value",
		"postgres://u:open@sesame@db/shop":          "in a password it is written as %40",
		"postgres://u:open/sesame@db/shop":          "invalid port",
	} {
		_, err := pgstore.Open(t.Context(), dsn)
		require.ErrorContains(t, err, want, dsn)
		require.NotContains(t, err.Error(), "sesame")
	}
}

func TestOpenWithSeveralHostsTakesTheOneForWrites(t *testing.T) {
	t.Parallel()
	pool, err := pgstore.Open(t.Context(), pgtest.New(t).URL)
	require.NoError(t, err)
	defer pool.Close()
	require.Nil(t, pool.Config().ConnConfig.ValidateConnect)

	host := pool.Config().ConnConfig.Host
	several, err := pgstore.Open(t.Context(), "user=postgres dbname=postgres sslmode=disable host="+host+","+host+" port=1,5432")
	require.NoError(t, err)
	defer several.Close()
	require.NotNil(t, several.Config().ConnConfig.ValidateConnect)

	_, err = pgstore.Open(t.Context(), "port=none")
	require.Error(t, err)
	_, err = pgstore.Open(t.Context(), "host=/nonexistent")
	require.Error(t, err)
}

// shadowed returns db with functions that take the place of the server's own.
func shadowed(t *testing.T, db *pgtest.DB, functions string) *pgtest.DB {
	t.Helper()
	db.Exec(t, "CREATE SCHEMA shadow; "+functions)
	return db.With("search_path", "public,shadow,pg_catalog")
}
