package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

// takes returns a handler that works for d of virtual time and answers 201.
func takes(d time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(d)
		created(w, r)
	}
}

// begin sends r in the background, and returns when its handler runs or it
// waits for another. The answer comes on the channel.
func begin(h http.Handler, r *http.Request) <-chan *httptest.ResponseRecorder {
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() { answer <- serve(h, r) }()
	synctest.Wait()
	return answer
}

func TestADuplicateWaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, takes(700*time.Millisecond))
		start := time.Now()
		first := begin(s, post("{}"))
		second := serve(s, post("{}"))
		require.Equal(t, 700*time.Millisecond, time.Since(start))
		requireReplay(t, <-first, second)
		require.EqualValues(t, 1, s.runs.Load())
		require.Equal(t, 1, s.store.called("claim"), "the answer is handed over within the process")
		require.Equal(t, 700*time.Millisecond, s.lastEvent().Waited)
	})
}

func TestADuplicateIsToldToComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Wait = 100 * time.Millisecond }, takes(2*time.Second))
		first := begin(s, post("{}"))
		start := time.Now()
		second := serve(s, post("{}"))
		require.Equal(t, 100*time.Millisecond, time.Since(start))
		requireProcessing(t, second, "1")
		require.Equal(t, "key", second.Header().Get("Idempotency-Key"))
		var body struct {
			OperationID string `json:"operation_id"`
		}
		require.NoError(t, json.Unmarshal(second.Body.Bytes(), &body))

		requireReplay(t, <-first, serve(s, post("{}")))
		require.Equal(t, s.events[1].Operation.ID.String(), body.OperationID)
		require.EqualValues(t, 1, s.runs.Load())
	})
}

func TestRetryAfterIsWhatTheRouteTakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Wait = server.NoWait }, takes(2500*time.Millisecond))
		<-begin(s, request("POST", "/payments", "earlier", "{}"))
		first := begin(s, post("{}"))
		requireProcessing(t, serve(s, post("{}")), "3")
		<-first
	})
}

func TestRetryAfterNeverExceedsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Lease, mw.Wait = 3*time.Second, server.NoWait }, takes(time.Minute))
		s.store.fail("extend", errOutage)
		<-begin(s, request("POST", "/payments", "earlier", "{}"))
		first := begin(s, post("{}"))
		for _, want := range []string{"3", "2", "1", "0", "0"} {
			requireProcessing(t, serve(s, post("{}")), want)
			time.Sleep(800 * time.Millisecond)
		}
		<-first
	})
}

// Another request under the key of an attempt in flight is refused at once. It
// neither waits nor joins it, and leaves its record alone.
func TestAnotherRequestDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.TTL = 10 * time.Second }, takes(time.Second))
		first := begin(s, post(`{"amount":100}`))
		start := time.Now()
		requireProblem(t, serve(s, post(`{"amount":200}`)), http.StatusConflict, "IDEMPOTENCY_KEY_REUSE")
		require.Zero(t, time.Since(start))
		require.Equal(t, 1, s.store.called("claim"), "this process knows already")
		answer := <-first
		time.Sleep(9 * time.Second)
		requireProblem(t, serve(s, post(`{"amount":200}`)), http.StatusConflict, "IDEMPOTENCY_KEY_REUSE")
		requireReplay(t, answer, serve(s, post(`{"amount":100}`)))
		time.Sleep(time.Second)
		require.Empty(t, serve(s, post(`{"amount":200}`)).Header()["Idempotent-Replayed"], "the refusals have not prolonged it")
		require.EqualValues(t, 2, s.runs.Load())
	})
}

func TestAnotherRequestDoesNotWaitForOtherProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, takes(time.Second))
		elsewhere := newServiceOn(s, created)
		first := begin(s, post(`{"amount":100}`))
		start := time.Now()
		requireProblem(t, serve(elsewhere, post(`{"amount":200}`)), http.StatusConflict, "IDEMPOTENCY_KEY_REUSE")
		require.Zero(t, time.Since(start))
		<-first
	})
}

