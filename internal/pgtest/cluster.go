package pgtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Mode names the settings of a cluster.
type Mode int

const (
	// Fast trades durability for speed: a crash of the machine may lose
	// everything, a crash of the server or of a session loses nothing.
	Fast Mode = iota
	// CrashSafe has PostgreSQL's own, safe settings.
	CrashSafe
)

const install = "apt-get install -y postgresql (Debian), dnf install postgresql-server (Red Hat) or brew install postgresql (macOS)"

// settings are the command line options of the modes.
var settings = map[Mode]string{
	Fast:      "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c wal_level=minimal -c max_wal_senders=0",
	CrashSafe: "-c fsync=on -c synchronous_commit=on -c full_page_writes=on",
}

// clusters holds the running cluster of each mode, started on first use.
var clusters = map[Mode]func() (*cluster, error){
	Fast:      sync.OnceValues(func() (*cluster, error) { return start(Fast) }),
	CrashSafe: sync.OnceValues(func() (*cluster, error) { return start(CrashSafe) }),
}

// cluster is a server on which tests may create databases.
type cluster struct {
	url    *url.URL
	prefix string // of the names of this process's databases
	alive  any    // keeps the server, or the lock on prefix, for as long as the process lives

	mu        sync.Mutex
	last      int
	templates map[string]string // name by schema
}

func start(mode Mode) (*cluster, error) {
	if given := os.Getenv("TEST_DATABASE_URL"); given != "" {
		return existing(given)
	}
	s, err := Start(Options{Mode: mode})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	return &cluster{url: u, prefix: "test_", templates: map[string]string{}, alive: s}, nil
}

// existing prepares the server that the environment names. Its databases carry
// a number on which this process holds an advisory lock as long as it lives, so
// that those which a killed process left behind are known and removed.
func existing(given string) (*cluster, error) {
	u, err := url.Parse(given)
	if err != nil || u.Scheme == "" {
		return nil, errors.New("pgtest: TEST_DATABASE_URL must be a URL such as postgres://user@host/postgres")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, given)
	if err != nil {
		return nil, fmt.Errorf("pgtest: TEST_DATABASE_URL: %w", err)
	}
	number := rand.Uint32()
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(number)); err != nil {
		return nil, fmt.Errorf("pgtest: TEST_DATABASE_URL: %w", err)
	}
	rows, _ := conn.Query(ctx, "SELECT datname::text FROM pg_database WHERE datname LIKE 'idem\\_test\\_%'")
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("pgtest: TEST_DATABASE_URL: %w", err)
	}
	for _, name := range left {
		dropAbandoned(ctx, conn, name)
	}
	return &cluster{url: u, prefix: fmt.Sprintf("idem_test_%d_", number), templates: map[string]string{}, alive: conn}, nil
}

// dropAbandoned removes the database unless the process that made it lives.
func dropAbandoned(ctx context.Context, conn *pgx.Conn, name string) {
	var number int64
	if _, err := fmt.Sscanf(name, "idem_test_%d_", &number); err != nil {
		return
	}
	var abandoned bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", number).Scan(&abandoned); err != nil || !abandoned {
		return
	}
	_, _ = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name) // fails if another process is at it too
	_, _ = conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", number)
}

// create makes a database with schema and returns its name.
func (c *cluster) create(ctx context.Context, schema string) (string, error) {
	conn, err := pgx.Connect(ctx, c.url.String())
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	template, err := c.template(ctx, conn, schema)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	c.last++
	name := fmt.Sprintf("%s%d", c.prefix, c.last)
	c.mu.Unlock()
	_, err = conn.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s%s", name, template, strategy(conn)))
	return name, err
}

// strategy is how a server of this version copies a small database fastest.
func strategy(conn *pgx.Conn) string {
	if version(conn.PgConn().ParameterStatus("server_version")) >= 15 {
		return " STRATEGY FILE_COPY"
	}
	return ""
}

// template returns the name of the database that has schema and nothing else.
func (c *cluster) template(ctx context.Context, conn *pgx.Conn, schema string) (string, error) {
	if schema == "" {
		return "template1", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if name := c.templates[schema]; name != "" {
		return name, nil
	}
	name := fmt.Sprintf("%stemplate_%x", c.prefix, sha256.Sum256([]byte(schema)))[:len(c.prefix)+25]
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	inside, err := pgx.Connect(ctx, c.urlOf(name))
	if err != nil {
		return "", err
	}
	defer inside.Close(ctx)
	if _, err := inside.Exec(ctx, schema); err != nil {
		return "", fmt.Errorf("pgtest: schema of the template: %w", err)
	}
	c.templates[schema] = name
	return name, nil
}

func (c *cluster) drop(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.url.String())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, fmt.Sprintf("DROP DATABASE IF EXISTS %s WITH (FORCE)", name))
	return err
}

func (c *cluster) urlOf(database string) string {
	u := *c.url
	u.Path = "/" + database
	return u.String()
}
