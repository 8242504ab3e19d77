package pgstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemhttp/idem/server"
)

// Store is a [server.Store] in a PostgreSQL database. [New] and
// [Transactional] make one. It is safe for concurrent use; its fields must not
// be changed after first use.
//
// Stores of either kind on one table see each other's records: every route
// replays what any other stored.
type Store struct {
	// Table is the table of the records, "name" or "schema.name" in lower
	// case, as [Migrate] made it. "" means [DefaultTable].
	Table string
	// Logger gets what Check and Run have to say to an operator. Nil means
	// [slog.Default].
	Logger *slog.Logger
	// CleanupInterval is the pause between two rounds of Run. Zero means a
	// minute.
	CleanupInterval time.Duration
	// ObserveCleanup, if not nil, is told by Run what became of each batch.
	ObserveCleanup func(context.Context, server.CleanupEvent)

	pool          pool
	transactional bool
	texts         sync.Map // statement on this table by statement
	checking      checking
	poller        poller
	recent        *recent
	out           atomic.Int64 // how many connections are taken out of the pool
}

var (
	_ server.Store   = (*Store)(nil)
	_ server.Waiter  = (*Store)(nil)
	_ server.Cleaner = (*Store)(nil)
	_ server.Stater  = (*Store)(nil)
)

// New returns a store for effects outside the database: a claim is a committed
// record under a lease, which other processes see at once. An operation costs
// two short transactions, and none is open while the handler runs.
func New(pool *pgxpool.Pool) *Store { return newStore(pgxPool{pool}) }

func newStore(pool pool) *Store {
	return &Store{pool: pool, checking: checking{turn: newTurn()}, recent: newRecent()}
}

// Transactional returns a store for effects in the same database: the handler
// works in the transaction that [Tx] gives it, and its effects commit together
// with its answer or not at all. An operation costs no round trip and no commit
// more than the handler's own transaction, and holds its connection while the
// handler runs.
func Transactional(pool *pgxpool.Pool) *Store {
	s := New(pool)
	s.transactional = true
	return s
}

// Claim implements [server.Store].
func (s *Store) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	if err := validate(req); err != nil {
		return server.Claim{}, err
	}
	facts, err := s.facts(ctx)
	if err != nil {
		return server.Claim{}, err
	}
	if s.recent.has(req.ID) {
		if rec, completed := s.replay(ctx, req); completed {
			return server.Claim{Record: rec}, nil
		}
	}
	claim, err := s.claim(ctx, facts, req)
	s.recent.note(req.ID, claim.Record, err)
	return claim, err
}

func (s *Store) claim(ctx context.Context, facts facts, req server.ClaimRequest) (server.Claim, error) {
	c := claiming{store: s, facts: facts, req: req, token: uuid.New(), keys: keysOf(s.table(), req)}
	if s.transactional {
		return c.inTransaction(ctx)
	}
	return c.underLease(ctx)
}

func validate(req server.ClaimRequest) error {
	if req.Lease < time.Millisecond || req.TTL < time.Millisecond {
		return fmt.Errorf("pgstore: lease (%v) and TTL (%v) must be at least a millisecond", req.Lease, req.TTL)
	}
	return nil
}

func (s *Store) table() string { return cmp.Or(s.Table, DefaultTable) }

func (s *Store) logger() *slog.Logger { return cmp.Or(s.Logger, slog.Default()) }

// sql returns statement on the table of s.
func (s *Store) sql(statement string) string {
	if text, ok := s.texts.Load(statement); ok {
		return text.(string) //nolint:forcetypeassert // nothing else is in the map
	}
	text := on(s.table(), statement)
	s.texts.Store(statement, text)
	return text
}

// transaction is how every transaction begins, whatever the database's default.
var transaction = pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"}

// How a transaction of our own ends.
const (
	commit   = "COMMIT"
	rollback = "ROLLBACK"
)

// flight runs the statements that queue adds in a transaction of their own, in
// one round trip.
func (s *Store) flight(ctx context.Context, end string, queue func(b *batch)) error {
	conn, err := s.pool.acquire(ctx)
	if err != nil {
		return err
	}
	return s.flightOn(ctx, conn, end, queue)
}

