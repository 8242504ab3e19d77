package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const poolerAdvice = "behind a pooler in transaction mode add default_query_exec_mode=cache_describe to the connection string, or use pgstore.Open"

// facts are what a Store has to know about its database.
type facts struct {
	namespace uuid.UUID // of the operation ids
	locks     bool      // advisory locks exclude one another
}

// checking holds the facts once a check has succeeded. A failure is not kept.
type checking struct {
	known atomic.Pointer[facts]
	turn  chan struct{} // holds a token while nobody checks
}

func newTurn() chan struct{} {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return turn
}

// facts returns what is known of the database, after a first check.
func (s *Store) facts(ctx context.Context) (facts, error) {
	if known := s.checking.known.Load(); known != nil {
		return *known, nil
	}
	return s.check(ctx, false)
}

// Check examines the database and returns an error that says what to do if the
// store cannot work on it: the schema is missing or newer than this version
// knows, the server is a standby or read-only, or the pool prepares statements
// behind a pooler that cannot carry them. It warns in the log of settings by
// which an acknowledged answer can be lost. It also finds out whether advisory
// locks are real; where they are not, transactional mode makes do without them.
//
// The first claim checks too, and so does every claim until a check has
// succeeded.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.check(ctx, true)
	return err
}

// check examines the database, one caller at a time. Unless anew is set it is
// content with what another caller has found meanwhile.
func (s *Store) check(ctx context.Context, anew bool) (facts, error) {
	if err := checkTable(s.table()); err != nil {
		return facts{}, err
	}
	if s.pool == nil {
		return facts{}, errNoPool
	}
	select {
	case <-s.checking.turn:
	case <-ctx.Done():
		return facts{}, context.Cause(ctx)
	}
	defer func() { s.checking.turn <- struct{}{} }()
	if known := s.checking.known.Load(); known != nil && !anew {
		return *known, nil
	}
	var found facts
	err := retry(ctx, func() (err error) {
		found, err = s.examine(ctx)
		return err
	})
	if err != nil {
		return facts{}, err
	}
	s.checking.known.Store(&found)
	return found, nil
}

func (s *Store) examine(ctx context.Context) (facts, error) {
	conn, err := s.pool.acquire(ctx)
	if err != nil {
		return facts{}, err
	}
	defer conn.Release()
	unsafe, err := checkServer(ctx, conn.Conn())
	if err != nil {
		return facts{}, err
	}
	schema, err := s.checkSchema(ctx, conn.Conn())
	if err != nil {
		return facts{}, err
	}
	locks, err := s.compareSessions(ctx, conn.Conn())
	if err != nil {
		return facts{}, err
	}
	if len(unsafe) > 0 {
		s.logger().WarnContext(ctx, "settings of the database can lose acknowledged answers in a crash, whose operations are then executed again",
			"off", unsafe)
	}
	return facts{namespace: schema.namespace, locks: locks}, nil
}

// checkSchema refuses a schema of any version but ours.
func (s *Store) checkSchema(ctx context.Context, conn *pgx.Conn) (schema, error) {
	steps, err := Migrations(s.table())
	if err != nil {
		return schema{}, err
	}
	found, err := s.schema(ctx, conn)
	switch {
	case err != nil:
		return schema{}, err
	case found.version > len(steps):
		return schema{}, errNewerSchema(found.version, len(steps))
	case found.version < len(steps):
		return schema{}, fmt.Errorf("pgstore: the schema has version %d, this program needs version %d; run pgstore.Migrate", found.version, len(steps))
	default:
		return found, nil
	}
}

// selectSettings leaves NULL what a compatible engine does not know.
const selectSettings = `
SELECT pg_is_in_recovery(),
       coalesce(current_setting('fsync', true), 'on'), coalesce(current_setting('full_page_writes', true), 'on'),
       coalesce(current_setting('synchronous_commit', true), 'on')`

// checkServer refuses a server that cannot be written to. It returns the
// settings by which it may forget what it has acknowledged.
func checkServer(ctx context.Context, conn *pgx.Conn) (unsafe []string, err error) {
	var standby bool
	names, values := []string{"fsync", "full_page_writes", "synchronous_commit"}, make([]string, 3)
	if err := conn.QueryRow(ctx, selectSettings).Scan(&standby, &values[0], &values[1], &values[2]); err != nil {
		return nil, err
	}
	if standby {
		return nil, errors.New("pgstore: the server is a standby; claims go to the primary: with several hosts add target_session_attrs=read-write to the connection string")
	}
	tx, err := conn.BeginTx(ctx, transaction)
	if err != nil {
		return nil, fmt.Errorf("pgstore: the server takes no writes: %w", err)
	}
	for i, value := range values {
		if value == "off" {
			unsafe = append(unsafe, names[i])
		}
	}
	return unsafe, tx.Rollback(ctx)
}

