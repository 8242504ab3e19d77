package pgtest

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// DB is a database that belongs to one test.
type DB struct {
	// URL is its connection string.
	URL string

	direct string // the same, past any pooler or proxy
}

// New returns a new database on the Fast cluster in which the statements of
// schema have been run. It is dropped when the test ends.
func New(tb testing.TB, schema ...string) *DB {
	tb.Helper()
	return NewIn(tb, Fast, schema...)
}

// NewIn is New on the cluster with the settings of mode.
func NewIn(tb testing.TB, mode Mode, schema ...string) *DB {
	tb.Helper()
	c, err := clusters[mode]()
	require.NoError(tb, err)
	name, err := c.create(tb.Context(), strings.Join(schema, ";\n"))
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(tb, c.drop(ctx, name))
	})
	return &DB{URL: c.urlOf(name), direct: c.urlOf(name)}
}

// With returns the same database with one more parameter in its URL, such as
// pool_max_conns or default_query_exec_mode.
func (db *DB) With(parameter, value string) *DB {
	return &DB{URL: with(db.URL, parameter, value), direct: db.direct}
}

// Pool returns a pool on the database, closed when the test ends. What the
// URL leaves open is set for tests: up to 16 connections.
func (db *DB) Pool(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(tb, err)
	if !strings.Contains(db.URL, "pool_max_conns") {
		config.MaxConns = 16
	}
	pool, err := pgxpool.NewWithConfig(tb.Context(), config)
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

// Exec runs statements directly on the database, past any pooler or proxy.
func (db *DB) Exec(tb testing.TB, sql string, arguments ...any) {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), db.direct)
	require.NoError(tb, err)
	defer conn.Close(tb.Context())
	_, err = conn.Exec(tb.Context(), sql, arguments...)
	require.NoError(tb, err)
}

// Value returns the one value that a query gives, directly from the database.
func Value[T any](tb testing.TB, db *DB, sql string, arguments ...any) (value T) {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), db.direct)
	require.NoError(tb, err)
	defer conn.Close(tb.Context())
	require.NoError(tb, conn.QueryRow(tb.Context(), sql, arguments...).Scan(&value))
	return value
}

// Terminate ends the sessions that condition, on columns of pg_stat_activity,
// selects among the others of the database, and returns how many there were.
func (db *DB) Terminate(tb testing.TB, condition string) int {
	tb.Helper()
	return Value[int](tb, db, `
		SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND `+condition)
}

func with(u, parameter, value string) string {
	parsed, err := url.Parse(u)
	if err != nil {
		panic(err) // every URL here was made or checked by this package
	}
	query := parsed.Query()
	query.Set(parameter, value)
	parsed.RawQuery = query.Encode()
	return parsed.String()
}
