package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

func TestFlagsThatAreWrongAreMetWithTheCure(t *testing.T) {
	t.Parallel()
	tests := []struct{ args, want string }{
		{"-store postgres -database-url=", "-store=postgres needs -database-url, or DATABASE_URL in the environment"},
		{"-store mysql", `-store is "mysql": it must be memory, postgres or redis`},
		{"-store redis", "-store=redis needs -redis-url, or REDIS_URL in the environment"},
		{"-database-url postgres://127.0.0.1/shop", "-database-url needs -store=postgres"},
		{"-redis-url redis://127.0.0.1", "-redis-url needs -store=redis or -store=postgres"},
		{"-wait -1s", "-wait is -1s: it must be at least 0s"},
		{"-lease 0s", "-lease is 0s: it must be at least 1ms"},
		{"-ttl 1us", "-ttl is 1µs: it must be at least 1ms"},
		{"-store-timeout 0s", "-store-timeout is 0s: it must be at least 1ms"},
		{"-handler-timeout 0s", "-handler-timeout is 0s: it must be at least 1ms"},
		{"-grace -1s", "-grace is -1s"},
		{"-unready-for -1s", "-unready-for is -1s"},
		{"-lease soon", `invalid value "soon" for flag -lease`},
		{"-fault-drop 1.5", "-fault-drop is 1.5: a probability is from 0 to 1"},
		{"-fault-fail NaN", "-fault-fail is NaN"},
		{"-log xml", `-log is "xml": it must be text, json or off`},
		{"-nope", "flag provided but not defined: -nope"},
		{"serve", `unexpected argument "serve": there are only flags, and the command admin`},
		{"-store postgres postgres://user:secret@127.0.0.1/shop", `unexpected argument "postgres://..."`},
		{"-upstream http://127.0.0.1:9000", "-upstream needs either -account-header or -account-claim: keys belong to accounts"},
		{"-upstream http://127.0.0.1:9000 -account-header A -account-claim b", "-upstream needs either -account-header or -account-claim"},
		{"-upstream 127.0.0.1:9000 -account-header A", "-upstream must be a URL such as http://127.0.0.1:9000"},
		{"-upstream http://user:secret%zz@127.0.0.1 -account-header A", "-upstream must be a URL such as http://127.0.0.1:9000"},
		{"-upstream http://127.0.0.1:9000 -account-header A:", `-account-header is "A:": it must be the name of a field`},
		{"-upstream http://127.0.0.1:9000 -account-header A -max-body 0", "-max-body is 0: it must be at least 1"},
		{"-upstream http://127.0.0.1:9000 -account-header A -fault-drop 0.5", "-fault flags do not go with -upstream"},
		{"-account-header A", "-account-header, -account-claim, -require-key and -methods need -upstream"},
		{"-methods PUT", "need -upstream"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, 2, run(t.Context(), strings.Fields(tt.args), &stdout, &stderr))
			require.Contains(t, stderr.String(), tt.want)
			require.NotContains(t, stderr.String(), "secret")
			require.Empty(t, stdout.String())
		})
	}
}

func TestHelpGoesToStdout(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, 0, run(t.Context(), []string{"-h"}, &stdout, &stderr))
	require.Contains(t, stdout.String(), "-addr host:port")
	require.Empty(t, stderr.String())
}

func TestAnAddressThatIsTakenIsAnError(t *testing.T) {
	t.Parallel()
	taken := strings.TrimPrefix(startProgram(t, openMemory(quiet)).url, "http://")
	for flag, args := range map[string][]string{
		"-addr":       {"-addr", taken},
		"-admin-addr": {"-addr", "127.0.0.1:0", "-admin-addr", taken},
	} {
		var stderr bytes.Buffer
		require.Equal(t, 1, run(t.Context(), args, io.Discard, &stderr))
		require.Contains(t, stderr.String(), flag+": listen tcp "+taken)
	}
}

func TestAnUpstreamThatCannotBeOneIsAnError(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"unix:/run/service.sock", "http://user@127.0.0.1", "http://127.0.0.1/?a=1"} {
		var stderr bytes.Buffer
		require.Equal(t, 1, run(t.Context(), []string{"-addr=127.0.0.1:0", "-upstream", url, "-account-header=A"}, io.Discard, &stderr))
		require.Contains(t, stderr.String(), "the upstream")
	}
}

