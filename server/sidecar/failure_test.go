package sidecar_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server"
)

var made = faultnet.Answer(201, "made")

func TestWhatNeverReachedTheServiceIsSentAgainAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Reply(made))
		var down atomic.Bool
		dial := upstream.Transport.DialContext
		upstream.Transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if down.Load() {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return dial(ctx, network, addr)
		}
		c := inFrontOf(t, upstream.Transport, func(m *server.Middleware) { m.Takeover = server.Refuse })
		down.Store(true)
		refused := c.pay()
		requireProblem(t, refused, http.StatusServiceUnavailable, "UPSTREAM_UNREACHABLE")
		require.Equal(t, "1", refused.header.Get("Retry-After"))
		requireProblem(t, c.pay("Idempotency-Key: "), http.StatusServiceUnavailable, "UPSTREAM_UNREACHABLE")

		down.Store(false)
		requireAnswer(t, c.pay(), http.StatusCreated, "made")
		require.Equal(t, []server.Result{server.ResultFailed, server.ResultUnkeyed, server.ResultExecuted}, c.results())
	})
}

// What the service may have got, and has not answered, is abandoned.
func TestWhatMayHaveHappenedIsLeftToTheTakeover(t *testing.T) {
	t.Parallel()
	long := faultnet.Answer(201, strings.Repeat("x", 100))
	tests := map[string]struct {
		play   faultnet.Action
		status int // 0: the connection breaks
		code   string
	}{
		"closed without an answer": {faultnet.Close(), http.StatusBadGateway, "UPSTREAM_LOST"},
		"reset":                    {faultnet.Reset(), http.StatusBadGateway, "UPSTREAM_LOST"},
		"reset at the first byte":  {faultnet.ResetUnread(), http.StatusBadGateway, "UPSTREAM_LOST"},
		"half a head":              {faultnet.Cut(long, 20), http.StatusBadGateway, "UPSTREAM_LOST"},
		"no HTTP":                  {faultnet.Garbage(), http.StatusBadGateway, "UPSTREAM_LOST"},
		"no answer in time":        {faultnet.Hang(), http.StatusGatewayTimeout, "UPSTREAM_TIMEOUT"},
		"half a body":              {faultnet.Cut(long, len(long)-10), 0, ""},
		"half a stream":            {faultnet.Cut(chunked, len(chunked)-10), 0, ""},
		"a body that never ends":   {faultnet.Trickle("HTTP/1.1 200 OK\r\n\r\n", 1, time.Second), 0, ""},
	}
	for name, tt := range tests {
		for takeover, then := range map[server.Takeover]int{server.Rerun: http.StatusCreated, server.Refuse: http.StatusConflict} {
			t.Run(name+outcome(then), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					upstream := faultnet.ServeInMemory(t, faultnet.Steps(tt.play, faultnet.Reply(made)))
					c := inFrontOf(t, upstream.Transport, func(m *server.Middleware) { m.Takeover = takeover })
					lost := c.pay()
					if tt.status == 0 {
						require.Error(t, lost.err)
					} else {
						requireProblem(t, lost, tt.status, tt.code)
					}
					require.Equal(t, []server.Result{server.ResultAbandoned}, c.results())

					require.Equal(t, http.StatusAccepted, c.pay().status, "the attempt may be under way")
					require.Len(t, upstream.Requests(), 1)
					time.Sleep(lease)
					again := c.pay()
					require.Equal(t, then, again.status)
					if takeover == server.Refuse {
						requireProblem(t, again, http.StatusConflict, "OPERATION_INDETERMINATE")
						require.Len(t, upstream.Requests(), 1)
						return
					}
					require.Contains(t, strings.ToLower(upstream.Requests()[1].Head), "idempotency-attempt: 2")
					requireReplay(t, again, c.pay())
				})
			})
		}
	}
}

const chunked = "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nmade\r\n0\r\n\r\n"

func outcome(status int) string {
	if status == http.StatusConflict {
		return ", refused"
	}
	return ", run again"
}

