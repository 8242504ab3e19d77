package sidecar_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/sidecar"
)

func TestOneOfManyDuplicatesReachesTheService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var effects atomic.Int64
		c := inFrontOfHandler(t, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(100 * time.Millisecond)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"payment":%d}`, effects.Add(1))
		}, nil)
		var sent sync.WaitGroup
		for range 50 {
			sent.Go(func() {
				got := c.pay()
				assert.Equal(t, http.StatusCreated, got.status)
				assert.Equal(t, `{"payment":1}`, got.body)
			})
		}
		sent.Wait()
		require.EqualValues(t, 1, effects.Load())
	})
}

func TestTheServiceGetsWhatTheClientSentAndWhoseAttemptItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Reply(faultnet.Answer(503, "later")))
		c := inFrontOf(t, upstream.Transport, nil)
		for range 2 {
			got := c.pay("Idempotency-Operation-Id: forged", "Idempotency-Attempt: 7", "Accept-Encoding: gzip",
				"X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https", "X-Custom: kept", "Connection: X-Hop", "X-Hop: 1", "Te: trailers")
			requireAnswer(t, got, http.StatusServiceUnavailable, "later")
		}
		requests := upstream.Requests()
		require.Len(t, requests, 2)
		var operations []string
		for i, r := range requests {
			head := strings.ToLower(r.Head)
			require.True(t, strings.HasPrefix(head, "post /payments?x=1;2 http/1.1\r\nhost: api.example\r\n"), head)
			for _, field := range []string{
				"idempotency-key: k-1", fmt.Sprintf("idempotency-attempt: %d", i+1), "x-account-id: acme", "content-length: 15",
				"x-forwarded-for: 203.0.113.9", "x-forwarded-proto: https", "x-forwarded-host: api.example", "x-custom: kept", "te: trailers",
			} {
				require.Contains(t, head, "\r\n"+field)
			}
			for _, gone := range []string{"forged", "attempt: 7", "gzip", "x-hop"} {
				require.NotContains(t, head, gone)
			}
			require.JSONEq(t, `{"amount":1200}`, string(r.Body))
			_, rest, _ := strings.Cut(head, "\r\nidempotency-operation-id: ")
			id, _, _ := strings.Cut(rest, "\r\n")
			require.NoError(t, uuid.Validate(id))
			operations = append(operations, id)
		}
		require.Equal(t, operations[0], operations[1])
	})
}

func TestTheUpstreamMayHaveAPath(t *testing.T) {
	t.Parallel()
	var c chain
	config := c.config(faultnet.Handle(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.EscapedPath())
	})), nil)
	config.Upstream = &url.URL{Scheme: "http", Host: "upstream", Path: "/v1/"}
	p, err := sidecar.New(config)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api/a%2Fb%20c", nil)
	require.NoError(t, err)
	resp, err := faultnet.Handle(t, p).RoundTrip(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "/v1/a%2Fb%20c", string(body))
}

// The transport of the Proxy's own reaches real services, asks for no coding, and
// can tell when there is nobody.
func TestTheProxyBringsATransport(t *testing.T) {
	t.Parallel()
	upstream := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(201, "made")))
	c := &chain{t: t}
	config := c.config(nil, nil)
	var err error
	config.Upstream, err = url.Parse(upstream.URL)
	require.NoError(t, err)
	p, err := sidecar.New(config)
	require.NoError(t, err)
	c.front = faultnet.Handle(t, p)
	c.front.DisableCompression = true
	for _, key := range []string{"", "", "k-1", "k-2"} {
		requireAnswer(t, c.pay("Idempotency-Key: "+key), http.StatusCreated, "made")
	}
	var conns []int
	for _, r := range upstream.Requests() {
		require.NotContains(t, r.Head, "Accept-Encoding")
		conns = append(conns, r.Conn)
	}
	require.Equal(t, []int{1, 1, 2, 3}, conns, "a request with a key has a connection of its own")
	upstream.Close()
	requireProblem(t, c.pay("Idempotency-Key: k-3"), http.StatusServiceUnavailable, "UPSTREAM_UNREACHABLE")
}

// writes is a connection that notes how it is written to.
type writes struct {
	net.Conn
	sizes *[]int
}

func (w writes) Write(b []byte) (int, error) {
	*w.sizes = append(*w.sizes, len(b))
	return w.Conn.Write(b)
}

// The less there is to a request, the less can be lost of it.
func TestARequestWithAKeyIsSentInOnePiece(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Reply(faultnet.Answer(201, "made")))
		var sizes []int
		dial := upstream.Transport.DialContext
		upstream.Transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return writes{conn, &sizes}, err
		}
		c := inFrontOf(t, upstream.Transport, nil)
		requireAnswer(t, c.pay(), http.StatusCreated, "made")
		r := upstream.Requests()[0]
		require.Equal(t, []int{len(r.Head) + len(r.Body)}, sizes)
	})
}

// Every request without a key, and with a method that is not governed, is the
// service's own affair.
func TestRequestsWithoutAKeyAreNotGuarded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Reply(faultnet.Answer(201, "made")))
		c := inFrontOf(t, upstream.Transport, nil)
		for range 2 {
			got := c.pay("Idempotency-Key: ", "X-Account-Id: ", "Idempotency-Operation-Id: forged", "Accept-Encoding: br")
			requireAnswer(t, got, http.StatusCreated, "made")
			put := c.payment("{}")
			put.Method = http.MethodPut
			requireAnswer(t, c.send(put), http.StatusCreated, "made")
		}
		requests := upstream.Requests()
		require.Len(t, requests, 4)
		require.Contains(t, requests[0].Head, "Accept-Encoding: br")
		for _, r := range requests {
			require.NotContains(t, strings.ToLower(r.Head), "operation-id")
		}
	})
}

func TestAKeyCanBeDemanded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Reply(faultnet.Answer(201, "made")))
		c := inFrontOf(t, upstream.Transport, func(m *server.Middleware) { m.Optional = false })
		requireProblem(t, c.pay("Idempotency-Key: "), http.StatusBadRequest, "IDEMPOTENCY_KEY_MISSING")
		require.Empty(t, upstream.Requests())
	})
}

func TestABodyOverTheLimitNeverReachesTheService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Reply(faultnet.Answer(201, "made")))
		c := inFrontOf(t, upstream.Transport, func(m *server.Middleware) { m.MaxBody = 10 })
		requireProblem(t, c.pay(), http.StatusRequestEntityTooLarge, "REQUEST_TOO_LARGE")
		require.Empty(t, upstream.Requests())
		requireAnswer(t, c.pay("Idempotency-Key: "), http.StatusCreated, "made")
	})
}

// Fields of one line and of many, of the connection, of the caller and of the
// moment: an answer of the service is passed on whole, and replayed without what
// belonged to one answer alone.
func TestFieldsOfAnAnswerThatIsReplayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Reply(faultnet.Answer(201, "a,b",
			"Link: </1>; rel=next", "Link: </2>; rel=last",
			`Content-Disposition: attachment; filename="a,b.txt"`,
			"Set-Cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "Set-Cookie: b=2; Expires=Wed, 21 Oct 2026 07:28:00 GMT",
			"Date: Wed, 21 Oct 2026 07:28:00 GMT", "X-Request-Id: r-1", "X-RateLimit-Remaining: 9", `WWW-Authenticate: Basic realm="x"`,
			"Connection: X-Hop", "X-Hop: 1", "Keep-Alive: timeout=5", `Etag: "e"`, "Location: /payments/1", "Content-Type: text/csv",
		)))
		c := inFrontOf(t, upstream.Transport, nil)
		first, replay := c.pay(), c.pay()
		requireAnswer(t, first, http.StatusCreated, "a,b")
		requireReplay(t, first, replay)
		require.Len(t, upstream.Requests(), 1)

		kept := http.Header{
			"Link":                {"</1>; rel=next", "</2>; rel=last"},
			"Content-Disposition": {`attachment; filename="a,b.txt"`},
			"Etag":                {`"e"`},
			"Location":            {"/payments/1"},
			"Content-Type":        {"text/csv"},
			"Content-Length":      {"3"},
			"Content-Digest":      first.header["Content-Digest"],
			"Idempotency-Key":     {"k-1"},
		}
		require.NotEmpty(t, kept["Content-Digest"])
		for name, lines := range kept {
			require.Equal(t, lines, first.header[name], name)
			require.Equal(t, lines, replay.header[name], name)
		}
		for _, name := range []string{"Set-Cookie", "X-Request-Id", "X-Ratelimit-Remaining", "Www-Authenticate"} {
			require.NotEmpty(t, first.header[name], name)
			require.Empty(t, replay.header[name], name)
		}
		require.Len(t, first.header["Set-Cookie"], 2)
		require.Len(t, replay.header["Date"], 1)
		for _, name := range []string{"X-Hop", "Keep-Alive"} {
			require.Empty(t, first.header[name], name)
			require.Empty(t, replay.header[name], name)
		}
	})
}

// The service is not asked for a coding, because its answer is kept for
// everybody. One that encodes all the same is not believed blindly.
func TestEncodedAnswersReachEverybodyReadable(t *testing.T) {
	t.Parallel()
	plain := strings.Repeat(`{"amount":1200}`, 700)
	tests := map[string]func(w http.ResponseWriter, r *http.Request){
		"on demand": func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "" {
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(zipped(plain))
				return
			}
			_, _ = io.WriteString(w, plain)
		},
		"always": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Vary", "Accept-Encoding")
			_, _ = w.Write(zipped(plain))
		},
	}
	for name, upstream := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := inFrontOfHandler(t, upstream, nil)
				for _, accept := range []string{"gzip", "identity", "gzip;q=0", "gzip", ""} {
					got := c.pay("Accept-Encoding: " + accept)
					require.NoError(t, got.err)
					if got.header.Get("Content-Encoding") == "gzip" {
						require.Contains(t, []string{"gzip", ""}, accept, "without the field every coding will do")
						got.body = unzipped(t, got.body)
					}
					require.Equal(t, plain, got.body, accept)
				}
			})
		})
	}
}

func zipped(s string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, s)
	_ = w.Close()
	return b.Bytes()
}

func unzipped(t *testing.T, s string) string {
	t.Helper()
	r, err := gzip.NewReader(strings.NewReader(s))
	require.NoError(t, err)
	plain, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(plain)
}

func TestAConfigurationThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		change func(*sidecar.Config)
		want   string
	}{
		{func(c *sidecar.Config) { c.Upstream = nil }, "must be a URL such as http://127.0.0.1:9000"},
		{func(c *sidecar.Config) { c.Upstream = &url.URL{Scheme: "http"} }, "must be a URL"},
		{func(c *sidecar.Config) { c.Upstream = &url.URL{Scheme: "unix", Host: "x"} }, "must be a URL"},
		{func(c *sidecar.Config) { c.Upstream.User = url.User("u") }, "no query, fragment or credentials"},
		{func(c *sidecar.Config) { c.Upstream.RawQuery = "a=1" }, "no query, fragment or credentials"},
		{func(c *sidecar.Config) { c.Middleware = nil }, "the middleware is missing"},
		{func(c *sidecar.Config) { c.Middleware.Account = nil }, "Middleware.Account is nil"},
	}
	for _, tt := range tests {
		var c chain
		config := c.config(nil, nil)
		tt.change(&config)
		_, err := sidecar.New(config)
		require.ErrorContains(t, err, tt.want)
	}
}
