package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server/refserver"
)

var routes = []string{"/orders", "/payments"}

// startPostgres is startProgram on a database.
func startPostgres(t *testing.T, url string, flags ...string) *program {
	t.Helper()
	b, err := openBackend(t.Context(), options{storeOptions: storeOptions{store: "postgres", databaseURL: url}}, quiet)
	require.NoError(t, err)
	return startProgram(t, b, flags...)
}

// onDatabase are the flags by which a process uses db.
func onDatabase(db *pgtest.DB, flags ...string) []string {
	return append([]string{"-store=postgres", "-database-url=" + db.URL}, flags...)
}

func requireCount(t *testing.T, db *pgtest.DB, want int, from string) {
	t.Helper()
	require.Equal(t, want, pgtest.Value[int](t, db, "SELECT count(*) FROM "+from), from)
}

// claimed is inFlight, and returns when also other instances can see it.
func claimed(t *testing.T, db *pgtest.DB, url, path, delay string) <-chan int {
	t.Helper()
	running := inFlight(t, url, path, delay)
	claims := "idem_operations WHERE status = 'processing'"
	if path == "/orders" {
		claims = "pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
	}
	eventually(t, db, 1, claims)
	return running
}

func eventually(t *testing.T, db *pgtest.DB, want int, from string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return pgtest.Value[int](t, db, "SELECT count(*) FROM "+from) == want
	}, 10*time.Second, 10*time.Millisecond)
}

func TestTwoInstancesBehindOneDatabaseBehaveAsOne(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	flags := []string{"-wait=1s", "-store-timeout=20s"}
	instances := []*program{startPostgres(t, db.URL, flags...), startPostgres(t, db.URL, flags...)}
	for _, path := range routes {
		t.Run(path[1:], func(t *testing.T) {
			t.Parallel()
			for round := range 3 {
				key := fmt.Sprintf("Idempotency-Key: %s-%d", path, round)
				body := sendAtOnce(t, instances, path, key)
				requireCount(t, db, 1+round, "refserver"+strings.Replace(path, "/", ".", 1))

				var e refserver.Entry
				require.NoError(t, json.Unmarshal([]byte(body), &e))
				for _, p := range instances {
					replay := post(p.url, path, key)
					require.Equal(t, http.StatusCreated, replay.status)
					require.Equal(t, body, replay.body)
					require.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
					other := send(http.MethodPost, p.url+path, `{"amount":1,"currency":"RUB"}`, key)
					require.Equal(t, http.StatusConflict, other.status)
					require.Equal(t, body, get(p.url+path+"/"+e.ID()).body)
				}
			}
		})
	}
}

// sendAtOnce sends 200 duplicates to the instances at the same moment and
// returns the body that is the answer to all of them but those that were told
// to wait.
func sendAtOnce(t *testing.T, instances []*program, path, key string) (body string) {
	t.Helper()
	const n = 200
	answers, start := make(chan answer, n), make(chan struct{})
	for i := range n {
		go func() {
			<-start
			answers <- post(instances[i%len(instances)].url, path, key, "X-Fault: delay=50ms")
		}()
	}
	close(start)
	bodies := make(map[string]bool)
	for range n {
		got := <-answers
		if got.status == http.StatusAccepted {
			require.NotEmpty(t, got.header.Get("Retry-After"))
			continue
		}
		require.Equal(t, http.StatusCreated, got.status, got.body)
		bodies[got.body] = true
		body = got.body
	}
	require.Len(t, bodies, 1)
	return body
}

func TestSIGTERMOnPostgreSQLLosesNothing(t *testing.T) {
	t.Parallel()
	for _, path := range routes {
		t.Run(path[1:], func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			before := startProcess(t, []string{"DATABASE_URL=" + db.URL}, "-store=postgres", "-wait=0s")
			after := startPostgres(t, db.URL)
			running := claimed(t, db, before.url, path, "2s")
			require.NoError(t, before.cmd.Process.Signal(syscall.SIGTERM))

			replay := untilDone(t, after.url, path) // the client retries at the next instance
			require.Equal(t, http.StatusCreated, replay.status)
			require.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
			require.Equal(t, http.StatusCreated, <-running)
			require.NoError(t, before.cmd.Wait(), "the exit code must be 0")
			requireCount(t, db, 1, "idem_operations")
			requireCount(t, db, 1, "idem_operations WHERE status = 'completed'")
			requireCount(t, db, 1, "refserver.ledger")
		})
	}
}

func TestSIGTERMWaitsForAnswersThatAreNotRecordedYet(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := startProcess(t, nil, onDatabase(db, "-wait=0s")...)
	unlock, paid := payWhileRecordIsLocked(t, db, p.url)
	require.Equal(t, http.StatusCreated, paid.status)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool { return get(p.url+"/healthz").status == 0 }, 10*time.Second, 10*time.Millisecond)
	requireCount(t, db, 1, "idem_operations WHERE status = 'processing'")
	unlock()
	require.NoError(t, p.cmd.Wait(), "the exit code must be 0")
	requireCount(t, db, 1, "idem_operations WHERE status = 'completed'")
}

// payWhileRecordIsLocked makes a payment whose answer is sent although it
// cannot be recorded before unlock is called.
func payWhileRecordIsLocked(t *testing.T, db *pgtest.DB, url string) (unlock func(), paid answer) {
	t.Helper()
	db.Exec(t, `
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
		CREATE TRIGGER wait BEFORE UPDATE ON idem_operations FOR EACH ROW EXECUTE FUNCTION wait()`)
	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT pg_advisory_lock(1)")
	require.NoError(t, err)
	unlock = func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }
	return unlock, post(url, "/payments")
}

