package idem_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
)

// payment is the answer of the payment servers in these tests.
type payment struct {
	ID string `json:"id"`
}

type paymentRequest struct {
	Amount   int    `json:"amount"`
	Currency string `json:"currency"`
}

const (
	paymentJSON = `{"amount":1200,"currency":"RUB"}`
	created     = `{"id":"p1"}`
)

var rub1200 = paymentRequest{Amount: 1200, Currency: "RUB"}

func ok201() faultnet.Action { return faultnet.Reply(faultnet.Answer(201, created)) }

func status(code int, fields ...string) faultnet.Action {
	return faultnet.Reply(faultnet.Answer(code, "", fields...))
}

func problem(code int, body string, fields ...string) faultnet.Action {
	return faultnet.Reply(faultnet.Answer(code, body, append(fields, "Content-Type: application/problem+json")...))
}

// at returns a backoff whose every ceiling is d; zero means no wait and no
// jitter.
func at(d time.Duration) func() backoff.BackOff {
	return func() backoff.BackOff { return backoff.NewConstantBackOff(d) }
}

// unlimited is a budget that refuses no retry.
func unlimited() *idem.Budget { return &idem.Budget{Burst: idem.NoLimit} }

// quick returns a client for s that retries at once.
func quick(s *faultnet.Server) *idem.Client {
	return &idem.Client{BaseURL: s.URL, Transport: s.Transport, Retry: idem.RetryPolicy{NewBackOff: at(0), Budget: unlimited()}}
}

// post sends the usual payment.
func post(t *testing.T, c *idem.Client) (idem.Result[payment], error) {
	t.Helper()
	return idem.Post[payment](t.Context(), c, "/payments", rub1200)
}

func newRequest(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, reader(body))
	require.NoError(t, err)
	return req
}

// sameBytes asserts equality to the byte, also where the bytes are JSON.
func sameBytes(t *testing.T, want string, got []byte) {
	t.Helper()
	require.Equal(t, want, string(got))
}

// asA is errors.As as an expression.
func asA[E error](t *testing.T, err error) E {
	t.Helper()
	var target E
	require.ErrorAs(t, err, &target)
	return target
}

func hasA[E error](err error) bool {
	var target E
	return errors.As(err, &target)
}

// recorder collects what a Trace reports.
type recorder struct {
	mu    sync.Mutex
	start []idem.Attempt
	done  []idem.Attempt
	waits []time.Duration
	end   []idem.Attempt
}

func (r *recorder) trace() idem.Trace {
	keep := func(list *[]idem.Attempt) func(context.Context, idem.Attempt) {
		return func(_ context.Context, a idem.Attempt) {
			r.mu.Lock()
			defer r.mu.Unlock()
			*list = append(*list, a)
		}
	}
	return idem.Trace{
		AttemptStart: func(ctx context.Context, a idem.Attempt) context.Context {
			keep(&r.start)(ctx, a)
			return ctx
		},
		AttemptDone: keep(&r.done),
		Waiting: func(_ context.Context, a idem.Attempt) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.waits = append(r.waits, a.Wait)
		},
		OperationDone: keep(&r.end),
	}
}

// closedPort returns the URL of a port where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return "http://" + listener.Addr().String()
}

// refuseFirst returns a copy of transport whose first n dials are refused.
func refuseFirst(transport *http.Transport, n int32) *http.Transport {
	dial := transport.DialContext
	refusing := transport.Clone()
	refusing.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if atomic.AddInt32(&n, -1) >= 0 {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return dial(ctx, network, addr)
	}
	return refusing
}

// closeRecorder is a request body that knows whether it was closed.
type closeRecorder struct {
	io.Reader
	closed atomic.Bool
}

func (r *closeRecorder) Close() error {
	r.closed.Store(true)
	return nil
}

// closeCounter counts the answers that a transport gave and those that were
// closed.
type closeCounter struct{ opened, closed atomic.Int32 }

func (c *closeCounter) of(next http.RoundTripper) http.RoundTripper {
	return roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil {
			c.opened.Add(1)
			resp.Body = &countedBody{ReadCloser: resp.Body, closed: sync.OnceFunc(func() { c.closed.Add(1) })}
		}
		return resp, err
	})
}

type countedBody struct {
	io.ReadCloser
	closed func()
}

func (b *countedBody) Close() error {
	b.closed()
	return b.ReadCloser.Close()
}
