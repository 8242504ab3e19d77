package pgstore

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrTxOwned is what a handler gets that commits or rolls back the
	// transaction of its operation. It ends by the handler's answer: 2xx and
	// 3xx commit, everything else rolls back.
	ErrTxOwned = errors.New("pgstore: the transaction ends with the operation; return an answer instead")
	// ErrNoTx is what the methods of a transaction return that [Tx] was asked
	// for outside a transactional route, and what [SQLTx] returns there.
	ErrNoTx = errors.New("pgstore: no transaction here: the route's store is not pgstore.Transactional, or for SQLTx pgstore.FromDB")
)

type txKey struct{}

// Tx returns the transaction of the operation that ctx belongs to. All effects
// that are to commit together with the answer go through it. Commit and Rollback
// return [ErrTxOwned]; Begin makes a savepoint, which the handler may commit or
// roll back. It ends when the handler has returned: whoever still has it then
// gets [pgx.ErrTxClosed].
//
// Outside a transactional route it returns a transaction whose methods return
// [ErrNoTx].
//
// A handler must read its rows to the end or close them, must not end the
// transaction by a statement of its own, must leave role and search_path such
// that the store's table can be written, and must not use what Conn returns
// after it has returned.
func Tx(ctx context.Context) pgx.Tx {
	if t, ok := ctx.Value(txKey{}).(*tx); ok {
		return t
	}
	t := newTx(nil)
	t.session.over = ErrNoTx
	return t
}

// tx is a transaction as the handler sees it, or a savepoint in it.
type tx struct {
	conn      *pgx.Conn // nil outside a transactional route
	session   *session
	savepoint string // "" if it is the transaction
	closed    bool   // the savepoint is over; guarded by the session's turn
}

// session is what a transaction and its savepoints share. Its fields are
// guarded by turn.
type session struct {
	turn chan struct{} // holds a token while nobody uses the connection
	over error         // what every method returns, nil while the handler runs
	code string        // the last SQLSTATE

	savepoints int // so many have been made
}

func newTx(conn *pgx.Conn) *tx {
	return &tx{conn: conn, session: &session{turn: newTurn()}}
}

// use calls f when the connection is free, unless the transaction is over, or
// the savepoint.
func (t *tx) use(ctx context.Context, f func() error) error {
	return t.session.use(ctx, func() error {
		if t.closed {
			return pgx.ErrTxClosed
		}
		return f()
	})
}

