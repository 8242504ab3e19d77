package main

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
)

func redisURL(s *redistest.Server) string { return "unix://" + s.Address }

// onRedis are the flags by which a process uses s.
func onRedis(s *redistest.Server, flags ...string) []string {
	return append([]string{"-store=redis", "-redis-url=" + redisURL(s)}, flags...)
}

// startRedis is startProgram on Redis.
func startRedis(t *testing.T, s *redistest.Server, flags ...string) *program {
	t.Helper()
	b, err := openBackend(t.Context(), options{storeOptions: storeOptions{store: "redis", redisURL: redisURL(s)}}, quiet)
	require.NoError(t, err)
	return startProgram(t, b, flags...)
}

func TestTwoInstancesShareTheirKeysInRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	first, second := startRedis(t, s), startRedis(t, s, "-admin-addr=127.0.0.1:0")
	made := post(first.url, "/payments")
	require.Equal(t, http.StatusCreated, made.status)
	replay := post(second.url, "/payments")
	require.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
	require.Equal(t, made.body, replay.body)
	page := get(second.adminURL + "/debug/idempotency?account=acme&key=k-1").body
	require.Contains(t, page, `<span class="status completed">completed</span>`)
	require.Contains(t, page, "This store does not count its records.")
	require.Contains(t, page, "This store does not list its operations.")

	s.Crash(t)
	require.Equal(t, http.StatusServiceUnavailable, post(first.url, "/payments").status)
	require.Equal(t, http.StatusServiceUnavailable, get(first.url+"/readyz").status)
	require.Equal(t, http.StatusOK, get(first.url+"/healthz").status)
}

func TestARedisInFrontOfADatabaseMayBeAway(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), redistest.Start(t)
	s.Crash(t)
	b, err := openBackend(t.Context(), options{storeOptions: storeOptions{store: "postgres", databaseURL: db.URL, redisURL: redisURL(s)}}, quiet)
	require.NoError(t, err)
	p := startProgram(t, b, "-admin-addr=127.0.0.1:0")
	for _, path := range routes {
		require.Equal(t, http.StatusCreated, post(p.url, path, "Idempotency-Key: "+path).status)
		require.Equal(t, "true", post(p.url, path, "Idempotency-Key: "+path).header.Get("Idempotent-Replayed"))
	}
	require.Equal(t, http.StatusOK, get(p.url+"/readyz").status)
	require.Contains(t, get(p.adminURL+"/debug/idempotency").body, "No operation is in flight.", "the database lists them")
	requireCount(t, db, 2, "idem_operations WHERE status = 'completed'")

	s.Restart(t)
	client := s.Client(t)
	require.Eventually(t, func() bool {
		post(p.url, "/orders", "Idempotency-Key: "+rand.Text())
		return len(redistest.Keys(t, client, "idem-lock:")) > 0
	}, 20*time.Second, 50*time.Millisecond)
}

func TestOperatorsSettleOperationsInRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b, err := openBackend(t.Context(), options{storeOptions: storeOptions{store: "redis", redisURL: redisURL(s)}}, quiet)
	require.NoError(t, err)
	p := startProgram(t, b, "-lease=1ms", "-refuse-takeover")
	for _, key := range []string{"k-1", "k-2"} {
		_, err := b.payments.Claim(t.Context(), server.ClaimRequest{ID: server.ID{Account: "acme", Key: key}, Lease: time.Millisecond, TTL: time.Hour})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		return strings.Contains(post(p.url, "/payments").body, "OPERATION_INDETERMINATE")
	}, 10*time.Second, 10*time.Millisecond)
	ask := func(command string) (stdout string) {
		var out, errs bytes.Buffer
		code := runAdmin(t.Context(), append(strings.Fields(command), onRedis(s)...), strings.NewReader(""), &out, &errs)
		require.Equal(t, 0, code, errs.String())
		return out.String()
	}
	require.Contains(t, ask("inspect"+ofTheKey), "status           processing, its owner was lost")
	require.Contains(t, ask("release --yes"+ofTheKey), "status           failed\n")
	require.Equal(t, http.StatusCreated, post(p.url, "/payments").status, "it is executed")
	require.Contains(t, ask("complete --yes -status 201 -body made -account acme -key k-2"), "status           completed\n")
	require.Equal(t, "made", post(p.url, "/payments", "Idempotency-Key: k-2").body)
}

func TestARedisThatCannotBeUsedIsAnError(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, args := range map[string][]string{
		"nobody is there":        {"-store=redis", "-redis-url=redis://user:secret@127.0.0.1:1"},
		"no URL":                 {"-store=redis", "-redis-url=redis://user:secret@127.0.0.1:port"},
		"another scheme":         {"-store=redis", "-redis-url=http://user:secret@127.0.0.1"},
		"in front of a database": {"-store=postgres", "-database-url=" + db.URL, "-redis-url=redis://user:secret@127.0.0.1:port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			require.Equal(t, 1, run(t.Context(), args, io.Discard, &stderr))
			require.Contains(t, stderr.String(), "-redis-url: ")
			require.NotContains(t, stderr.String(), "secret")
		})
	}
}
