package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/digest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

const (
	shapesStored   = 32 << 10 // MaxStored of the test
	shapesBuffered = 48 << 10
)

// fate is what becomes of an answer.
type fate int

const (
	kept    fate = iota // replayed
	again               // not final: the handler is called again
	notKept             // done, but too large to keep or not recorded at all
)

// shape is one way for a handler to answer.
type shape struct {
	name   string
	handle http.HandlerFunc
	fate   fate
	// passes: the answer is not held back, and so has no digest.
	passes bool
	http1  bool // the handler does what HTTP/2 cannot
	// onceOnly are fields of the first answer that no replay may have.
	onceOnly []string
}

func shapes() []shape {
	return []shape{
		// Statuses and bodies.
		{name: "nothing", handle: func(http.ResponseWriter, *http.Request) {}},
		{name: "a body only", handle: say(0, "hello")},
		{name: "an empty write only", handle: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil) }},
		{name: "a body that is sniffed as HTML", handle: say(200, "<!DOCTYPE html><p>hello")},
		{name: "a body that is sniffed as binary", handle: say(200, "\x00\x01\xff")},
		{name: "a long body in small writes", handle: func(w http.ResponseWriter, _ *http.Request) {
			for i := range 5000 {
				_, _ = fmt.Fprintf(w, "%d,", i)
			}
		}},
		{name: "an image that is sniffed from its second write on", handle: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "\x89")
			_, _ = io.WriteString(w, "PNG\r\n\x1a\n"+strings.Repeat("x", 4096))
		}},
		{name: "created, with a type, a location and a tag", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/csv; charset=utf-8")
			w.Header().Set("Location", "/payments/1")
			w.Header().Set("ETag", `"v1"`)
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "id,amount\n1,1200\n")
		}},
		{name: "created, with an empty body", handle: say(http.StatusCreated, "")},
		{name: "an explicit length of 0", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "0")
			w.WriteHeader(http.StatusAccepted)
		}},
		{name: "no content", handle: say(http.StatusNoContent, "")},
		{name: "no content, but the handler writes some", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			_, err := io.WriteString(w, "x")
			expect(err, http.ErrBodyNotAllowed)
		}},
		{name: "not modified", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"v1"`)
			w.WriteHeader(http.StatusNotModified)
		}},
		{name: "reset content", handle: say(http.StatusResetContent, "")},
		{name: "see other", handle: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/payments/1", http.StatusSeeOther) }},
		{name: "a problem", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(map[string]any{"title": "No such thing"})
		}},
		{name: "http.Error", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			http.Error(w, "gone", http.StatusGone)
		}},
		{name: "http.ServeContent", handle: func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.txt", time.Unix(1e9, 0), strings.NewReader(strings.Repeat("content ", 1000)))
		}},

		// Header.
		{name: "a second WriteHeader", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			w.WriteHeader(http.StatusBadRequest)
		}},
		{name: "WriteHeader behind the body", handle: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "x")
			w.WriteHeader(http.StatusBadRequest)
		}},
		{name: "fields changed too late", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-A", "1")
			w.WriteHeader(http.StatusOK)
			w.Header().Set("X-A", "2")
			w.Header().Set("X-B", "1")
			_, _ = io.WriteString(w, "x")
			w.Header().Del("X-A")
		}},
		{name: "no sniffing", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "<html>")
		}},
		{name: "no date", handle: func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil }},
		{name: "repeated fields, commas and odd values", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Link"] = []string{"</b>; rel=next", "</a>; rel=prev"}
			w.Header().Set("Content-Disposition", `attachment; filename="a,b.txt"`)
			w.Header()["X-Empty"] = []string{""}
			w.Header().Set("X-Latin", "caf\xe9")
			w.Header().Set("X-Break", "a\r\nb")
			w.Header()["x-lower"] = []string{"1"}
			_, _ = io.WriteString(w, "x")
		}},
		{name: "what belongs to one answer alone", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Set-Cookie"] = []string{"a=1; Expires=Thu, 01 Jan 2037 00:00:00 GMT", "b=2"}
			w.Header().Set("WWW-Authenticate", "Basic")
			w.Header().Set("X-Request-Id", "r1")
			w.Header().Set("X-RateLimit-Remaining", "9")
			w.Header().Set("RateLimit", `"default";r=9`)
			w.Header().Set("X-Kept", "1")
			_, _ = io.WriteString(w, "x")
		}, onceOnly: []string{"Set-Cookie", "Www-Authenticate", "X-Request-Id", "X-Ratelimit-Remaining", "Ratelimit"}},
		{name: "what belongs to one connection alone", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "X-Hop")
			w.Header().Set("X-Hop", "1")
			w.Header().Set("Keep-Alive", "timeout=5")
			w.Header().Set("X-Kept", "1")
			_, _ = io.WriteString(w, "x")
		}, http1: true, onceOnly: []string{"Connection", "Keep-Alive", "X-Hop"}},
		{name: "the connection is to close", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "x")
		}},
		{name: "outer fields replaced, extended and left alone", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Add("Vary", "Accept")
			_, _ = io.WriteString(w, "x")
		}},
		{name: "a digest of its own", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Digest", "sha-512=:AAAA:")
			_, _ = io.WriteString(w, "x")
		}},

		// Lengths.
		{name: "the right length", handle: sized("5", "hello")},
		{name: "a length that is none", handle: sized("-5", "hello"), http1: true},
		{name: "one byte too much", http1: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			_, _ = io.WriteString(w, "hello")
			_, err := io.WriteString(w, "!")
			expect(err, http.ErrContentLength)
		}},

		// Informational answers.
		{name: "early hints", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "x")
		}},
		{name: "processing, twice", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusProcessing)
			w.WriteHeader(http.StatusProcessing)
			_, _ = io.WriteString(w, "x")
		}},

		// Flushing and controlling.
		{name: "flushed between writes", passes: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "b")
		}},
		{name: "flushed before anything", passes: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			expect(http.NewResponseController(w).Flush(), nil)
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, "<html>")
		}},
		{name: "flushed at the end", passes: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "<html>")
			w.(http.Flusher).Flush()
			w.(http.Flusher).Flush()
		}},
		{name: "flushed no content", passes: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			w.(http.Flusher).Flush()
		}},
		{name: "deadlines set", handle: func(w http.ResponseWriter, _ *http.Request) {
			c := http.NewResponseController(w)
			expect(c.SetWriteDeadline(time.Now().Add(time.Minute)), nil)
			expect(c.SetReadDeadline(time.Now().Add(time.Minute)), nil)
			_, _ = io.WriteString(w, "x")
		}},
		{name: "full duplex", http1: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			expect(http.NewResponseController(w).EnableFullDuplex(), nil)
			_, _ = io.WriteString(w, "x")
		}},
		{name: "copied from a reader", handle: func(w http.ResponseWriter, _ *http.Request) {
			n, err := io.Copy(w, strings.NewReader(strings.Repeat("<p>", 10_000)))
			expect(err, nil)
			expect(n, int64(30_000))
		}},
		{name: "trailers, declared", onceOnly: []string{"Trailer"}, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, X-Unset")
			_, _ = io.WriteString(w, "x")
			w.Header().Set("X-Sum", "1")
		}},
		{name: "trailers, declared and flushed", passes: true, onceOnly: []string{"Trailer"}, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "x")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Sum", "1")
		}},
		{name: "trailers, declared and taken back", onceOnly: []string{"Trailer"}, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			w.Header().Set("X-Sum", "1")
			_, _ = io.WriteString(w, "x")
			w.Header().Del("X-Sum")
		}},
		{name: "trailers by prefix", handle: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		}},

		// Limits.
		{name: "as large as can be kept", handle: say(0, strings.Repeat("x", shapesStored))},
		{name: "larger than can be kept", fate: notKept, handle: say(http.StatusCreated, strings.Repeat("x", shapesStored+1))},
		{name: "larger than can be held back", fate: notKept, passes: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				_, _ = io.WriteString(w, strings.Repeat("x", 1000))
			}
		}},
		{name: "larger than can be held back, at once", fate: notKept, passes: true, handle: say(0, "<html>"+strings.Repeat("x", 100_000))},

		// Answers that are not final.
		{name: "unavailable", fate: again, handle: say(http.StatusServiceUnavailable, "later")},
		{name: "unauthorized", fate: again, handle: say(http.StatusUnauthorized, "who?")},
		{name: "too many requests", fate: again, handle: say(http.StatusTooManyRequests, "later")},
		{name: "a status beyond the classes", fate: again, handle: say(999, "?")},
		{name: "an error that is too large to keep", fate: again, handle: say(http.StatusBadGateway, strings.Repeat("x", shapesStored+1))},
		{name: "an error that is flushed", fate: again, passes: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "x")
		}},
		{name: "a panic", fate: again, handle: func(http.ResponseWriter, *http.Request) { panic("at once") }},
		{name: "a panic behind the body", fate: again, handle: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "x")
			panic(http.ErrAbortHandler)
		}},
		{name: "a panic behind a flush", fate: again, handle: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "x")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}},
		{name: "a status that is none", fate: again, handle: say(99, "")},
		{name: "much less than the length, flushed", fate: again, passes: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10000")
			_, _ = io.WriteString(w, "hello")
			w.(http.Flusher).Flush()
		}},
		{name: "less than the length, flushed", fate: again, passes: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "hello")
			w.(http.Flusher).Flush()
		}},

		// Hijacking.
		{name: "hijacked", fate: notKept, passes: true, http1: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Unused", "1")
			hijack(w, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\nIdempotency-Key: key\r\n\r\n")
		}},
		{name: "hijacked behind the header", fate: notKept, passes: true, http1: true, handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			w.WriteHeader(http.StatusCreated)
			hijack(w, "ok")
		}},

		// Handlers between ours and the one that answers.
		{name: "http.TimeoutHandler", handle: http.TimeoutHandler(say(http.StatusCreated, "hello"), time.Minute, "").ServeHTTP},
		{name: "compression, for who asks for it", handle: compressing(say(0, strings.Repeat("hello ", 2000))).ServeHTTP},
	}
}

func say(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if status != 0 {
			w.WriteHeader(status)
		}
		if body != "" {
			_, _ = io.WriteString(w, body)
		}
	}
}

func sized(length, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", length)
		_, _ = io.WriteString(w, body)
	}
}

func hijack(w http.ResponseWriter, say string) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	expect(err, nil)
	defer conn.Close()
	_, err = w.Write([]byte("x"))
	expect(err, http.ErrHijacked)
	_, _ = buf.WriteString(say)
	_ = buf.Flush()
}

// expect panics in a handler, so that its answer is lost.
func expect(got, want any) {
	if got != want {
		panic(fmt.Sprintf("%v, not %v", got, want))
	}
}

// view is an answer as a client sees it, but for its Date and how its length
// is told.
type view struct {
	Informational []string
	Status        int
	Header        http.Header
	Body          string
	Trailer       http.Header
	Failed        bool // the answer broke off, or there was none
}

// own are the fields of an answer by which the middleware speaks.
var own = []string{"Idempotency-Key", "Idempotent-Replayed", "Content-Digest"}

func look(t *testing.T, client *http.Client, url string) (v view, ours http.Header) {
	t.Helper()
	trace := &httptrace.ClientTrace{Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
		v.Informational = append(v.Informational, fmt.Sprint(status, h["Link"]))
		return nil
	}}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "POST", url, strings.NewReader("{}"))
	require.NoError(t, err)
	req.Header["Idempotency-Key"] = []string{"key"}
	res, err := client.Do(req)
	if err != nil {
		v.Failed = true
		return v, nil
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	v.Status, v.Header, v.Body, v.Trailer, v.Failed = res.StatusCode, res.Header, string(body), res.Trailer, err != nil
	ours = http.Header{}
	for _, name := range append(own, "Content-Length") {
		ours[name] = v.Header[name]
		delete(v.Header, name)
	}
	v.Header.Del("Date")
	return v, ours
}

// serveShapes serves every shape under its index, with and without the
// middleware, behind a middleware that sets fields of its own.
func serveShapes(t *testing.T, http2 bool) (plain, guarded *httptest.Server, calls *sync.Map) {
	t.Helper()
	calls = new(sync.Map)
	mw := &server.Middleware{
		Store:       new(memstore.Store),
		Account:     func(r *http.Request) (string, error) { return r.URL.Path, nil },
		MaxStored:   shapesStored,
		MaxBuffered: shapesBuffered,
		Logger:      slog.New(slog.DiscardHandler),
	}
	start := func(guard func(http.Handler) http.Handler) *httptest.Server {
		mux := http.NewServeMux()
		for i, s := range shapes() {
			mux.Handle("/"+strconv.Itoa(i), guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, _ := calls.LoadOrStore(r.Host+r.URL.Path, new(atomic.Int32))
				n.(*atomic.Int32).Add(1)
				s.handle(w, r)
			})))
		}
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Origin")
			w.Header().Set("Cache-Control", "private")
			w.Header().Set("X-Frame-Options", "DENY")
			mux.ServeHTTP(w, r)
		}))
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.EnableHTTP2 = http2
		srv.StartTLS()
		t.Cleanup(srv.Close)
		srv.Client().Transport.(*http.Transport).DisableCompression = true
		srv.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		return srv
	}
	return start(func(h http.Handler) http.Handler { return h }), start(mw.Handler), calls
}

// The first answer is what the handler would have sent without the middleware,
// and a replay is what the first answer was.
func TestAnswersLookTheSameAsWithoutTheMiddleware(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			plain, guarded, calls := serveShapes(t, protocol == "HTTP/2")
			for i, s := range shapes() {
				if s.http1 && protocol == "HTTP/2" {
					continue
				}
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					path := "/" + strconv.Itoa(i)
					want, _ := look(t, plain.Client(), plain.URL+path)
					first, ours := look(t, guarded.Client(), guarded.URL+path)
					require.Equal(t, want, first)
					s.checkOwnFields(t, first, ours)

					second, ours := look(t, guarded.Client(), guarded.URL+path)
					n, _ := calls.Load(guarded.Listener.Addr().String() + path)
					s.checkSecond(t, first, second, ours, n.(*atomic.Int32).Load())
				})
			}
		})
	}
}

// checkOwnFields checks what the middleware adds to a first answer.
func (s shape) checkOwnFields(t *testing.T, v view, ours http.Header) {
	t.Helper()
	if v.Status == 0 {
		return
	}
	require.Equal(t, []string{"key"}, ours["Idempotency-Key"])
	require.Empty(t, ours["Idempotent-Replayed"])
	if !s.passes && !v.Failed {
		s.checkSealed(t, v, ours)
	}
}

// checkSealed checks that a client can tell whether it has the whole body.
func (s shape) checkSealed(t *testing.T, v view, ours http.Header) {
	t.Helper()
	if v.Status == http.StatusNoContent || v.Status == http.StatusNotModified {
		require.Empty(t, ours["Content-Length"])
		require.Empty(t, ours["Content-Digest"])
		return
	}
	if len(v.Trailer) == 0 {
		require.Equal(t, []string{strconv.Itoa(len(v.Body))}, ours["Content-Length"])
	}
	if s.name != "a digest of its own" {
		require.Equal(t, []string{digest.Of([]byte(v.Body))}, ours["Content-Digest"])
	}
}

func (s shape) checkSecond(t *testing.T, first, second view, ours http.Header, calls int32) {
	t.Helper()
	switch s.fate {
	case kept:
		require.EqualValues(t, 1, calls)
		require.Equal(t, []string{"true"}, ours["Idempotent-Replayed"])
		require.Equal(t, []string{"key"}, ours["Idempotency-Key"])
		for _, name := range s.onceOnly {
			first.Header.Del(name)
		}
		first.Informational, first.Trailer = nil, nil
		require.Equal(t, first, second)
		s.checkSealed(t, second, ours)
	case again:
		require.GreaterOrEqual(t, calls, int32(2), "net/http itself sends a keyed request again that found no answer")
		require.Empty(t, ours["Idempotent-Replayed"])
		require.Equal(t, first, second)
	case notKept:
		require.EqualValues(t, 1, calls)
		require.Equal(t, http.StatusConflict, second.Status)
		require.Contains(t, second.Body, `"code":"RESPONSE_NOT_KEPT"`)
		require.Contains(t, second.Body, fmt.Sprintf(`"original_status":%d`, first.Status))
	}
}
