package faultnet_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
)

func TestProxyLosesWhatItIsTold(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		action  func(faultnet.Upstream) faultnet.Action
		want    error
		effects int64
	}{
		{"nothing", faultnet.Upstream.Forward, nil, 1},
		{"the request", faultnet.Upstream.LoseRequest, io.EOF, 0},
		{"the answer", faultnet.Upstream.LoseAnswer, io.EOF, 1},
		{"nothing, but late", func(u faultnet.Upstream) faultnet.Action { return u.HoldAnswer(time.Millisecond) }, nil, 1},
		{"half of the answer", func(u faultnet.Upstream) faultnet.Action { return u.CutAnswer(30) }, io.ErrUnexpectedEOF, 1},
		{"the connection", faultnet.Upstream.ResetAnswer, syscall.ECONNRESET, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var effects atomic.Int64
			upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				effects.Add(1)
				w.WriteHeader(http.StatusCreated)
				_, _ = io.Copy(w, r.Body)
			}))
			defer upstream.Close()
			up := faultnet.Upstream(upstream.Listener.Addr().String())
			proxy := faultnet.Serve(t, tt.action(up))

			got, err := tryPost(t, proxy.Transport, proxy.URL, strings.NewReader("echo"))
			require.Equal(t, tt.effects, effects.Load())
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, http.StatusCreated, got.status)
			require.Equal(t, "echo", got.body)
		})
	}
}

func TestProxyPassesEveryFraming(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method string
		handler      http.HandlerFunc
		status       int
		body         string
	}{
		{"Content-Length", "POST", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "short") }, 200, "short"},
		{"chunks", "POST", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 3 {
				fmt.Fprint(w, i)
				w.(http.Flusher).Flush()
			}
		}, 200, "012"},
		{"none until the end of the stream", "POST", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				fmt.Fprint(conn, "HTTP/1.0 200 OK\r\n\r\nto the end")
				conn.Close()
			}
		}, 200, "to the end"},
		{"no body by status", "POST", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, 204, ""},
		{"no body by method", "HEAD", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
		}, 200, ""},
		{"informational first", "POST", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			fmt.Fprint(w, "final")
		}, 200, "final"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			upstream := httptest.NewServer(tt.handler)
			defer upstream.Close()
			proxy := faultnet.Serve(t, faultnet.Upstream(upstream.Listener.Addr().String()).Forward())
			for range 2 { // the connection stays usable
				req, err := http.NewRequestWithContext(t.Context(), tt.method, proxy.URL, nil)
				require.NoError(t, err)
				resp, err := proxy.Transport.RoundTrip(req)
				require.NoError(t, err)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, tt.status, resp.StatusCode)
				require.Equal(t, tt.body, string(body))
			}
		})
	}
}

func TestProxyInFrontOfNobodyClosesTheConnection(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.NotFoundHandler())
	addr := upstream.Listener.Addr().String()
	upstream.Close()
	proxy := faultnet.Serve(t, faultnet.Upstream(addr).Forward())
	_, err := tryPost(t, proxy.Transport, proxy.URL, strings.NewReader("x"))
	require.ErrorIs(t, err, io.EOF)
}
