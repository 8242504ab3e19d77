package faultnet_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
)

func TestHandleServesInVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport := faultnet.Handle(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Hour)
			_, _ = io.Copy(w, r.Body)
		}))
		start := time.Now()
		body := strings.Repeat("x", 1<<20)
		resp := post(t, transport, "http://api.example.com/", body)
		require.Equal(t, http.StatusOK, resp.status)
		require.Equal(t, body, resp.body)
		require.Equal(t, time.Hour, time.Since(start))
	})
}

func TestHandleStopsWithTheAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport := faultnet.Handle(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
		require.NoError(t, err)
		_, err = transport.RoundTrip(req)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))
	})
}

func TestClosedListenerRefusesAndStopsAccepting(t *testing.T) {
	t.Parallel()
	l := faultnet.Listen()
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err := l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = l.DialContext(t.Context(), "tcp", "api.example.com:80")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := faultnet.Listen().DialContext(ctx, "tcp", "api.example.com:80")
	require.ErrorIs(t, err, context.Canceled)
}

func TestPipeDeliversWhatWasWrittenBeforeTheClose(t *testing.T) {
	t.Parallel()
	a, b := faultnet.Pipe()
	_, err := a.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, a.Close())

	got, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	_, err = b.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.EPIPE)
	_, err = a.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = a.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestPipeResetsAfterSetLingerZero(t *testing.T) {
	t.Parallel()
	a, b := faultnet.Pipe()
	_, err := a.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, a.(interface{ SetLinger(seconds int) error }).SetLinger(0))
	require.NoError(t, a.Close())
	_, err = b.Read(make([]byte, 5))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestPipeBlocksAWriterWhoIsNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := faultnet.Pipe()
		sent := bytes.Repeat([]byte("0123456789"), 20_000)
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := a.Write(sent)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, 64<<10, n)

		require.NoError(t, a.SetWriteDeadline(time.Time{}))
		go func() {
			_, _ = a.Write(sent[n:])
			a.Close()
		}()
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent, got))
	})
}

func TestPipeDeadlines(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		set  func(c net.Conn, start time.Time)
		want time.Duration
	}{
		{"in the future", func(c net.Conn, start time.Time) {
			_ = c.SetReadDeadline(start.Add(time.Second))
		}, time.Second},
		{"of both directions", func(c net.Conn, start time.Time) {
			_ = c.SetDeadline(start.Add(time.Second))
		}, time.Second},
		{"in the past", func(c net.Conn, _ time.Time) {
			_ = c.SetReadDeadline(time.Unix(1, 0))
		}, 0},
		{"moved while somebody waits", func(c net.Conn, start time.Time) {
			_ = c.SetReadDeadline(start.Add(time.Second))
			time.AfterFunc(time.Second/2, func() { _ = c.SetReadDeadline(start.Add(3 * time.Second)) })
		}, 3 * time.Second},
		{"set while somebody waits", func(c net.Conn, start time.Time) {
			time.AfterFunc(time.Second, func() { _ = c.SetReadDeadline(start) })
		}, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a, _ := faultnet.Pipe()
				start := time.Now()
				tt.set(a, start)
				_, err := a.Read(make([]byte, 1))
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				var timeout net.Error
				require.ErrorAs(t, err, &timeout)
				require.True(t, timeout.Timeout())
				require.Equal(t, tt.want, time.Since(start))
			})
		})
	}
}

// answer is a response whose body has been read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// post sends a request that must be answered.
func post(t *testing.T, transport http.RoundTripper, url, body string) answer {
	t.Helper()
	got, err := tryPost(t, transport, url, strings.NewReader(body))
	require.NoError(t, err)
	return got
}

func tryPost(t *testing.T, transport http.RoundTripper, url string, body io.Reader) (answer, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	require.NoError(t, err)
	req.Header.Set("Idempotency-Key", "k-1")
	req.GetBody = nil // so that net/http does not send it again by itself
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(read)}, err
}