// A store may not be able to tell that an attempt in flight is for another
// request. This process can, if it is its own.
func TestThisProcessKnowsWhatItExecutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, takes(time.Second))
		s.store.unproven = true
		s.store.on("claim", func() error {
			if s.store.called("claim") == 1 {
				time.Sleep(50 * time.Millisecond)
			}
			return nil
		})
		start := time.Now()
		early := begin(s, post(`{"amount":200}`)) // asks the store before anybody owns the key
		owner := begin(s, post(`{"amount":100}`))
		late := begin(s, post(`{"amount":300}`))
		requireProblem(t, <-late, http.StatusConflict, "IDEMPOTENCY_KEY_REUSE")
		require.Zero(t, time.Since(start))
		requireProblem(t, <-early, http.StatusConflict, "IDEMPOTENCY_KEY_REUSE")
		require.Equal(t, 50*time.Millisecond, time.Since(start))
		require.Equal(t, http.StatusCreated, (<-owner).Code)

		elsewhere := newServiceOn(s, created)
		owner = begin(s, request("POST", "/payments", "other", `{"amount":100}`))
		unknown := serve(elsewhere, request("POST", "/payments", "other", `{"amount":200}`))
		require.Equal(t, http.StatusAccepted, unknown.Code, "without evidence it is taken for in flight")
		<-owner
	})
}

func TestAnAnswerBeforeAnythingIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Wait = server.NoWait }, created)
		s.store.on("claim", func() error {
			time.Sleep(500 * time.Millisecond)
			return nil
		})
		first := begin(s, post("{}"))
		second := serve(s, post("{}"))
		requireProcessing(t, second, "1")
		require.NotContains(t, second.Body.String(), "operation_id")
		require.Equal(t, http.StatusCreated, (<-first).Code)
	})
}

// The owner fails while ten duplicates wait: one of them takes over.
func TestOneDuplicateTakesOverFromAFailedAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int64
		s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			if op, _ := server.OperationFrom(r.Context()); op.Attempt == 1 {
				time.Sleep(200 * time.Millisecond)
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			takes(100*time.Millisecond)(w, r)
		})
		start := time.Now()
		owner := begin(s, post("{}"))
		var duplicates []<-chan *httptest.ResponseRecorder
		for range 10 {
			duplicates = append(duplicates, begin(s, post("{}")))
		}
		require.Equal(t, http.StatusServiceUnavailable, (<-owner).Code)
		replays := 0
		for _, duplicate := range duplicates {
			answer := <-duplicate
			require.Equal(t, http.StatusCreated, answer.Code)
			require.Equal(t, "attempt 2", answer.Body.String())
			replays += len(answer.Header()["Idempotent-Replayed"])
		}
		require.Equal(t, 300*time.Millisecond, time.Since(start))
		require.Equal(t, 9, replays)
		require.EqualValues(t, 2, s.runs.Load())
		require.EqualValues(t, 1, most.Load())
		require.Equal(t, 2, s.store.called("claim"))
	})
}

// Any number of waiters for a key that is executed elsewhere put one request
// to the store every 100 ms, and all get to know.
func TestOneRequestAsksOnBehalfOfAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, takes(450*time.Millisecond))
		elsewhere := newServiceOn(s, created)
		first := begin(s, post("{}"))
		var duplicates []<-chan *httptest.ResponseRecorder
		for range 100 {
			duplicates = append(duplicates, begin(elsewhere, post("{}")))
		}
		before := s.store.called("claim")
		require.Equal(t, 2, before, "one for the owner, one for all who wait")
		answer := <-first
		for _, duplicate := range duplicates {
			requireReplay(t, answer, <-duplicate)
		}
		require.InDelta(t, 450/100, s.store.called("claim")-before, 2)
		require.Zero(t, elsewhere.runs.Load())
		claims := s.store.called("claim")
		time.Sleep(time.Minute)
		require.Equal(t, claims, s.store.called("claim"), "nobody asks when nobody waits")
	})
}

