package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/idemhttp/idem/internal/pgtest"
)

// regime is a way to a database on which one thing is scarce.
type regime struct {
	title   string
	targets []target
	// start starts a server and returns its connection string.
	start func(ctx context.Context) (dsn string, stop func(), err error)
	// adjust changes how clients connect; nil for pgx's own way.
	adjust func(*pgx.ConnConfig)
}

// target is a figure to reach: a quotient of throughputs.
type target struct {
	work    string
	workers int
	atLeast float64
}

var regimes = map[string]regime{
	"commit": {
		title:   "Bound by commits: every fdatasync takes 1 ms longer",
		targets: []target{{transactional, 8, 0.95}, {lease, 8, 0.48}},
		start:   startWithSlowCommits,
	},
	"roundtrip": {
		title:   "Bound by round trips: each takes 0.35 ms longer",
		targets: []target{{transactional, 8, 0.97}},
		start:   startNearby,
		adjust:  func(c *pgx.ConnConfig) { c.DialFunc = farAway },
	},
	"cpu": {
		title: "Bound by the CPU: clients and server on the same cores",
		targets: []target{
			{transactional, 8, 0.70},
			{transactional, 64, 0.60},
			{replay, 8, 0.5},
			{rememberedReplay, 8, 0.8},
		},
		start: startNearby,
	},
	"unprepared": {
		title:  "Bound by the CPU, without prepared statements, as for a pooler in transaction mode",
		start:  startNearby,
		adjust: func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe },
	},
}

// settings keep out of the rounds what happens now and then, a checkpoint, and
// what happens only in a new server: WAL files that are filled with zeros first,
// because there are no old ones to use again.
const settings = "-c shared_buffers=1GB -c max_wal_size=32GB -c checkpoint_timeout=1h -c autovacuum_naptime=1min -c wal_init_zero=off"

// unsynced keeps the disk out of it: WAL is written as ever, but not synced.
const unsynced = settings + " -c fsync=off"

func startNearby(context.Context) (string, func(), error) {
	return launch(pgtest.Options{Mode: pgtest.CrashSafe, Settings: unsynced})
}

func launch(o pgtest.Options) (string, func(), error) {
	server, err := pgtest.Start(o)
	if err != nil {
		return "", nil, err
	}
	return server.URL, server.Stop, nil
}

//go:embed preload/slow_fdatasync.c
var slowFdatasync []byte

// startWithSlowCommits starts a server with a library in front of the C
// library's fdatasync.
func startWithSlowCommits(ctx context.Context) (string, func(), error) {
	folder, err := os.MkdirTemp("", "idem-bench")
	if err != nil {
		return "", nil, err
	}
	remove := func() { _ = os.RemoveAll(folder) }
	library, err := compile(ctx, folder)
	if err != nil {
		remove()
		return "", nil, err
	}
	dsn, stop, err := launch(pgtest.Options{
		Mode: pgtest.CrashSafe, Preload: library, Settings: settings + " -c wal_sync_method=fdatasync",
	})
	if err != nil {
		remove()
		return "", nil, err
	}
	return dsn, func() {
		stop()
		remove()
	}, nil
}

func compile(ctx context.Context, folder string) (library string, err error) {
	if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // the server runs as another user
		return "", err
	}
	source, library := filepath.Join(folder, "slow.c"), filepath.Join(folder, "slow.so")
	if err := os.WriteFile(source, slowFdatasync, 0o600); err != nil {
		return "", err
	}
	said, err := exec.CommandContext(ctx, "cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl").CombinedOutput() //nolint:gosec // our own names
	if err != nil {
		return "", fmt.Errorf("cc (a C compiler is needed): %w: %s", err, said)
	}
	return library, nil
}
