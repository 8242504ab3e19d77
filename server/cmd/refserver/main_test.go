package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
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

// asProgram in the environment makes this test binary the program itself, so
// that a test can send it real signals.
const asProgram = "REFSERVER_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestFlagsThatAreWrongAreMetWithTheCure(t *testing.T) {
	t.Parallel()
	tests := []struct{ args, want string }{
		{"-store redis", `-store: there is no store "redis"; there is memory`},
		{"-wait -1s", "-wait is -1s: it must be at least 0s"},
		{"-lease 0s", "-lease is 0s: it must be at least 1ms"},
		{"-ttl 1us", "-ttl is 1µs: it must be at least 1ms"},
		{"-handler-timeout 0s", "-handler-timeout is 0s: it must be at least 1ms"},
		{"-grace -1s", "-grace is -1s"},
		{"-unready-for -1s", "-unready-for is -1s"},
		{"-lease soon", `invalid value "soon" for flag -lease`},
		{"-fault-drop 1.5", "-fault-drop is 1.5: a probability is from 0 to 1"},
		{"-fault-fail NaN", "-fault-fail is NaN"},
		{"-log xml", `-log is "xml": it must be text, json or off`},
		{"-nope", "flag provided but not defined: -nope"},
		{"serve", `unexpected argument "serve": there are only flags`},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, 2, run(t.Context(), strings.Fields(tt.args), &stdout, &stderr))
			require.Contains(t, stderr.String(), tt.want)
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
	p := startProgram(t, options{}, memory())
	var stderr bytes.Buffer
	code := run(t.Context(), []string{"-addr", strings.TrimPrefix(p.url, "http://")}, io.Discard, &stderr)
	require.Equal(t, 1, code)
	require.Contains(t, stderr.String(), "-addr: listen tcp "+strings.TrimPrefix(p.url, "http://"))
}

func TestSIGTERMLetsTheRunningRequestFinish(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-addr", "127.0.0.1:0", "-log", "json", "-wait", "0s")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var log bytes.Buffer
	cmd.Stderr = &log
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	url := readURL(t, stdout)

	running := inFlight(t, url, "500ms")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))

	require.Equal(t, http.StatusCreated, <-running)
	require.NoError(t, cmd.Wait(), "the exit code must be 0")
	require.Contains(t, log.String(), `"outcome":"executed"`)
	require.Equal(t, 0, post(url), "nobody listens any more")
}

func TestStoppingIsAnnouncedByReadinessBeforeTheListenerCloses(t *testing.T) {
	t.Parallel()
	p := startProgram(t, options{unreadyFor: 300 * time.Millisecond}, memory())
	require.Equal(t, http.StatusOK, get(p.url+"/readyz"))
	p.stop()
	require.Eventually(t, func() bool {
		return get(p.url+"/readyz") == http.StatusServiceUnavailable
	}, 5*time.Second, time.Millisecond)
	require.Equal(t, http.StatusOK, get(p.url+"/healthz"))
	require.NoError(t, p.wait())
}

func TestStoppingTakesPlaceInOrder(t *testing.T) {
	t.Parallel()
	s := &fragile{cleaning: make(chan struct{})}
	s.broken.Store(true)
	p := startProgram(t, options{}, store{s, func() { s.note("closed") }})
	<-s.cleaning // a batch of the cleanup runs until it is stopped

	require.Equal(t, http.StatusCreated, post(p.url), "the store fails after the effect, the answer is sent")
	p.stop()
	require.Eventually(t, func() bool { return post(p.url) == 0 }, 5*time.Second, time.Millisecond)
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
	shared := new(memstore.Store)
	before, after := startProgram(t, options{}, store{shared, func() {}}), startProgram(t, options{}, store{shared, func() {}})
	running := inFlight(t, before.url, "300ms")
	before.stop()
	require.Equal(t, http.StatusAccepted, post(after.url), "a retry at the next instance")
	require.Equal(t, http.StatusCreated, <-running)
	require.NoError(t, before.wait())
	require.Equal(t, http.StatusCreated, post(after.url))
	stats, err := shared.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(0), stats.Processing)
	require.Equal(t, int64(1), stats.Completed)
}

func TestTheGracePeriodEndsARequestThatTakesTooLong(t *testing.T) {
	t.Parallel()
	p := startProgram(t, options{grace: 50 * time.Millisecond}, memory())
	running := inFlight(t, p.url, "1m")
	p.stop()
	require.EqualError(t, p.wait(), "requests were still running: the grace period of 50ms is over")
	require.Equal(t, 0, <-running)
}

func TestRefuseTakeoverReachesTheMiddleware(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{"-refuse-takeover", "-wait", "0s"}, io.Discard)
	require.NoError(t, err)
	m := o.middleware(new(memstore.Store))
	require.Equal(t, server.Refuse, m.Takeover)
	require.Equal(t, server.NoWait, m.Wait)
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

func memory() store { return store{new(memstore.Store), func() {}} }

// program is serve, running.
type program struct {
	url    string
	stop   context.CancelFunc
	result chan error
}

func (p *program) wait() error { return <-p.result }

// startProgram serves with the options given, otherwise with defaults that
// suit tests.
func startProgram(t *testing.T, given options, s store) *program {
	t.Helper()
	o, err := parse([]string{"-addr", "127.0.0.1:0", "-wait", "0s"}, io.Discard)
	require.NoError(t, err)
	o.unreadyFor = given.unreadyFor
	if given.grace != 0 {
		o.grace = given.grace
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &program{stop: cancel, result: make(chan error, 1)}
	stdout, w := io.Pipe()
	go func() { p.result <- serve(ctx, o, s, w, slog.New(slog.DiscardHandler)) }()
	p.url = readURL(t, stdout)
	t.Cleanup(cancel)
	return p
}

func readURL(t *testing.T, stdout io.Reader) string {
	t.Helper()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "refserver listens on ")
	require.True(t, ok, line)
	return url
}

// inFlight sends a payment whose handler is delayed, and returns when it is
// running; the channel gets the status of its answer.
func inFlight(t *testing.T, url, delay string) <-chan int {
	t.Helper()
	statuses := make(chan int, 2)
	for range 2 { // one of the two runs, the other is told so
		go func() { statuses <- post(url, "X-Fault: delay="+delay) }()
	}
	require.Equal(t, http.StatusAccepted, <-statuses)
	return statuses
}

// post sends a payment and returns the status of the answer, 0 if there was
// none.
func post(url string, fields ...string) int {
	const payment = `{"amount":1200,"currency":"RUB"}`
	req, err := http.NewRequest(http.MethodPost, url+"/payments", strings.NewReader(payment))
	if err != nil {
		return 0
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k-1"}, "X-Account-Id": {"acme"}}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ": ")
		req.Header.Set(name, value)
	}
	return do(req)
}

func get(url string) int {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	return do(req)
}

func do(req *http.Request) int {
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}