// flightOn is flight on conn, which it releases. A COMMIT is seen through.
func (s *Store) flightOn(ctx context.Context, conn connection, end string, queue func(b *batch)) error {
	b := &batch{}
	b.begin()
	queue(b)
	if end == commit {
		return s.seeThrough(ctx, conn, func(ctx context.Context, conn *pgx.Conn) error { return send(ctx, conn, b, commit) })
	}
	defer conn.Release()
	return send(ctx, conn.Conn(), b, end)
}

// send ends the transaction that conn is in, or that b begins, with the
// statements of b and end. After an error it is rolled back; the connection is
// lost if even that fails.
func send(ctx context.Context, conn *pgx.Conn, b *batch, end string) error {
	b.add(end).tag = func(tag pgconn.CommandTag) error {
		if tag.String() != end {
			return fmt.Errorf("%w: %s was answered by %s", errNotCommitted, end, tag)
		}
		return checkReplicated(conn.PgConn())
	}
	err := b.send(ctx, conn)
	if err != nil {
		abort(ctx, conn)
	}
	return err
}

// errNotCommitted says that a transaction had failed before its COMMIT, which
// is then a ROLLBACK, and no error.
var errNotCommitted = errors.New("pgstore: the transaction had failed")

// patience bounds the bookkeeping that a caller's deadline must not stop.
const patience = time.Second

// abort rolls back whatever transaction conn is in.
func abort(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_, _ = conn.Exec(ctx, rollback) // if it fails, Release closes the connection, which has the same effect
}

// maxTries bounds how often a claim starts over because the record changed
// under its hands, or because the connection was lost.
const maxTries = 5

// retry calls f until it succeeds or fails for a reason that another try would
// not change.
func retry(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || try == maxTries || ctx.Err() != nil || !transient(err) {
			return explain(err)
		}
	}
}

// errRetry makes retry call again.
var errRetry = errors.New("pgstore: the record kept changing")

// transient reports whether err may be gone on another connection, or in
// another transaction.
func transient(err error) bool {
	var pgErr *pgconn.PgError
	var connect *pgconn.ConnectError
	switch {
	case errors.Is(err, errRetry):
		return true
	case errors.As(err, &pgErr):
		return isFatal(pgErr) || restartable(pgErr.Code)
	case errors.As(err, &connect):
		return false
	default:
		return !errors.Is(err, errUnreadable) && !errors.Is(err, ErrDriver) &&
			!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
	}
}

// isFatal reports whether the session ended with the error.
func isFatal(err *pgconn.PgError) bool {
	severity := cmp.Or(err.SeverityUnlocalized, err.Severity)
	return severity == "FATAL" || severity == "PANIC"
}

// restartable reports whether a transaction that failed with the SQLSTATE code
// is to be run again: serialization failure and deadlock.
func restartable(code string) bool { return code == "40001" || code == "40P01" }

// explain adds to an error of the database what the operator can do about it.
func explain(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case "26000", "42P05": // prepared statement missing, or there already
		return fmt.Errorf("%w (unless something else deallocates statements: %s)", err, poolerAdvice)
	case "42P01", "42703": // table or column missing
		return fmt.Errorf("%w (run pgstore.Migrate)", err)
	default:
		return err
	}
}

// keys are the advisory locks of a claim.
type keys struct {
	id                 int64 // of the account and key
	class, fingerprint int32 // of the fingerprint, held beside id
}

func keysOf(table string, req server.ClaimRequest) keys {
	return keys{
		id:          keyOf("id", table, req.ID.Account, req.ID.Key),
		class:       int32(keyOf("fingerprint", table, req.ID.Account, req.ID.Key, string([]byte{req.Fingerprint.Version}))),
		fingerprint: int32(binary.BigEndian.Uint32(req.Fingerprint.Sum[:4])),
	}
}

// keyOf returns the advisory lock that the parts name.
func keyOf(parts ...string) int64 {
	sum := hash(append([]string{"lock"}, parts...)...)
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// hash returns the SHA-256 of the parts, each after its length.
func hash(parts ...string) [sha256.Size]byte {
	b := append(make([]byte, 0, 256), "idem"...)
	for _, part := range parts {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}