// use calls f when the connection is free, unless the transaction is over.
func (s *session) use(ctx context.Context, f func() error) error {
	select {
	case <-s.turn:
	default:
		select {
		case <-s.turn:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() { s.turn <- struct{}{} }()
	if s.over != nil {
		return s.over
	}
	return s.noteHeld(f())
}

// noteHeld remembers the SQLSTATE of err.
func (s *session) noteHeld(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		s.code = pgErr.Code
	}
	return err
}

// note is noteHeld for results that are read after their method has returned.
func (s *session) note(err error) error {
	if err != nil {
		<-s.turn
		defer func() { s.turn <- struct{}{} }()
		_ = s.noteHeld(err)
	}
	return err
}

var errRowsOpen = errors.New("the handler left rows or batch results open")

// context implements handlerTx.
func (t *tx) context(parent context.Context) context.Context {
	return context.WithValue(parent, txKey{}, t)
}

// end implements handlerTx.
func (t *tx) end(ctx context.Context) (code string, err error) {
	err = t.session.use(ctx, func() error {
		t.session.over, code = pgx.ErrTxClosed, t.session.code
		if t.conn.PgConn().IsBusy() {
			return errRowsOpen
		}
		return nil
	})
	return code, err
}

// drain implements handlerTx.
func (t *tx) drain() {
	<-t.session.turn
	t.session.over = pgx.ErrTxClosed
	t.session.turn <- struct{}{}
}

func (t *tx) Begin(ctx context.Context) (inner pgx.Tx, err error) {
	err = t.use(ctx, func() error {
		t.session.savepoints++
		savepoint := "idem_" + strconv.Itoa(t.session.savepoints)
		inner = &tx{conn: t.conn, session: t.session, savepoint: savepoint}
		_, err := t.conn.Exec(ctx, "SAVEPOINT "+savepoint)
		return err
	})
	if err != nil {
		return nil, err
	}
	return inner, nil
}

func (t *tx) Commit(ctx context.Context) error {
	return t.endSavepoint(ctx, "RELEASE SAVEPOINT ")
}

func (t *tx) Rollback(ctx context.Context) error {
	return t.endSavepoint(ctx, "ROLLBACK TO SAVEPOINT ")
}

func (t *tx) endSavepoint(ctx context.Context, how string) error {
	return t.use(ctx, func() error {
		if t.savepoint == "" {
			return ErrTxOwned
		}
		t.closed = true
		_, err := t.conn.Exec(ctx, how+t.savepoint)
		return err
	})
}

func (t *tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (n int64, err error) {
	err = t.use(ctx, func() error {
		n, err = t.conn.CopyFrom(ctx, table, columns, src)
		return err
	})
	return n, err
}

var errBatchBegins = errors.New("pgstore: Batch.BeginTx cannot be used within a transaction")

func (t *tx) SendBatch(ctx context.Context, b *pgx.Batch) (results pgx.BatchResults) {
	if refused := pgx.FailedBatchResults(b, errBatchBegins); refused.Tx() != nil {
		return refused
	}
	err := t.use(ctx, func() error {
		results = t.conn.SendBatch(ctx, b)
		return nil
	})
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return &batchResults{BatchResults: results, session: t.session}
}

// LargeObjects returns the large objects of the transaction. They are not
// guarded against use after the handler has returned, unless they were asked for
// after it.
func (t *tx) LargeObjects() pgx.LargeObjects {
	b := &pgx.Batch{}
	b.BeginTx(transaction)
	results := pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	_ = t.use(context.Background(), func() error {
		// pgx has large objects only for a transaction that it begins. This one it
		// does not, because the context of what would begin it is over; a tracer
		// of batches sees that it fails.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		results = t.conn.SendBatch(ctx, b)
		return nil
	})
	return results.Tx().LargeObjects()
}

func (t *tx) Prepare(ctx context.Context, name, sql string) (d *pgconn.StatementDescription, err error) {
	err = t.use(ctx, func() error {
		d, err = t.conn.Prepare(ctx, name, sql)
		return err
	})
	return d, err
}

func (t *tx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = t.use(ctx, func() error {
		tag, err = t.conn.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

func (t *tx) Query(ctx context.Context, sql string, args ...any) (rows pgx.Rows, err error) {
	err = t.use(ctx, func() error {
		rows, err = t.conn.Query(ctx, sql, args...) //nolint:sqlclosecheck // the caller closes them
		return err
	})
	if rows == nil {
		rows, _ = pgx.FailedBatchResults(&pgx.Batch{}, err).Query() //nolint:sqlclosecheck // closed from the start
	}
	return &resultRows{Rows: rows, session: t.session}, err
}

func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, _ := t.Query(ctx, sql, args...)
	return firstRow{rows}
}

// Conn returns the connection, past all guards; nil outside a transactional
// route.
func (t *tx) Conn() *pgx.Conn { return t.conn }

// resultRows are read while nobody else uses the connection, and not when the
// transaction is over. They remember what error ended them.
type resultRows struct {
	pgx.Rows

	session *session
	err     error // of the last Next
}

func (r *resultRows) Next() (next bool) {
	r.err = r.session.use(context.Background(), func() error {
		next = r.Rows.Next()
		if next {
			return nil
		}
		return r.Rows.Err()
	})
	return next
}

func (r *resultRows) Err() error {
	if r.err != nil {
		return r.err
	}
	return r.Rows.Err()
}

func (r *resultRows) Close() {
	_ = r.session.use(context.Background(), func() error {
		r.Rows.Close()
		return r.Rows.Err()
	})
}

// firstRow scans the first of rows, like a [pgx.Conn] does.
type firstRow struct{ rows pgx.Rows }

func (r firstRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// batchResults remember what errors they met.
type batchResults struct {
	pgx.BatchResults

	session *session
}

func (r *batchResults) Exec() (pgconn.CommandTag, error) {
	tag, err := r.BatchResults.Exec()
	return tag, r.session.note(err)
}

func (r *batchResults) Query() (pgx.Rows, error) {
	rows, err := r.BatchResults.Query()
	return &resultRows{Rows: rows, session: r.session}, r.session.note(err)
}

func (r *batchResults) QueryRow() pgx.Row {
	rows, _ := r.Query()
	return firstRow{rows}
}

func (r *batchResults) Close() error { return r.session.note(r.BatchResults.Close()) }
