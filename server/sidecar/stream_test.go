package sidecar_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server"
)

// ab answers with "a" at once and "b" after a pause.
func ab(contentType string, pause time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "a")
		_ = http.NewResponseController(w).Flush()
		time.Sleep(pause)
		_, _ = io.WriteString(w, "b")
	}
}

// open sends r and returns the answer as soon as it begins.
func (c *chain) open(r *http.Request) *http.Response {
	c.t.Helper()
	r.Close = true
	resp, err := c.front.RoundTrip(r)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// read reads n bytes.
func read(t *testing.T, r io.Reader, n int) string {
	t.Helper()
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	require.NoError(t, err)
	return string(b)
}

func TestAStreamWithAKeyPassesAndIsReplayedWhole(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"text/event-stream", "text/plain"} {
		synctest.Test(t, func(t *testing.T) {
			c := inFrontOfHandler(t, ab(contentType, 300*time.Millisecond), nil)
			start := time.Now()
			resp := c.open(c.payment("{}"))
			require.Equal(t, "a", read(t, resp.Body, 1))
			require.Equal(t, 50*time.Millisecond, time.Since(start))
			require.Equal(t, "b", read(t, resp.Body, 1))
			require.Equal(t, 300*time.Millisecond, time.Since(start))
			_, err := resp.Body.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)

			replay := c.send(c.payment("{}"))
			requireAnswer(t, replay, http.StatusCreated, "ab")
			require.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
			require.Equal(t, contentType, replay.header.Get("Content-Type"))
		})
	}
}

func TestStreamsPassOverHTTP2(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "k-1"} {
		t.Run("key "+key, func(t *testing.T) {
			t.Parallel()
			wasRead := make(chan struct{})
			service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "a")
				_ = http.NewResponseController(w).Flush()
				<-wasRead
				_, _ = io.WriteString(w, "b")
			}))
			t.Cleanup(service.Close)
			c := &chain{t: t}
			front := httptest.NewUnstartedServer(c.proxy(&http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", service.Listener.Addr().String())
				},
				DisableKeepAlives: true,
			}, nil))
			front.EnableHTTP2 = true
			front.StartTLS()
			t.Cleanup(front.Close)
			send := func() *http.Response {
				r := c.payment("{}", "Idempotency-Key: "+key)
				r.URL.Scheme, r.URL.Host = "https", front.Listener.Addr().String()
				resp, err := front.Client().Do(r)
				require.NoError(t, err)
				t.Cleanup(func() { resp.Body.Close() })
				require.Equal(t, 2, resp.ProtoMajor)
				return resp
			}
			resp := send()
			require.Equal(t, "a", read(t, resp.Body, 1), "while the service is still at it")
			close(wasRead)
			require.Equal(t, "b", read(t, resp.Body, 1))
			_, err := resp.Body.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			if key != "" {
				replay := send()
				require.Equal(t, "true", replay.Header.Get("Idempotent-Replayed"))
				require.Equal(t, "ab", read(t, replay.Body, 2))
			}
		})
	}
}

// Many services write short answers in pieces, and without a length. They are
// stored first and then sent like others.
func TestAnAnswerWithoutALengthThatIsSoonCompleteIsStoredFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := inFrontOfHandler(t, ab("text/plain", 49*time.Millisecond), nil)
		got := c.pay()
		requireAnswer(t, got, http.StatusCreated, "ab")
		require.Equal(t, "2", got.header.Get("Content-Length"))
		require.NotEmpty(t, got.header.Get("Content-Digest"))
		requireReplay(t, got, c.pay())
	})
}

func TestTrailersOfAnAnswerWithAKeyPassTheFirstTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := inFrontOfHandler(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "made")
			w.Header().Set("X-Sum", "1")
		}, nil)
		resp := c.open(c.payment("{}"))
		require.Equal(t, "made", read(t, resp.Body, 4))
		_, err := resp.Body.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, http.Header{"X-Sum": {"1"}}, resp.Trailer)
		replay := c.open(c.payment("{}"))
		require.Equal(t, "made", read(t, replay.Body, 4))
		_, err = replay.Body.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Empty(t, replay.Trailer)
	})
}