// If the one who asks leaves, another takes the role.
func TestAnotherAsksWhenTheFirstLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, takes(800*time.Millisecond))
		elsewhere := newServiceOn(s, created)
		first := begin(s, post("{}"))
		ctx, hangUp := context.WithCancel(t.Context())
		asks := begin(elsewhere, post("{}").WithContext(ctx))
		waits := begin(elsewhere, post("{}"))
		time.Sleep(150 * time.Millisecond)
		hangUp()
		start := time.Now()
		require.Equal(t, http.StatusAccepted, (<-asks).Code)
		require.Zero(t, time.Since(start), "waiting ends with the client")
		requireReplay(t, <-first, <-waits)
	})
}

// waiterStore tells exactly when a record may have changed.
type waiterStore struct {
	server.Store

	changed chan struct{}
	waits   atomic.Int64
}

func (s *waiterStore) Wait(ctx context.Context, _ server.ID) error {
	s.waits.Add(1)
	select {
	case <-s.changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestAStoreMayKnowBetterWhenToAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, takes(500*time.Millisecond))
		store := &waiterStore{Store: s.store, changed: make(chan struct{})}
		elsewhere := newService(func(mw *server.Middleware) { mw.Store = store }, created)
		first := begin(s, post("{}"))
		second := begin(elsewhere, post("{}"))
		require.Equal(t, 2, s.store.called("claim"))
		answer := <-first
		store.changed <- struct{}{}
		requireReplay(t, answer, <-second)
		require.Equal(t, 3, s.store.called("claim"))

		first = begin(s, request("POST", "/payments", "other", "{}"))
		start := time.Now()
		ctx, hangUp := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer hangUp()
		requireProcessing(t, serve(elsewhere, request("POST", "/payments", "other", "{}").WithContext(ctx)), "1")
		require.Equal(t, 300*time.Millisecond, time.Since(start))
		<-first
	})
}

func TestNoMoreThanMaxWaitersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.MaxWaiters = 2 }, takes(500*time.Millisecond))
		start := time.Now()
		first := begin(s, post("{}"))
		second, third := begin(s, post("{}")), begin(s, post("{}"))
		requireProcessing(t, serve(s, post("{}")), "1")
		require.Zero(t, time.Since(start))
		answer := <-first
		requireReplay(t, answer, <-second)
		requireReplay(t, answer, <-third)

		first = begin(s, request("POST", "/payments", "other", "{}"))
		time.Sleep(time.Millisecond)
		waits := serve(s, request("POST", "/payments", "other", "{}"))
		requireReplay(t, <-first, waits)
	})
}

func TestAWaiterLeavesWithItsClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, takes(500*time.Millisecond))
		first := begin(s, post("{}"))
		ctx, hangUp := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer hangUp()
		start := time.Now()
		serve(s, post("{}").WithContext(ctx))
		require.Equal(t, 50*time.Millisecond, time.Since(start))
		require.Equal(t, http.StatusCreated, (<-first).Code)
	})
}

func TestEveryWaiterLearnsOfAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, created)
		s.store.on("claim", func() error {
			time.Sleep(500 * time.Millisecond)
			return errOutage
		})
		start := time.Now()
		first, second := begin(s, post("{}")), begin(s, post("{}"))
		requireProblem(t, <-first, http.StatusServiceUnavailable, "STORE_UNAVAILABLE")
		requireProblem(t, <-second, http.StatusServiceUnavailable, "STORE_UNAVAILABLE")
		require.Equal(t, 500*time.Millisecond, time.Since(start))
		require.Equal(t, 1, s.store.called("claim"))
		require.Zero(t, s.runs.Load())
	})
}

// A panic of what is called for a request is passed on like one of its handler,
// and another request takes its place.
func TestAPanicLeavesNobodyWaiting(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"account", "claim", "complete", "release"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int64
				hook := func() error {
					if calls.Add(1) == 1 {
						time.Sleep(100 * time.Millisecond)
						panic(call)
					}
					return nil
				}
				s := newService(func(mw *server.Middleware) {
					mw.Lease, mw.Wait = 500*time.Millisecond, time.Second
					mw.Account = func(*http.Request) (string, error) {
						if call == "account" {
							_ = hook()
						}
						return "acme", nil
					}
				}, func(w http.ResponseWriter, r *http.Request) {
					if op, _ := server.OperationFrom(r.Context()); op.Attempt == 1 && call == "release" {
						w.WriteHeader(http.StatusBadGateway)
						return
					}
					w.WriteHeader(http.StatusCreated)
				})
				s.store.on(call, hook)
				recovered := make(chan any, 1)
				go func() {
					defer func() { recovered <- recover() }()
					serve(s, post("{}"))
				}()
				synctest.Wait()
				second := serve(s, post("{}"))
				require.Equal(t, call, <-recovered)
				require.Equal(t, http.StatusCreated, second.Code, second.Body)
				require.Equal(t, server.Load{}, s.mw.Load())
			})
		})
	}
}

