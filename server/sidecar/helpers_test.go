package sidecar_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/sidecar"
)

// chain is a client, a Proxy and a service, over networks in memory.
type chain struct {
	t     *testing.T
	front *http.Transport // to the Proxy

	mu     sync.Mutex
	events []server.Event
}

// inFrontOf puts a Proxy in front of the service that transport reaches, over a
// middleware that lets requests without a key pass, and of which configure may
// change more.
func inFrontOf(t *testing.T, transport *http.Transport, configure func(*server.Middleware)) *chain {
	t.Helper()
	c := &chain{t: t}
	transport.DisableCompression = true
	c.front = faultnet.Handle(t, c.proxy(transport, configure))
	c.front.DisableCompression = true
	return c
}

func (c *chain) proxy(transport http.RoundTripper, configure func(*server.Middleware)) *sidecar.Proxy {
	c.t.Helper()
	p, err := sidecar.New(c.config(transport, configure))
	require.NoError(c.t, err)
	return p
}

// inFrontOfHandler is inFrontOf a service in Go.
func inFrontOfHandler(t *testing.T, h http.HandlerFunc, configure func(*server.Middleware)) *chain {
	t.Helper()
	return inFrontOf(t, faultnet.Handle(t, h), configure)
}

func (c *chain) config(transport http.RoundTripper, configure func(*server.Middleware)) sidecar.Config {
	m := &server.Middleware{
		Store:    new(memstore.Store),
		Account:  sidecar.AccountFromField("X-Account-Id"),
		Optional: true,
		Logger:   slog.New(slog.DiscardHandler),
		Observe:  c.observe,
	}
	if configure != nil {
		configure(m)
	}
	return sidecar.Config{
		Upstream:   &url.URL{Scheme: "http", Host: "upstream"},
		Middleware: m,
		Transport:  transport,
		Logger:     slog.New(slog.DiscardHandler),
	}
}

func (c *chain) observe(_ context.Context, e server.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
}

// results returns what became of the requests so far.
func (c *chain) results() (results []server.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.events {
		results = append(results, e.Result)
	}
	return results
}

// answer is what a client got. Of a broken one it has the error, and the body as
// far as it came.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

// pay sends a payment of the account acme under the key k-1. Fields
// ("Name: value") add to its header or replace what is there; without a value
// they remove it.
func (c *chain) pay(fields ...string) answer {
	c.t.Helper()
	return c.send(c.payment(`{"amount":1200}`, fields...))
}

func (c *chain) payment(body string, fields ...string) *http.Request {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://api.example/payments?x=1;2", strings.NewReader(body))
	require.NoError(c.t, err)
	r.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k-1"}, "X-Account-Id": {"acme"}}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ": ")
		r.Header.Set(name, value)
		if value == "" {
			r.Header.Del(name)
		}
	}
	return r
}

// send sends r on a connection of its own, so that net/http does not send it
// twice.
func (c *chain) send(r *http.Request) answer {
	r.Close = true
	resp, err := c.front.RoundTrip(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body), err}
}

// requireAnswer demands a whole answer.
func requireAnswer(t *testing.T, got answer, status int, body string) {
	t.Helper()
	require.NoError(t, got.err)
	require.Equal(t, status, got.status, got.body)
	require.Equal(t, body, got.body)
}

// requireProblem demands problem details with a status and code.
func requireProblem(t *testing.T, got answer, status int, code string) {
	t.Helper()
	require.NoError(t, got.err)
	require.Equal(t, status, got.status, got.body)
	require.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
	require.Contains(t, got.body, `"code":"`+code+`"`)
}

// requireReplay demands the same answer as first, from the store.
func requireReplay(t *testing.T, first, replay answer) {
	t.Helper()
	requireAnswer(t, replay, first.status, first.body)
	require.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
}

const lease = 30 * time.Second // the middleware's default
