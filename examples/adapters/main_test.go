package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

// shop is one that counts its orders.
type shop struct {
	http.Handler
	t      *testing.T
	orders atomic.Int64

	mu     sync.Mutex
	events []server.Event
}

// inEach runs a test for each framework. Every order is placed by place, if that
// is not nil, once it has been counted.
func inEach(t *testing.T, place placeOrder, test func(s *shop), configure ...func(*server.Middleware)) {
	t.Helper()
	for name, newShop := range frameworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &shop{t: t}
			guard := newGuard()
			guard.Observe = s.observe
			for _, change := range configure {
				change(guard)
			}
			s.Handler = newShop(guard, func(ctx context.Context, shop string, amount int) (orderReply, error) {
				s.orders.Add(1)
				if place != nil {
					return place(ctx, shop, amount)
				}
				return order(ctx, shop, amount)
			})
			test(s)
		})
	}
}

func (s *shop) observe(_ context.Context, e server.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

// sends sends an order of the account anna to the shop in Berlin.
func (s *shop) sends(body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, "/shops/berlin/orders", strings.NewReader(body))
	r.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k-1"}, "X-Account-Id": {"anna"}}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

const body = `{"amount":1200}`

func TestAnOrderIsPlacedOnce(t *testing.T) {
	t.Parallel()
	inEach(t, nil, func(s *shop) {
		first := s.sends(body)
		require.Equal(s.t, http.StatusCreated, first.Code, first.Body)
		require.Regexp(s.t, `^\{"order":"[0-9a-f-]{36}","shop":"berlin"\}\n?$`, first.Body.String())
		require.Equal(s.t, "application/json", strings.Split(first.Header().Get("Content-Type"), ";")[0])
		require.Empty(s.t, first.Header()["Idempotent-Replayed"])

		replay := s.sends(body)
		require.Equal(s.t, http.StatusCreated, replay.Code)
		require.Equal(s.t, first.Body.String(), replay.Body.String())
		require.Equal(s.t, []string{"true"}, replay.Header()["Idempotent-Replayed"])
		require.Equal(s.t, first.Header().Get("Content-Type"), replay.Header().Get("Content-Type"))
		require.Equal(s.t, http.StatusConflict, s.sends(`{"amount":1300}`).Code)
		require.EqualValues(s.t, 1, s.orders.Load())
	})
}

func TestEventsHaveThePatternOfTheRoute(t *testing.T) {
	t.Parallel()
	inEach(t, nil, func(s *shop) {
		s.sends(body)
		s.sends(body)
		require.Len(s.t, s.events, 2)
		for _, e := range s.events {
			require.Contains(s.t, []string{"/shops/{shop}/orders", "/shops/:shop/orders"}, e.Pattern)
		}
	})
}

func TestFiftyDuplicatesAreOneOrder(t *testing.T) {
	t.Parallel()
	slow := func(ctx context.Context, shop string, amount int) (orderReply, error) {
		<-time.After(50 * time.Millisecond)
		return order(ctx, shop, amount)
	}
	inEach(t, slow, func(s *shop) {
		answers := make(chan *httptest.ResponseRecorder, 50)
		for range cap(answers) {
			go func() { answers <- s.sends(body) }()
		}
		bodies := make(map[string]bool)
		for range cap(answers) {
			answer := <-answers
			require.Equal(s.t, http.StatusCreated, answer.Code)
			bodies[answer.Body.String()] = true
		}
		require.Len(s.t, bodies, 1)
		require.EqualValues(s.t, 1, s.orders.Load())
	}, func(guard *server.Middleware) { guard.Wait = time.Minute })
}

func TestAnOrderThatIsRefusedStaysSo(t *testing.T) {
	t.Parallel()
	inEach(t, nil, func(s *shop) {
		refused := s.sends(`{"amount":0}`)
		require.Equal(s.t, http.StatusUnprocessableEntity, refused.Code)
		require.Contains(s.t, refused.Body.String(), "there is nothing to pay")
		replay := s.sends(`{"amount":0}`)
		require.Equal(s.t, http.StatusUnprocessableEntity, replay.Code)
		require.Equal(s.t, refused.Body.String(), replay.Body.String())
		require.Equal(s.t, "true", replay.Header().Get("Idempotent-Replayed"))
		require.EqualValues(s.t, 1, s.orders.Load())
	})
}

func TestARequestThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	inEach(t, nil, func(s *shop) {
		require.Equal(s.t, http.StatusBadRequest, s.sends("{").Code)
		require.Zero(s.t, s.orders.Load())
	})
}

func TestAnOrderThatFailsIsPlacedByTheNextRequest(t *testing.T) {
	t.Parallel()
	for failure, status := range map[string]int{"an error": http.StatusServiceUnavailable, "a panic": http.StatusInternalServerError} {
		t.Run(failure, func(t *testing.T) {
			t.Parallel()
			flaky := func(ctx context.Context, shop string, amount int) (orderReply, error) {
				if op, _ := server.OperationFrom(ctx); op.Attempt > 1 {
					return order(ctx, shop, amount)
				}
				if failure == "a panic" {
					panic(failure)
				}
				return orderReply{}, errors.New(failure)
			}
			inEach(t, flaky, func(s *shop) {
				require.Equal(s.t, status, s.sends(body).Code)
				again := s.sends(body)
				require.Equal(s.t, http.StatusCreated, again.Code)
				require.Empty(s.t, again.Header()["Idempotent-Replayed"])
				require.EqualValues(s.t, 2, s.orders.Load())
			})
		})
	}
}

// restarting is a store whose transactions cannot be committed at first.
type restarting struct {
	server.Store

	failures atomic.Int64
}

func (r *restarting) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	claim, err := r.Store.Claim(ctx, req)
	if claim.Lease != nil {
		claim.Lease = restartingLease{claim.Lease, r}
	}
	return claim, err
}

type restartingLease struct {
	server.Lease
	store *restarting
}

func (l restartingLease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	if l.store.failures.Add(-1) >= 0 {
		return server.Record{}, errors.Join(server.ErrRestart, l.Release(ctx, nil))
	}
	return l.Lease.Complete(ctx, r, ttl)
}

func TestAnOrderWhoseTransactionCannotBeCommittedIsMadeAgain(t *testing.T) {
	t.Parallel()
	inEach(t, nil, func(s *shop) {
		made := s.sends(body)
		require.Equal(s.t, http.StatusCreated, made.Code, made.Body)
		require.Contains(s.t, made.Body.String(), `"shop":"berlin"`)
		require.EqualValues(s.t, 3, s.orders.Load())
		require.Equal(s.t, made.Body.String(), s.sends(body).Body.String())
	}, func(guard *server.Middleware) {
		s := &restarting{Store: guard.Store}
		s.failures.Store(2)
		guard.Store = s
	})
}