// After the TTL a key is free, whether anything was cleaned up or not.
func TestAnExpiredKeyIsExecutedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.TTL = 200 * time.Millisecond }, takes(time.Millisecond))
		first := serve(s, post(`{"amount":100}`))
		time.Sleep(100 * time.Millisecond)
		requireReplay(t, first, serve(s, post(`{"amount":100}`)))
		time.Sleep(100 * time.Millisecond)
		var answers []<-chan *httptest.ResponseRecorder
		for range 50 {
			answers = append(answers, begin(s, post(`{"amount":200}`)))
		}
		for _, answer := range answers {
			require.Equal(t, http.StatusCreated, (<-answer).Code)
		}
		require.EqualValues(t, 2, s.runs.Load())
		require.NotEqual(t, s.events[0].Operation.ID, s.lastEvent().Operation.ID)
	})
}

// 200 clients at once, on two processes: one execution, and everybody gets its
// answer or is told to wait.
func TestConcurrentDuplicatesAreExecutedOnce(t *testing.T) {
	t.Parallel()
	for round := range 10 {
		handler := func(w http.ResponseWriter, r *http.Request) {
			runtime.Gosched()
			_, _ = io.Copy(w, r.Body)
		}
		patient := func(mw *server.Middleware) { mw.Wait = time.Minute } // however busy the machine is
		a := newService(patient, handler)
		b := newService(func(mw *server.Middleware) { patient(mw); mw.Store = a.store }, handler)
		key := strconv.Itoa(round)
		var wg sync.WaitGroup
		start := make(chan struct{})
		answers := make([]*httptest.ResponseRecorder, 200)
		for i := range answers {
			wg.Go(func() {
				<-start
				answers[i] = serve([]http.Handler{a, b}[i%2], request("POST", "/payments", key, `{"round":`+key+`}`))
			})
		}
		close(start)
		wg.Wait()
		for _, answer := range answers {
			require.Equal(t, http.StatusOK, answer.Code)
			require.Equal(t, `{"round":`+key+`}`, answer.Body.String())
		}
		require.EqualValues(t, 1, a.runs.Load()+b.runs.Load())
	}
}

// 10,000 requests that wait for one key cost little memory and no goroutine of
// their own.
func TestWaitersAreCheap(t *testing.T) { //nolint:paralleltest // measures the heap
	const waiters = 10_000
	release, started := make(chan struct{}), make(chan struct{})
	s := newService(func(mw *server.Middleware) {
		mw.Wait, mw.MaxWaiters, mw.Observe = time.Hour, waiters, nil
	}, func(http.ResponseWriter, *http.Request) {
		close(started)
		<-release
	})
	body := fmt.Sprintf(`{"padding":"%01000d"}`, 0)
	var wg sync.WaitGroup
	ask := func() { require.Equal(t, http.StatusOK, serve(s, post(body)).Code) }
	before, baseline := heapInUse(), runtime.NumGoroutine()
	wg.Go(ask)
	<-started
	for range waiters {
		wg.Go(ask)
	}
	require.Eventually(t, func() bool { return server.Waiting(s.mw) == waiters }, time.Minute, time.Millisecond)
	require.Less(t, heapInUse()-before, int64(256<<20))
	require.LessOrEqual(t, runtime.NumGoroutine(), baseline+waiters+5)
	close(release)
	wg.Wait()
	// The one more is the goroutine in which the condition is checked.
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= baseline+1 }, time.Second, time.Millisecond)
	require.EqualValues(t, 1, s.runs.Load())
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