func TestAnOrderWhoseServerIsKilledIsOwnedByTheNextRetryAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first := startProcess(t, nil, onDatabase(db, "-wait=0s", "-lease=1h")...)
	second := startPostgres(t, db.URL, "-wait=1s", "-lease=1h")
	running := claimed(t, db, first.url, "/orders", "1m")
	first.kill(t)
	require.Equal(t, 0, <-running)

	got := post(second.url, "/orders")
	require.Equal(t, http.StatusCreated, got.status)
	require.Empty(t, got.header.Get("Idempotent-Replayed"))
	requireCount(t, db, 1, "refserver.orders")
	requireCount(t, db, 1, "idem_operations")
}

func TestAPaymentWhoseServerIsKilledIsMadeWhenItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	db := pgtest.New(t)
	first := startProcess(t, nil, onDatabase(db, "-wait=0s", "-lease="+lease.String())...)
	second := startPostgres(t, db.URL, "-lease="+lease.String())
	begin := time.Now()
	running := claimed(t, db, first.url, "/payments", "1m")
	first.kill(t)
	require.Equal(t, 0, <-running)

	early := post(second.url, "/payments")
	require.Equal(t, http.StatusAccepted, early.status)
	require.NotEmpty(t, early.header.Get("Retry-After"))
	require.Equal(t, http.StatusCreated, untilDone(t, second.url, "/payments").status)
	require.GreaterOrEqual(t, time.Since(begin), lease)
	requireCount(t, db, 1, "refserver.payments")
	requireCount(t, db, 1, "idem_operations WHERE status = 'completed' AND attempt = 2")
}

// untilDone sends a request until it is not answered by 202.
func untilDone(t *testing.T, url, path string) (got answer) {
	t.Helper()
	require.Eventually(t, func() bool {
		got = post(url, path)
		return got.status != http.StatusAccepted
	}, 20*time.Second, 50*time.Millisecond)
	return got
}

func TestAPaymentWhoseServerIsKilledBeforeItIsRecordedIsChargedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first := startProcess(t, nil, onDatabase(db, "-lease=2s")...)
	second := startPostgres(t, db.URL, "-lease=2s")
	unlock, paid := payWhileRecordIsLocked(t, db, first.url)
	require.Equal(t, http.StatusCreated, paid.status)
	first.kill(t)
	db.Terminate(t, "wait_event_type = 'Lock'") // what it has sent would still be executed
	eventually(t, db, 0, "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	unlock()

	again := untilDone(t, second.url, "/payments")
	require.Equal(t, http.StatusCreated, again.status)
	require.Equal(t, paid.body, again.body)
	require.Empty(t, again.header.Get("Idempotent-Replayed"), "nobody knew that it was done")
	requireCount(t, db, 1, "refserver.payments")
	requireCount(t, db, 1, "refserver.provider_charges WHERE requests = 2")
}

func TestReadinessSaysWhetherTheDatabaseCanBeWritten(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	proxy := db.Proxy(t)
	p := startPostgres(t, proxy.URL)
	require.Equal(t, http.StatusOK, get(p.url+"/readyz").status)

	proxy.Intercept(func(pgtest.Statement) pgtest.Verdict { return pgtest.Cut })
	require.Equal(t, http.StatusServiceUnavailable, get(p.url+"/readyz").status)
	require.Equal(t, http.StatusOK, get(p.url+"/healthz").status)
	unavailable := post(p.url, "/orders")
	require.Equal(t, http.StatusServiceUnavailable, unavailable.status)
	require.NotEmpty(t, unavailable.header.Get("Retry-After"))

	proxy.Intercept(nil)
	require.Equal(t, http.StatusOK, get(p.url+"/readyz").status)
	require.Equal(t, http.StatusCreated, post(p.url, "/orders").status)

	readOnly := startPostgres(t, db.URL)
	db.Exec(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$")
	db.Terminate(t, "true") // new sessions have it
	require.Eventually(t, func() bool {
		return get(readOnly.url+"/readyz").status == http.StatusServiceUnavailable
	}, 10*time.Second, 10*time.Millisecond)
}

func TestExpiredKeysAreCleanedUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first := startPostgres(t, db.URL)
	require.Equal(t, http.StatusCreated, post(first.url, "/orders").status)
	first.stop()
	require.NoError(t, first.wait())
	db.Exec(t, "UPDATE idem_operations SET expires_at = now()")

	second := startPostgres(t, db.URL)
	eventually(t, db, 0, "idem_operations")
	second.stop()
	require.NoError(t, second.wait())
}

func TestADatabaseThatCannotBeUsedIsAnError(t *testing.T) {
	t.Parallel()
	tests := []struct{ url, want string }{
		{"postgres://user:secret@127.0.0.1:1/shop", "-database-url: "},
		{"postgres://user:secret@127.0.0.1:port/shop", "-database-url: "},
	}
	for _, tt := range tests {
		var stderr bytes.Buffer
		require.Equal(t, 1, run(t.Context(), []string{"-store=postgres", "-database-url", tt.url}, io.Discard, &stderr))
		require.Contains(t, stderr.String(), tt.want)
		require.NotContains(t, stderr.String(), "secret")
	}
}
