package pgstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemhttp/idem/server"
)

// ErrDriver says that the [sql.DB] of [FromDB] works with another driver than
// pgx. Checks and claims return it.
var ErrDriver = errors.New("pgstore: open the sql.DB with the driver of github.com/jackc/pgx/v5/stdlib")

// FromDB is [Transactional] for those who work with database/sql, be it by
// themselves or with sqlc, GORM, bun or ent. The handler gets its transaction
// from [SQLTx], and its effects commit together with its answer or not at all.
//
// The driver of db must be pgx's, as by sql.Open("pgx", dsn); see [ErrDriver].
// What is set of db holds: limits, lifetimes, and the parameters of its
// connection string, one of which has to be
// default_query_exec_mode=cache_describe behind a pooler in transaction mode.
// An operation costs no round trip more than with a pgx pool. For effects
// elsewhere use [New] with a pool, of which [stdlib.OpenDBFromPool] makes a
// sql.DB for everything else.
func FromDB(db *sql.DB) *Store {
	s := newStore(sqlPool{db})
	s.transactional = true
	return s
}

// SQLTx returns the transaction of the operation that ctx belongs to, on a route
// whose store is [FromDB]; elsewhere [ErrNoTx]. All effects that are to commit
// together with the answer go through it.
//
// Commit and Rollback return [ErrTxOwned] and end nothing in the database, but
// [sql.ErrTxDone] is all that the transaction returns after them. Savepoints are
// made by SQL, as GORM does for transactions in transactions. When the handler
// has returned, rows that it left open are closed, and whoever still has the
// transaction gets [sql.ErrTxDone]. Rows that were scanned into [sql.RawBytes]
// cannot be closed by anybody else: left open, they undo the operation.
//
// Statements that were prepared on the [sql.DB], as by sqlc with
// emit_prepared_queries, cannot be used in it, nor need they be: pgx prepares
// what a connection executes, and once. A handler must not end the transaction
// by a statement of its own, and must leave role and search_path such that the
// store's table can be written.
func SQLTx(ctx context.Context) (*sql.Tx, error) {
	if t, ok := ctx.Value(txKey{}).(*sqlTx); ok {
		return t.tx, nil
	}
	return nil, ErrNoTx
}

