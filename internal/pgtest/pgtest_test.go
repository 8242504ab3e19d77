package pgtest_test

import (
	"context"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
)

func TestEveryTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	const schema = "CREATE TABLE thing (id integer)"
	one, other := pgtest.New(t, schema), pgtest.New(t, schema)
	one.Exec(t, "INSERT INTO thing VALUES (1)")
	require.Equal(t, 1, pgtest.Value[int](t, one, "SELECT count(*) FROM thing"))
	require.Equal(t, 0, pgtest.Value[int](t, other, "SELECT count(*) FROM thing"))
	require.Equal(t, 0, pgtest.Value[int](t, pgtest.New(t), "SELECT count(*) FROM pg_tables WHERE tablename = 'thing'"))
}

func TestModesAreWhatTheyAreCalled(t *testing.T) {
	t.Parallel()
	for mode, want := range map[pgtest.Mode]string{pgtest.Fast: "off", pgtest.CrashSafe: "on"} {
		db := pgtest.NewIn(t, mode)
		require.Equal(t, want, pgtest.Value[string](t, db, "SELECT current_setting('fsync')"))
		require.Equal(t, want, pgtest.Value[string](t, db, "SELECT current_setting('synchronous_commit')"))
	}
}

// TestNothingIsLeftHoweverTheProcessDies runs itself in processes that end in
// different ways.
func TestNothingIsLeftHoweverTheProcessDies(t *testing.T) {
	t.Parallel()
	if end := os.Getenv("PGTEST_END"); end != "" {
		die(t, end)
		return
	}
	for _, end := range []string{"return", "panic", "exit", "kill"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			require.NoError(t, os.Chmod(folder, 0o777)) // another user makes its folder there
			require.NoError(t, os.Chmod(filepath.Dir(folder), 0o755))
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNothingIsLeftHoweverTheProcessDies$")
			cmd.Env = append(os.Environ(), "PGTEST_END="+end, "TMPDIR="+folder, "TEST_DATABASE_URL=")
			said, err := cmd.CombinedOutput()
			require.Equal(t, end == "return", err == nil, string(said))
			require.Contains(t, string(said), "the server runs in "+folder)
			require.Eventually(t, func() bool {
				entries, err := os.ReadDir(folder)
				return err == nil && len(entries) == 0 && !strings.Contains(processes(t), folder)
			}, 20*time.Second, 20*time.Millisecond)
		})
	}
}

// TestGivenServerIsUsedAndSwept runs the test above as processes on a server
// that is given to them.
func TestGivenServerIsUsedAndSwept(t *testing.T) {
	t.Parallel()
	given := pgtest.New(t)
	const left = "SELECT count(*) FROM pg_database WHERE datname LIKE 'idem_test_%'"
	for _, c := range []struct {
		end  string
		left int
	}{{"kill", 1}, {"return", 0}} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNothingIsLeftHoweverTheProcessDies$")
		cmd.Env = append(os.Environ(), "PGTEST_END="+c.end, "TEST_DATABASE_URL="+given.URL)
		said, err := cmd.CombinedOutput()
		require.Equal(t, c.end == "return", err == nil, string(said))
		require.Equal(t, c.left, pgtest.Value[int](t, given, left))
	}
}

func die(t *testing.T, end string) {
	t.Helper()
	db := pgtest.New(t)
	_, _ = os.Stdout.WriteString("the server runs in " + pgtest.Value[string](t, db, "SHOW unix_socket_directories") + "\n")
	switch end {
	case "panic":
		panic("as told")
	case "exit":
		os.Exit(3)
	case "kill":
		self, err := os.FindProcess(os.Getpid())
		require.NoError(t, err)
		require.NoError(t, self.Kill())
		select {}
	}
}

func processes(t *testing.T) string {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), "ps", "-eo", "args").Output()
	require.NoError(t, err)
	return string(said)
}

