package main

import (
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
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asProgram in the environment makes this test binary the program itself, so
// that a test can send it real signals.
const asProgram = "REFSERVER_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Unsetenv("DATABASE_URL") // no test may find somebody's database
	os.Unsetenv("REDIS_URL")
	os.Exit(m.Run())
}

var quiet = slog.New(slog.DiscardHandler)

// program is serve, running.
type program struct {
	addresses
	stop   context.CancelFunc
	result chan error
}

func (p *program) wait() error { return <-p.result }

// startProgram serves with flags; unless they say otherwise, duplicates do not
// wait.
func startProgram(t *testing.T, b backend, flags ...string) *program {
	t.Helper()
	o, err := parse(append([]string{"-addr=127.0.0.1:0", "-wait=0s"}, flags...), io.Discard)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	p := &program{stop: cancel, result: make(chan error, 1)}
	stdout, w := io.Pipe()
	go func() { p.result <- serve(ctx, o, b, w, quiet) }()
	p.addresses, err = readAddresses(stdout)
	require.NoError(t, err)
	t.Cleanup(cancel)
	return p
}

// process is the program in a process of its own.
type process struct {
	addresses
	cmd *exec.Cmd
	log *logBuffer // its access log, as JSON
}

// startProcess starts the program with flags and variables of its environment
// ("NAME=value"). It is killed when the test ends, if it is still there.
func startProcess(t *testing.T, env []string, flags ...string) *process {
	t.Helper()
	p, err := tryProcess(t, env, flags...)
	require.NoError(t, err)
	return p
}

// tryProcess is startProcess that may fail.
func tryProcess(t *testing.T, env []string, flags ...string) (*process, error) {
	t.Helper()
	p := &process{log: new(logBuffer)}
	p.cmd = exec.CommandContext(t.Context(), os.Args[0], append([]string{"-addr=127.0.0.1:0", "-log=json"}, flags...)...)
	p.cmd.Env = append(append(os.Environ(), asProgram+"=1"), env...)
	p.cmd.Stderr = p.log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = p.cmd.Wait() }) // an error if it has been waited for
	p.addresses, err = readAddresses(stdout)
	return p, err
}

// kill ends the process as a crash does.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = p.cmd.Wait() // the error says that it was killed
}

// addresses are where a program serves.
type addresses struct {
	url      string
	adminURL string // "" without -admin-addr
}

// readAddresses returns where the program says that it serves.
func readAddresses(stdout io.Reader) (a addresses, err error) {
	greeting := make([]byte, 1000)
	n, err := stdout.Read(greeting) // it is written at once
	if err != nil {
		return a, err
	}
	for line := range strings.Lines(string(greeting[:n])) {
		if url, ok := strings.CutPrefix(strings.TrimSpace(line), "refserver listens on "); ok {
			a.url = url
		}
		if url, ok := strings.CutPrefix(strings.TrimSpace(line), "operators: "); ok {
			a.adminURL = strings.TrimSuffix(url, "/debug/idempotency")
		}
	}
	if a.url == "" {
		return a, errors.New(string(greeting[:n]))
	}
	return a, nil
}

// logBuffer collects what is written to it.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// inFlight sends a request whose handler is delayed, and returns when it is
// running; the channel gets the status of its answer. The server must not let
// duplicates wait.
func inFlight(t *testing.T, url, path, delay string) <-chan int {
	t.Helper()
	statuses := make(chan int, 2)
	for range 2 { // one of the two runs, the other is told so
		go func() { statuses <- post(url, path, "X-Fault: delay="+delay).status }()
	}
	require.Equal(t, http.StatusAccepted, <-statuses)
	return statuses
}

// answer is what came back; its status is 0 if it did not come whole.
type answer struct {
	status int
	header http.Header
	body   string
}

const request = `{"items":[{"sku":"SKU-1","qty":2}],"amount":1200,"currency":"RUB"}`

// post sends an order or a payment of the account acme under the key k-1.
// Fields ("Name: value") add to these or replace them; "Name" alone removes one.
// With "Expect: 100-continue" a body that is refused is not sent at all: what is
// sent and not read may break the connection before the answer is there.
func post(url, path string, fields ...string) answer {
	return send(http.MethodPost, url+path, request, fields...)
}

func get(url string) answer { return send(http.MethodGet, url, "") }

func send(method, url, body string, fields ...string) answer {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return answer{}
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k-1"}, "X-Account-Id": {"acme"}}
	for _, field := range fields {
		name, value, set := strings.Cut(field, ": ")
		req.Header.Set(name, value)
		if !set {
			req.Header.Del(name)
		}
	}
	resp, err := (&http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: time.Minute}).RoundTrip(req)
	if err != nil {
		return answer{}
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}
	}
	return answer{resp.StatusCode, resp.Header, string(read)}
}
