package refserver_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server/refserver"
)

// api is a running reference server and a plain HTTP client to it.
type api struct {
	*refserver.Server
	t         *testing.T
	url       string
	transport *http.Transport
}

func start(t *testing.T, c refserver.Config) *api {
	t.Helper()
	s := newServer(t, c)
	ts := httptest.NewUnstartedServer(s)
	ts.Config.ErrorLog = log.New(io.Discard, "", 0) // panics are expected
	ts.Start()
	t.Cleanup(ts.Close)
	return &api{s, t, ts.URL, ts.Client().Transport.(*http.Transport)}
}

func startInMemory(t *testing.T, c refserver.Config) *api {
	t.Helper()
	s := newServer(t, c)
	return &api{s, t, "http://api.example.com", faultnet.Handle(t, s)}
}

func newServer(t *testing.T, c refserver.Config) *refserver.Server {
	t.Helper()
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	s, err := refserver.New(c)
	require.NoError(t, err)
	return s
}

// answer is what came back, its body read as far as it came.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) code() string   { return a.member("code") }
func (a answer) detail() string { return a.member("detail") }

func (a answer) member(name string) string {
	var members map[string]any
	_ = json.Unmarshal([]byte(a.body), &members)
	s, _ := members[name].(string)
	return s
}

// post sends a JSON body as the account acme under key. Fields ("Name: value")
// add to these or replace them; an empty value removes.
func (a *api) post(path, body string, fields ...string) answer {
	got, err := a.try(http.MethodPost, path, body, fields...)
	if err != nil {
		a.t.Errorf("POST %s: %v", path, err)
	}
	return got
}

func (a *api) get(path string, fields ...string) answer {
	got, err := a.try(http.MethodGet, path, "", fields...)
	if err != nil {
		a.t.Errorf("GET %s: %v", path, err)
	}
	return got
}

func (a *api) try(method, path, body string, fields ...string) (answer, error) {
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.GetBody = nil // so that net/http does not send it again by itself
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "Idempotency-Key": {key}, "X-Account-Id": {"acme"},
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ":")
		req.Header.Del(name)
		if value = strings.TrimSpace(value); value != "" || name == refserver.FaultField {
			req.Header.Set(name, value)
		}
	}
	resp, err := a.transport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(read)}, err
}

func (a *api) ledger(account string) []refserver.Entry {
	entries, err := a.Ledger(a.t.Context(), account)
	require.NoError(a.t, err)
	return entries
}

// logBuffer collects log records for a test to read.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.b.String()), "\n")
}