func TestBouncerSharesSessionsBetweenTransactions(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).Bouncer(t).With("default_query_exec_mode", "exec")
	var sessions []int
	for range 2 {
		conn, err := pgx.Connect(t.Context(), db.URL)
		require.NoError(t, err)
		defer conn.Close(context.WithoutCancel(t.Context()))
		var pid int
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
		sessions = append(sessions, pid)
	}
	require.Equal(t, sessions[0], sessions[1])
}

func TestProxyCountsRoundTrips(t *testing.T) {
	t.Parallel()
	proxy := pgtest.New(t).Proxy(t)
	conn, err := pgx.Connect(t.Context(), proxy.URL)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	require.Equal(t, 0, proxy.Flights())

	_, err = conn.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err)
	require.Equal(t, 1, proxy.Flights())

	batch := &pgx.Batch{}
	batch.Queue("SELECT 1")
	batch.Queue("SELECT 2")
	require.NoError(t, conn.SendBatch(t.Context(), batch).Close())
	require.Equal(t, 3, proxy.Flights(), "one to prepare, one to execute")

	again := &pgx.Batch{}
	again.Queue("SELECT 1")
	again.Queue("SELECT 2")
	require.NoError(t, conn.SendBatch(t.Context(), again).Close())
	require.Equal(t, 4, proxy.Flights())
}

func TestProxyCutsBetweenAnyTwoStatements(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		cut     string
		verdict pgtest.Verdict
		rows    int
	}{
		{"before the insert", "INSERT", pgtest.Cut, 0},
		{"between the insert and its commit", "COMMIT", pgtest.Cut, 0},
		{"after the commit, before its reply", "COMMIT", pgtest.CutReply, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proxy := pgtest.New(t, "CREATE TABLE thing (id integer)").Proxy(t)
			conn, err := pgx.Connect(t.Context(), proxy.URL)
			require.NoError(t, err)
			proxy.Intercept(func(s pgtest.Statement) pgtest.Verdict {
				if strings.HasPrefix(s.SQL, c.cut) {
					return c.verdict
				}
				return pgtest.Pass
			})
			batch := &pgx.Batch{}
			batch.Queue("BEGIN")
			batch.Queue("INSERT INTO thing VALUES (1)")
			batch.Queue("COMMIT")
			require.Error(t, conn.SendBatch(t.Context(), batch).Close())
			require.True(t, conn.IsClosed())
			require.Equal(t, c.rows, pgtest.Value[int](t, proxy.DB, "SELECT count(*) FROM thing"))
		})
	}
}

// A standby has what was acknowledged when its primary was killed.
func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	primary, err := pgtest.Start(pgtest.Options{Mode: pgtest.CrashSafe, Settings: "-c fsync=off"})
	require.NoError(t, err)
	defer primary.Stop()
	standby, err := primary.Standby()
	require.NoError(t, err)
	defer standby.Stop()
	url := pgtest.Writable(standby, primary)
	require.Equal(t, primary.URL, writable(t, url))
	primary.DB().Exec(t, "CREATE TABLE thing AS SELECT 1")
	require.NoError(t, primary.Crash())
	_, err = pgx.Connect(t.Context(), url)
	require.Error(t, err)
	require.NoError(t, standby.Promote())
	require.Equal(t, standby.URL, writable(t, url))
	require.Equal(t, 1, pgtest.Value[int](t, standby.DB(), "SELECT count(*) FROM thing"))
}

// writable returns the server that url leads to.
func writable(t *testing.T, url string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var folder string
	require.NoError(t, conn.QueryRow(t.Context(), "SHOW unix_socket_directories").Scan(&folder))
	return "postgres:///postgres?host=" + neturl.QueryEscape(folder) + "&sslmode=disable&user=postgres"
}

func TestTerminateEndsSessions(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := pgx.Connect(t.Context(), db.With("application_name", "victim").URL)
	require.NoError(t, err)
	require.Equal(t, 1, db.Terminate(t, "application_name = 'victim'"))
	_, err = conn.Exec(t.Context(), "SELECT 1")
	require.Error(t, err)
}