func TestAStreamWithoutAKeyPassesUntouched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := inFrontOfHandler(t, ab("text/event-stream", time.Hour), nil)
		start := time.Now()
		resp := c.open(c.payment("{}", "Idempotency-Key: "))
		require.Equal(t, "a", read(t, resp.Body, 1))
		require.Zero(t, time.Since(start))
		require.Equal(t, "b", read(t, resp.Body, 1))
		require.Equal(t, time.Hour, time.Since(start), "no time limit")
	})
}

// The service answers line by line while the client still sends.
func TestBothDirectionsStreamAtTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := inFrontOfHandler(t, func(w http.ResponseWriter, r *http.Request) {
			controller := http.NewResponseController(w)
			assert.NoError(t, controller.EnableFullDuplex())
			for lines := bufio.NewScanner(r.Body); lines.Scan(); {
				_, _ = io.WriteString(w, strings.ToUpper(lines.Text())+"\n")
				_ = controller.Flush()
			}
		}, nil)
		body, w := io.Pipe()
		r := c.payment("", "Idempotency-Key: ")
		r.Body, r.ContentLength = body, -1
		go func() { _, _ = io.WriteString(w, "one\n") }()
		resp, err := c.front.RoundTrip(r) // on a connection that is kept, before whose answers net/http reads whole requests
		require.NoError(t, err)
		defer resp.Body.Close()
		answers := bufio.NewReader(resp.Body)
		for _, line := range []string{"ONE\n", "TWO\n", "THREE\n"} {
			got, err := answers.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, line, got)
			next := map[string]string{"ONE\n": "two\n", "TWO\n": "three\n"}[line]
			_, err = io.WriteString(w, next)
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		_, err = answers.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	})
}

// echo switches to a protocol that sends back what it gets.
func echo(t *testing.T) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "echo", r.Header.Get("Upgrade"))
		conn, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, rw)
	}
}

func (c *chain) upgrade(fields ...string) io.ReadWriteCloser {
	c.t.Helper()
	r := c.payment("", append(fields, "Connection: Upgrade", "Upgrade: echo")...)
	resp, err := c.front.RoundTrip(r)
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusSwitchingProtocols, resp.StatusCode)
	conn, ok := resp.Body.(io.ReadWriteCloser)
	require.True(c.t, ok)
	return conn
}

func TestUpgradesPass(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "k-1"} {
		t.Run("key "+key, func(t *testing.T) {
			t.Parallel()
			c := inFrontOfHandler(t, echo(t), nil)
			conn := c.upgrade("Idempotency-Key: " + key)
			for _, s := range []string{"hello", "world"} {
				_, err := io.WriteString(conn, s)
				require.NoError(t, err)
				require.Equal(t, s, read(t, conn, 5))
			}
			conn.Close()
			if key != "" {
				require.Eventually(t, func() bool { return len(c.results()) == 1 }, 10*time.Second, time.Millisecond)
				requireProblem(t, c.send(c.payment("")), http.StatusConflict, "RESPONSE_NOT_KEPT")
			}
		})
	}
}

func TestInformationalAnswersPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Reply("HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"+made))
		c := inFrontOf(t, upstream.Transport, nil)
		for _, key := range []string{"", "k-1"} {
			var hints []string
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
					hints = append(hints, strconv.Itoa(status)+" "+h.Get("Link"))
					return nil
				},
			})
			got := c.send(c.payment("{}", "Idempotency-Key: "+key).WithContext(ctx))
			requireAnswer(t, got, http.StatusCreated, "made")
			require.Equal(t, []string{"103 </style.css>"}, hints)
			require.Empty(t, got.header["Link"])
		}
		require.Equal(t, []server.Result{server.ResultUnkeyed, server.ResultExecuted}, c.results())
	})
}