// FinishSQLTx is [Store.FinishTx] in a transaction of database/sql, of any
// [sql.DB] that works with pgx.
func (s *Store) FinishSQLTx(ctx context.Context, tx *sql.Tx, t server.Ticket, r server.Response, ttl time.Duration) error {
	result, err := tx.ExecContext(ctx, s.sql(complete), completion(t.Operation, r, ttl)...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return server.ErrLeaseLost
}

type sqlPool struct{ db *sql.DB }

func (p sqlPool) size() int { return p.db.Stats().MaxOpenConnections }

func (p sqlPool) acquire(ctx context.Context) (connection, error) {
	if p.db == nil {
		return nil, errNoPool
	}
	c, err := p.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	held := &sqlConn{conn: c}
	err = c.Raw(func(beneath any) error {
		var ok bool
		if held.beneath, ok = beneath.(*stdlib.Conn); !ok {
			return fmt.Errorf("%w: its driver has connections of type %T", ErrDriver, beneath)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return held, nil
}

// sqlConn is a connection of a sql.DB. What is beneath it is used outside of
// [sql.Conn.Raw] too, as long as conn keeps everybody else away from it: Raw
// holds a lock that a handler runs into when it closes a statement of the DB.
type sqlConn struct {
	conn    *sql.Conn
	beneath *stdlib.Conn
}

func (c *sqlConn) Conn() *pgx.Conn { return c.beneath.Conn() }

func (c *sqlConn) Release() {
	if pg := c.Conn().PgConn(); pg.IsClosed() || pg.IsBusy() || pg.TxStatus() != stateIdle {
		go c.drop()
		return
	}
	_ = c.conn.Close()
}

// Hijack implements connection. A sql.DB lets no connection go, so this one is
// cut, which whoever uses it notices.
func (c *sqlConn) Hijack() (closeConn func()) {
	_ = c.Conn().PgConn().Conn().Close()
	return c.drop
}

// drop closes the connection for good, which may take a while.
func (c *sqlConn) drop() {
	_ = c.conn.Raw(func(any) error { return driver.ErrBadConn })
}

// handOver makes a sql.DB of the connection alone. A transaction of that is one
// whose beginning and end do not reach the server.
func (c *sqlConn) handOver() (handlerTx, error) {
	begun := &begunConn{Conn: c.beneath}
	db := sql.OpenDB(begun)
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &sqlTx{conn: begun, db: db, tx: tx, ended: make(chan struct{})}, nil
}

// sqlTx is the transaction of a handler that works with database/sql. While it
// lasts, its own locks keep the connection to one user at a time.
type sqlTx struct {
	conn  *begunConn
	db    *sql.DB
	tx    *sql.Tx
	ended chan struct{} // closed when nobody can use the connection any more
}

func (t *sqlTx) context(parent context.Context) context.Context {
	return context.WithValue(parent, txKey{}, t)
}

// end implements handlerTx. It waits for whoever uses the connection.
func (t *sqlTx) end(ctx context.Context) (code string, err error) {
	go func() {
		defer close(t.ended)
		_ = t.tx.Rollback() // which is always an error, and never reaches the server
		_ = t.db.Close()
	}()
	select {
	case <-t.ended:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if t.conn.Conn.Conn().PgConn().IsBusy() {
		return "", errRowsOpen
	}
	return t.conn.code, nil
}

// drain implements handlerTx. Whoever used the connection when it was cut soon
// does no more. Rows whose memory the handler has as [sql.RawBytes], and which
// it has not closed, keep the transaction from ending for ever.
func (t *sqlTx) drain() {
	select {
	case <-t.ended:
	case <-time.After(patience):
	}
}

// begunConn is a connection that is in a transaction, as a driver. Its methods
// are called one at a time.
type begunConn struct {
	*stdlib.Conn

	code string // the last SQLSTATE
}

func (c *begunConn) note(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		c.code = pgErr.Code
	}
	return err
}

// Connect implements [driver.Connector].
func (c *begunConn) Connect(context.Context) (driver.Conn, error) { return c, nil }

// Driver implements [driver.Connector].
func (*begunConn) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

// Close implements [driver.Conn]. The connection belongs to somebody else.
func (*begunConn) Close() error { return nil }

// BeginTx implements [driver.ConnBeginTx].
func (*begunConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return owned{}, nil }

// ExecContext implements [driver.ExecerContext].
func (c *begunConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	result, err := c.Conn.ExecContext(ctx, query, args)
	return result, c.note(err)
}

// QueryContext implements [driver.QueryerContext].
func (c *begunConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.Conn.QueryContext(ctx, query, args)
	if r, ok := rows.(*stdlib.Rows); ok {
		rows = &notedRows{Rows: r, conn: c}
	}
	return rows, c.note(err)
}

// PrepareContext implements [driver.ConnPrepareContext].
func (c *begunConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	statement, err := c.Conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, c.note(err)
	}
	return &notedStmt{Stmt: statement, conn: c, query: query}, nil
}

// notedStmt has its results noted.
type notedStmt struct {
	driver.Stmt

	conn  *begunConn
	query string
}

// ExecContext implements [driver.StmtExecContext].
func (s *notedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.ExecContext(ctx, s.query, args)
}

// QueryContext implements [driver.StmtQueryContext].
func (s *notedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args)
}

// notedRows have the error noted that ends them.
type notedRows struct {
	*stdlib.Rows

	conn *begunConn
}

// Next implements [driver.Rows].
func (r *notedRows) Next(dest []driver.Value) error {
	err := r.Rows.Next(dest)
	if err == io.EOF { //nolint:errorlint // the contract of Next
		return err
	}
	return r.conn.note(err)
}

// Close implements [driver.Rows].
func (r *notedRows) Close() error { return r.conn.note(r.Rows.Close()) }

// owned is a transaction that ends with its operation.
type owned struct{}

// Commit implements [driver.Tx].
func (owned) Commit() error { return ErrTxOwned }

// Rollback implements [driver.Tx].
func (owned) Rollback() error { return ErrTxOwned }