// compareSessions finds out with a second connection whether advisory locks
// exclude one another, and whether prepared statements stay with their
// connection. It cannot tell from a pool of one, which it trusts.
func (s *Store) compareSessions(ctx context.Context, conn *pgx.Conn) (locks bool, err error) {
	if s.pool.size() == 1 {
		return true, nil
	}
	other, err := s.pool.acquire(ctx)
	if err != nil {
		return false, err
	}
	defer other.Release()
	if preparesStatements(conn.Config().DefaultQueryExecMode) {
		if err := checkPrepared(ctx, conn, other.Conn()); err != nil {
			return false, err
		}
	}
	return excludeOneAnother(ctx, conn, other.Conn())
}

// preparesStatements reports whether pgx in this mode expects a statement that
// it prepared in one transaction to be there in the next.
func preparesStatements(mode pgx.QueryExecMode) bool {
	return mode == pgx.QueryExecModeCacheStatement || mode == pgx.QueryExecModeDescribeExec
}

// checkPrepared prepares the same name on both connections. Behind a pooler
// that hands one session to one transaction after another, and does not know
// about prepared statements, the second finds it there already.
func checkPrepared(ctx context.Context, conns ...*pgx.Conn) error {
	name := "idem_" + rand.Text()
	for _, conn := range conns {
		_, err := conn.PgConn().Prepare(ctx, name, "SELECT 1", nil)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "42P05" {
			_ = conn.PgConn().Deallocate(ctx, name)
			return errors.New("pgstore: the pool prepares statements that are not there on its other connections; " + poolerAdvice)
		}
		if err != nil {
			return err
		}
	}
	for _, conn := range conns {
		if err := conn.PgConn().Deallocate(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// excludeOneAnother tries to take one lock on both connections.
func excludeOneAnother(ctx context.Context, one, other *pgx.Conn) (bool, error) {
	lock := keyOf("check", rand.Text())
	var got [2]bool
	for i, conn := range []*pgx.Conn{one, other} {
		b := &batch{}
		b.begin()
		b.add(tryOnlyLock, lock).scan(&got[i])
		err := b.send(ctx, conn)
		defer abort(ctx, conn)
		if isNotThere(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	if got[0] && got[1] { // proves something only if the one has not lost its session, and the lock with it
		if _, err := one.Exec(ctx, "SELECT 1"); err != nil {
			return false, err
		}
	}
	return got[0] && !got[1], nil
}

// isNotThere reports whether the engine says that it has no such function, or
// that it does nothing.
func isNotThere(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (strings.HasPrefix(pgErr.Code, "42") || strings.HasPrefix(pgErr.Code, "0A"))
}

// Open returns a pool for dsn with what this package needs: an execution mode
// that works behind a pooler in transaction mode, and, if dsn names several
// hosts, only the one that takes writes. Whatever dsn says about either holds:
// where there is no such pooler, default_query_exec_mode=cache_statement spares
// the server to parse and plan each statement, which is more than half of its
// work.
// It has connected once when it returns. The caller closes the pool. Errors do
// not repeat dsn.
func Open(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	config, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && !strings.Contains(dsn, "default_query_exec_mode") {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	config.ConnConfig.OnNotice = noteCancelledWait
	if config.ConnConfig.ValidateConnect == nil && severalHosts(config.ConnConfig) {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// parse reads dsn. Where it is malformed nobody can tell for certain which part
// is the password, so no error has any of it.
func parse(dsn string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if malformed := (*pgconn.ParseConfigError)(nil); errors.As(err, &malformed) {
		malformed.ConnString = "the connection string"
	}
	if err != nil {
		return nil, err
	}
	if strings.LastIndex(config.ConnConfig.Host, "@") > 0 { // at 0 it is an abstract socket
		return nil, errors.New("pgstore: the host of the connection string has an @: in a password it is written as %40")
	}
	return config, nil
}

func severalHosts(config *pgx.ConnConfig) bool {
	for _, other := range config.Fallbacks {
		if other.Host != config.Host || other.Port != config.Port {
			return true
		}
	}
	return false
}