func TestSIGTERMLetsTheRunningRequestFinish(t *testing.T) {
	t.Parallel()
	p := startProcess(t, nil, "-wait=0s")
	running := inFlight(t, p.url, "/payments", "2s")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, http.StatusCreated, <-running)
	require.NoError(t, p.cmd.Wait(), "the exit code must be 0")
	require.Contains(t, p.log.String(), `"outcome":"executed"`)
	require.Equal(t, 0, post(p.url, "/payments").status, "nobody listens any more")
}

func TestStoppingIsAnnouncedByReadinessBeforeTheListenerCloses(t *testing.T) {
	t.Parallel()
	p := startProgram(t, openMemory(quiet), "-unready-for=2s")
	require.Equal(t, http.StatusOK, get(p.url+"/readyz").status)
	p.stop()
	require.Eventually(t, func() bool {
		return get(p.url+"/readyz").status == http.StatusServiceUnavailable
	}, 5*time.Second, time.Millisecond)
	require.Equal(t, http.StatusOK, get(p.url+"/healthz").status)
	require.NoError(t, p.wait())
}

func TestStoppingTakesPlaceInOrder(t *testing.T) {
	t.Parallel()
	s := &fragile{cleaning: make(chan struct{})}
	s.broken.Store(true)
	p := startProgram(t, backend{
		payments: s,
		cleanup:  (&server.Cleanup{Store: s, Logger: quiet}).Run,
		close:    func() { s.note("closed") },
	})
	<-s.cleaning // a batch of the cleanup runs until it is stopped

	require.Equal(t, http.StatusCreated, post(p.url, "/payments").status, "the store fails after the effect, the answer is sent")
	p.stop()
	require.Eventually(t, func() bool { return post(p.url, "/payments").status == 0 }, 5*time.Second, time.Millisecond)
	require.NotContains(t, s.noted(), "completed")
	s.broken.Store(false)

	require.NoError(t, p.wait())
	require.Equal(t, []string{"completed", "cleanup stopped", "closed"}, s.noted())
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(0), stats.Processing)
	require.Equal(t, int64(1), stats.Completed)
}

func TestARollingDeploymentLosesNothing(t *testing.T) {
	t.Parallel()
	b := openMemory(quiet)
	before, after := startProgram(t, b), startProgram(t, b)
	running := inFlight(t, before.url, "/payments", "2s")
	before.stop()
	require.Equal(t, http.StatusAccepted, post(after.url, "/payments").status, "a retry at the next instance")
	require.Equal(t, http.StatusCreated, <-running)
	require.NoError(t, before.wait())
	require.Equal(t, http.StatusCreated, post(after.url, "/payments").status)
	stats, err := b.payments.(server.Stater).Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(0), stats.Processing)
	require.Equal(t, int64(1), stats.Completed)
}

func TestTheGracePeriodEndsARequestThatTakesTooLong(t *testing.T) {
	t.Parallel()
	p := startProgram(t, openMemory(quiet), "-grace=50ms")
	running := inFlight(t, p.url, "/payments", "1m")
	p.stop()
	require.EqualError(t, p.wait(), "requests were still running: the grace period of 50ms is over")
	require.Equal(t, 0, <-running)
}

func TestFlagsReachTheMiddleware(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{"-refuse-takeover", "-wait=0s", "-store-timeout=2s"}, io.Discard)
	require.NoError(t, err)
	m := o.middleware(new(memstore.Store))
	require.Equal(t, server.Refuse, m.Takeover)
	require.Equal(t, server.NoWait, m.Wait)
	require.Equal(t, 2*time.Second, m.StoreTimeout)
	require.Equal(t, 30*time.Second, m.Lease)
	require.Equal(t, 48*time.Hour, m.TTL)
}

// fragile is a store that can fail to complete, and whose cleanup takes until
// it is stopped.
type fragile struct {
	memstore.Store
	broken   atomic.Bool
	cleaning chan struct{} // closed when the cleanup begins
	mu       sync.Mutex
	notes    []string
}

func (f *fragile) note(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notes = append(f.notes, s)
}

func (f *fragile) noted() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.notes...)
}

func (f *fragile) Cleanup(ctx context.Context, _ int) (int, error) {
	close(f.cleaning)
	<-ctx.Done()
	f.note("cleanup stopped")
	return 0, ctx.Err()
}

func (f *fragile) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	claim, err := f.Store.Claim(ctx, req)
	if claim.Lease != nil {
		claim.Lease = fragileLease{claim.Lease, f}
	}
	return claim, err
}

type fragileLease struct {
	server.Lease
	store *fragile
}

func (l fragileLease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	if l.store.broken.Load() {
		return server.Record{}, errors.New("the store is down")
	}
	l.store.note("completed")
	return l.Lease.Complete(ctx, r, ttl)
}