// package net/http sends a request with a key a second time if a kept
// connection turns out to be dead, even if the service has read it.
func TestNothingIsSentToTheServiceTwice(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{}"} {
		for _, field := range []string{"Idempotency-Key: k-2", "X-Idempotency-Key: k-2"} {
			synctest.Test(t, func(t *testing.T) {
				upstream := faultnet.ServeInMemory(t, faultnet.Steps(faultnet.Reply(made), faultnet.Close(), faultnet.Reply(made)))
				c := inFrontOf(t, upstream.Transport, nil)
				requireAnswer(t, c.pay(), http.StatusCreated, "made")
				requireProblem(t, c.send(c.payment(body, "Idempotency-Key: ", field)), http.StatusBadGateway, "UPSTREAM_LOST")
				requests := upstream.Requests()
				require.Len(t, requests, 2)
				require.Equal(t, requests[0].Conn, requests[1].Conn, "the connection was kept")
			})
		}
	}
}

// The service restarts: it closes the connections that it has kept. The next
// request goes over a new one.
func TestAConnectionThatWasClosedWhileIdleIsNoLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Steps(func(x *faultnet.Exchange) {
			faultnet.Reply(made)(x)
			x.Wait(time.Second)
			x.Close()
		}, faultnet.Reply(made)))
		c := inFrontOf(t, upstream.Transport, nil)
		requireAnswer(t, c.pay(), http.StatusCreated, "made")
		time.Sleep(2 * time.Second)
		requireAnswer(t, c.pay("Idempotency-Key: k-2"), http.StatusCreated, "made")
		requests := upstream.Requests()
		require.Len(t, requests, 2)
		require.NotEqual(t, requests[0].Conn, requests[1].Conn)
	})
}

func TestAnAnswerIsAnAnswerWhateverItsStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, faultnet.Steps(
			faultnet.Reply(faultnet.Answer(502, "no")), faultnet.Reply(faultnet.Answer(422, "never")), faultnet.Reply(made)))
		c := inFrontOf(t, upstream.Transport, nil)
		requireAnswer(t, c.pay(), http.StatusBadGateway, "no")
		refused := c.pay()
		requireAnswer(t, refused, http.StatusUnprocessableEntity, "never")
		requireReplay(t, refused, c.pay())
	})
}

func TestTheServiceWorksOnWhenTheClientHangsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := faultnet.ServeInMemory(t, func(x *faultnet.Exchange) {
			if x.Read().Whole && x.Wait(500*time.Millisecond) {
				x.Write(made)
			}
		})
		c := inFrontOf(t, upstream.Transport, nil)
		ctx, hangUp := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer hangUp()
		require.ErrorIs(t, c.send(c.payment("{}").WithContext(ctx)).err, context.DeadlineExceeded)
		replay := c.send(c.payment("{}"))
		requireAnswer(t, replay, http.StatusCreated, "made")
		require.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
		require.Len(t, upstream.Requests(), 1)
	})
}

func TestWithoutAKeyTheServiceLearnsThatTheClientHungUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		left := make(chan error, 1)
		c := inFrontOfHandler(t, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			left <- r.Context().Err()
		}, nil)
		ctx, hangUp := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer hangUp()
		require.Error(t, c.send(c.payment("", "Idempotency-Key: ").WithContext(ctx)).err)
		require.ErrorIs(t, <-left, context.Canceled)
	})
}

// The client leaves in the middle of an answer that is too large to be kept. The
// service has done its work, which must not be done again.
func TestTheClientOfALargeAnswerHangsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var effects atomic.Int64
		c := inFrontOfHandler(t, func(w http.ResponseWriter, _ *http.Request) {
			effects.Add(1)
			w.WriteHeader(http.StatusCreated)
			for range 64 {
				_, _ = w.Write(make([]byte, 1<<16))
			}
		}, func(m *server.Middleware) { m.MaxStored, m.MaxBuffered = 1<<16, 1<<16 })
		r := c.payment("{}")
		r.Close = true
		resp, err := c.front.RoundTrip(r)
		require.NoError(t, err)
		_, err = io.CopyN(io.Discard, resp.Body, 1<<17)
		require.NoError(t, err)
		resp.Body.Close()

		requireProblem(t, c.send(c.payment("{}")), http.StatusConflict, "RESPONSE_NOT_KEPT")
		require.EqualValues(t, 1, effects.Load())
	})
}

// opaque is a transport that does not tell what it does.
type opaque struct{}

func (opaque) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("lost") }

func TestOfATransportThatDoesNotTellNothingIsAssumed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &chain{t: t}
		c.front = faultnet.Handle(t, c.proxy(opaque{}, nil))
		requireProblem(t, c.pay(), http.StatusBadGateway, "UPSTREAM_LOST")
		require.Equal(t, []server.Result{server.ResultAbandoned}, c.results())
	})
}
