package server_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server"
)

// The client hangs up while the handler works: the work goes on, and the retry
// gets its answer.
func TestTheWorkGoesOnWhenTheClientHangsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(100 * time.Millisecond)
			assert.NoError(t, r.Context().Err())
			created(w, r)
		})
		client := http.Client{Transport: faultnet.Handle(t, s)}
		send := func(timeout time.Duration) (*http.Response, error) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			t.Cleanup(cancel)
			r, err := http.NewRequestWithContext(ctx, "POST", "http://test/payments", strings.NewReader("{}"))
			require.NoError(t, err)
			r.Header.Set("Idempotency-Key", "key")
			return client.Do(r)
		}
		_, err := send(50 * time.Millisecond)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(300 * time.Millisecond)
		answer, err := send(time.Second)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, "attempt 1", string(body))
		require.Equal(t, "true", answer.Header.Get("Idempotent-Replayed"))
		require.EqualValues(t, 1, s.runs.Load())
	})
}

// The client hangs up, and then the process is told to stop: it finishes the
// work and records it first.
func TestAShutdownWaitsForTheWorkOfAClientThatHungUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, takes(100*time.Millisecond))
		network := faultnet.Listen()
		web := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
		go func() { _ = web.Serve(network) }()
		ctx, hangUp := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer hangUp()
		r, err := http.NewRequestWithContext(ctx, "POST", "http://test/payments", strings.NewReader("{}"))
		require.NoError(t, err)
		r.Header.Set("Idempotency-Key", "key")
		r.Header.Set("Content-Type", "application/json")
		_, err = (&http.Transport{DialContext: network.DialContext}).RoundTrip(r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, s.results()[server.ResultExecuted], "the handler is at it still")

		require.NoError(t, web.Shutdown(t.Context()))
		require.NoError(t, s.mw.Drain(t.Context()))
		require.Equal(t, 1, s.results()[server.ResultExecuted])
		retry := serve(newServiceOn(s, created), post("{}"))
		require.Equal(t, "attempt 1", retry.Body.String())
		require.Equal(t, "true", retry.Header().Get("Idempotent-Replayed"))
	})
}

func TestTheHandlerHasTheRequestsValuesAndADeadlineOfItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		s := newService(func(mw *server.Middleware) { mw.HandlerTimeout = 5 * time.Second }, func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "value", r.Context().Value(key{}))
			<-r.Context().Done()
			assert.ErrorIs(t, r.Context().Err(), context.DeadlineExceeded)
			assert.ErrorContains(t, context.Cause(r.Context()), "time is up")
			w.WriteHeader(http.StatusCreated)
		})
		ctx, hangUp := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		hangUp()
		start := time.Now()
		first := serve(s, post("{}").WithContext(ctx))
		require.Equal(t, 5*time.Second, time.Since(start))
		requireReplay(t, first, serve(s, post("{}")))
	})
}

// A handler that does not return has failed. Its panic is not touched, nothing
// of its answer is stored, and the key is free at once.
func TestAHandlerThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(){
		"panics":   func() { panic("the handler's own words") },
		"aborts":   func() { panic(http.ErrAbortHandler) },
		"exits":    runtime.Goexit,
		"fails":    func() { _ = []int{}[len(os.Args)] },
		"an error": func() { panic(errOutage) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left at its end
				s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
					if op, _ := server.OperationFrom(r.Context()); op.Attempt > 1 {
						created(w, r)
						return
					}
					w.WriteHeader(http.StatusCreated)
					_, _ = io.WriteString(w, "ten bytes!")
					leave()
				})
				var recovered any
				w, left := httptest.NewRecorder(), make(chan struct{})
				go func() {
					defer close(left)
					defer func() { recovered = recover() }()
					s.ServeHTTP(w, post("{}"))
				}()
				<-left
				switch name {
				case "panics":
					require.Equal(t, "the handler's own words", recovered)
				case "aborts":
					require.Equal(t, http.ErrAbortHandler, recovered)
				case "exits":
					require.Nil(t, recovered)
				}
				require.Zero(t, w.Body.Len())
				require.Equal(t, server.ResultFailed, s.lastEvent().Result)
				require.Equal(t, 1, s.store.called("release"))

				second := serve(s, post("{}"))
				require.Equal(t, "attempt 2", second.Body.String())
				requireReplay(t, second, serve(s, post("{}")))
				require.Equal(t, server.Load{}, s.mw.Load())
			})
		})
	}
}

func TestALeaseIsExtendedWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		short := func(mw *server.Middleware) { mw.Lease, mw.Wait = 3*time.Second, server.NoWait }
		s := newService(short, takes(9500*time.Millisecond))
		elsewhere := newService(func(mw *server.Middleware) { short(mw); mw.Store = s.store }, created)
		first := begin(s, post("{}"))
		for range 9 {
			time.Sleep(time.Second)
			require.Equal(t, http.StatusAccepted, serve(elsewhere, post("{}")).Code)
		}
		requireReplay(t, <-first, serve(elsewhere, post("{}")))
		require.Equal(t, 9, s.lastEvent().Extensions)
		require.False(t, s.lastEvent().LeaseLost)
		require.Equal(t, 9, s.store.called("extend"))
		time.Sleep(time.Minute)
		require.Equal(t, 9, s.store.called("extend"), "no longer than the handler")
	})
}

// A process that cannot reach the store loses its lease. The attempt that took
// over and the one that was slow agree on one answer.
func TestTheFirstCompletionIsEverybodysAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ slow, quick time.Duration }{
		"the slow one is second": {10 * time.Second, time.Second},
		"the slow one is first":  {5 * time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService(func(mw *server.Middleware) { mw.Lease = 3 * time.Second }, takes(c.slow))
				elsewhere := newServiceOn(s, takes(c.quick))
				s.store.fail("extend", errOutage)
				slow := begin(s, post("{}"))
				time.Sleep(3100 * time.Millisecond)
				s.store.on("extend", nil)
				quick := begin(elsewhere, post("{}"))
				a, b := <-slow, <-quick
				require.Equal(t, a.Body.String(), b.Body.String())
				winner := map[bool]string{true: "attempt 1", false: "attempt 2"}[c.slow < c.quick]
				require.Equal(t, winner, a.Body.String())
				require.Equal(t, c.slow > c.quick, a.Header().Get("Idempotent-Replayed") == "true")
				require.Equal(t, c.slow < c.quick, b.Header().Get("Idempotent-Replayed") == "true")
				require.True(t, elsewhere.lastEvent().TakenOver)
				require.False(t, s.lastEvent().TakenOver)
				require.True(t, s.lastEvent().LeaseLost)
				require.Contains(t, s.log.String(), "lease was lost")
			})
		})
	}
}

func TestThoseWhoWaitForALostLeaseAskElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Lease, mw.Wait = 3*time.Second, time.Minute }, takes(30*time.Second))
		elsewhere := newServiceOn(s, takes(time.Second))
		s.store.fail("extend", errOutage)
		slow := begin(s, post("{}"))
		time.Sleep(3100 * time.Millisecond)
		s.store.on("extend", nil)
		quick := <-begin(elsewhere, post("{}"))
		start := time.Now()
		requireReplay(t, quick, serve(s, post("{}")))
		require.LessOrEqual(t, time.Since(start), time.Second, "long before the slow handler is done")
		require.Equal(t, quick.Body.String(), (<-slow).Body.String())
	})
}

func TestALostOwner(t *testing.T) {
	t.Parallel()
	for takeover, name := range []string{server.Rerun: "rerun", server.Refuse: "refuse"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				config := func(mw *server.Middleware) {
					mw.Lease, mw.Wait, mw.Takeover = 300*time.Millisecond, server.NoWait, server.Takeover(takeover)
				}
				dying := newService(config, takes(time.Hour))
				dying.store.fail("extend", errOutage)
				lost := begin(dying, post("{}"))
				s := newService(func(mw *server.Middleware) { config(mw); mw.Store = dying.store.Store }, created)

				time.Sleep(50 * time.Millisecond)
				requireProcessing(t, serve(s, post("{}")), "0")
				time.Sleep(300 * time.Millisecond)
				w := serve(s, post("{}"))
				if server.Takeover(takeover) == server.Rerun {
					require.Equal(t, "attempt 2", w.Body.String())
					require.True(t, s.lastEvent().TakenOver)
				} else {
					members := requireProblem(t, w, http.StatusConflict, "OPERATION_INDETERMINATE")
					require.NotEmpty(t, members["operation_id"])
					require.Zero(t, s.runs.Load())
				}
				<-lost
			})
		})
	}
}

func TestNothingIsExecutedWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, created)
		for name, outage := range map[string]func() error{
			"refused":    func() error { return errOutage },
			"unanswered": func() error { time.Sleep(time.Second); return context.DeadlineExceeded },
		} {
			s.store.on("claim", outage)
			start := time.Now()
			w := serve(s, request("POST", "/payments", name, "{}"))
			require.LessOrEqual(t, time.Since(start), time.Second)
			requireProblem(t, w, http.StatusServiceUnavailable, "STORE_UNAVAILABLE")
			require.Equal(t, "1", w.Header().Get("Retry-After"))
			require.Equal(t, server.ResultStoreError, s.lastEvent().Result)
			require.Error(t, s.lastEvent().Err)
			require.NotContains(t, w.Body.String(), "the store is down")
			require.Contains(t, s.log.String(), "could not be claimed")
		}
		require.Zero(t, s.runs.Load())
		s.store.on("claim", nil)
		require.Equal(t, http.StatusCreated, serve(s, post("{}")).Code)
	})
}

// blockingStore answers nothing before its context ends.
type blockingStore struct{}

func (blockingStore) Claim(ctx context.Context, _ server.ClaimRequest) (server.Claim, error) {
	<-ctx.Done()
	return server.Claim{}, context.Cause(ctx)
}

func TestTheStoreTimeoutIncludesThePool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Store, mw.StoreTimeout = blockingStore{}, 700*time.Millisecond }, created)
		start := time.Now()
		requireProblem(t, serve(s, post("{}")), http.StatusServiceUnavailable, "STORE_UNAVAILABLE")
		require.Equal(t, 700*time.Millisecond, time.Since(start))
	})
}

// The answer cannot be stored after the effect: the client gets it all the
// same, no retry is executed, and in the end it is replayed.
func TestACompletionThatFailsIsWrittenLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Lease = 500 * time.Millisecond }, created)
		elsewhere := newService(func(mw *server.Middleware) { mw.Store, mw.Wait = s.store, server.NoWait }, created)
		s.store.fail("complete", errOutage)
		first := serve(s, post("{}"))
		require.Equal(t, http.StatusCreated, first.Code)
		e := s.lastEvent()
		require.Equal(t, server.ResultExecuted, e.Result)
		require.True(t, e.Pending)
		require.ErrorIs(t, e.Err, errOutage)
		require.Contains(t, s.log.String(), "could not be recorded")

		for range 5 {
			time.Sleep(200 * time.Millisecond)
			require.Equal(t, http.StatusAccepted, serve(elsewhere, post("{}")).Code, "the lease is kept alive")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.mw.Drain(ctx), context.DeadlineExceeded)
		waits := begin(s, post("{}"))
		s.store.on("complete", nil)
		require.NoError(t, s.mw.Drain(t.Context()))
		requireReplay(t, first, <-waits)
		requireReplay(t, first, serve(s, post("{}")))
		requireReplay(t, first, serve(elsewhere, post("{}")))
		require.EqualValues(t, 1, s.runs.Load()+elsewhere.runs.Load())
		require.Equal(t, 1, s.results()[server.ResultRecorded])
		require.NoError(t, s.mw.Drain(t.Context()), "nothing left to wait for")
	})
}

func TestACompletionIsGivenUpWhenItsRecordHasExpired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Lease, mw.TTL = time.Second, 10*time.Second }, created)
		for _, call := range []string{"complete", "extend"} {
			s.store.fail(call, errOutage)
		}
		start := time.Now()
		require.Equal(t, http.StatusCreated, serve(s, post("{}")).Code)
		require.NoError(t, s.mw.Drain(t.Context()))
		require.InDelta(t, 11, time.Since(start).Seconds(), 1)
		require.Equal(t, server.ResultUnrecorded, s.lastEvent().Result)
		require.ErrorIs(t, s.lastEvent().Err, errOutage)
		require.Contains(t, s.log.String(), "never recorded")
	})
}

func TestTooManyLateCompletionsStopTheService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, created)
		s.store.fail("complete", errOutage)
		for i := range 1000 {
			require.Equal(t, http.StatusCreated, serve(s, request("POST", "/payments", strconv.Itoa(i), "{}")).Code)
		}
		requireProblem(t, serve(s, post("{}")), http.StatusServiceUnavailable, "STORE_UNAVAILABLE")
		require.EqualValues(t, 1000, s.runs.Load())
		s.store.on("complete", nil)
		require.NoError(t, s.mw.Drain(t.Context()))
		require.Equal(t, http.StatusCreated, serve(s, post("{}")).Code)
	})
}

func TestAReleaseThatFailsLeavesTheKeyToItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Lease, mw.Wait = 10*time.Second, server.NoWait }, answers(http.StatusBadGateway))
		s.store.fail("release", errOutage)
		require.Equal(t, http.StatusBadGateway, serve(s, post("{}")).Code)
		require.Contains(t, s.log.String(), "could not be released")
		requireProcessing(t, serve(s, post("{}")), "1")
		time.Sleep(10 * time.Second)
		require.Equal(t, http.StatusCreated, serve(s, post("{}")).Code)
	})
}

func TestAnAtomicAttemptThatCannotCommitIsNotAnswered(t *testing.T) {
	t.Parallel()
	s := newService(nil, created)
	s.store.atomic = true
	s.store.fail("complete", errOutage)
	w := serve(s, post("{}"))
	requireProblem(t, w, http.StatusServiceUnavailable, "STORE_UNAVAILABLE")
	require.NotContains(t, w.Body.String(), "attempt 1")
	require.Equal(t, 1, s.store.called("complete"))
	require.Equal(t, 1, s.store.called("release"), "it does not keep what it holds")
	require.Equal(t, server.ResultStoreError, s.lastEvent().Result)
	require.NoError(t, s.mw.Drain(t.Context()), "nothing goes on in the background")
}

func TestAnAtomicAttemptIsRunAgainAfterAConflict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		call      string
		conflicts int64
		status    int // of the handler
		want      int
		runs      int64
	}{
		"once, in the commit":             {"complete", 1, 201, 201, 2},
		"three times":                     {"complete", 3, 201, 201, 4},
		"always":                          {"complete", 100, 201, 503, 4},
		"once, and the handler gave up":   {"release", 1, 500, 500, 2},
		"always, and the handler gave up": {"release", 100, 500, 503, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, `{"amount":1}`, string(body), "rewound for every attempt")
				assert.Empty(t, w.Header(), "a fresh answer for every attempt")
				w.Header().Set("Left", "over")
				w.WriteHeader(c.status)
			})
			s.store.atomic = true
			var calls atomic.Int64
			s.store.on(c.call, func() error {
				if calls.Add(1) > c.conflicts {
					return nil
				}
				s.store.forget()
				return server.ErrRestart
			})
			w := serve(s, post(`{"amount":1}`))
			require.Equal(t, c.want, w.Code, w.Body)
			require.Equal(t, c.runs, s.runs.Load())
			if c.want == http.StatusServiceUnavailable {
				requireProblem(t, w, c.want, "STORE_UNAVAILABLE")
			}
		})
	}
}

// What a completion finds in place of its own record decides, if nothing of
// the attempt is durable. An effect that is elsewhere has happened all the same,
// and a record that is not of its operation says nothing about it.
func TestACompletionThatFindsAnotherRecord(t *testing.T) {
	t.Parallel()
	other := &server.Response{StatusCode: http.StatusAccepted, Body: []byte("other")}
	for name, c := range map[string]struct {
		rewrite                   func(*server.Record)
		lease, atomic             int
		leaseResult, atomicResult server.Result
	}{
		"of the same operation": {
			func(rec *server.Record) { rec.Response = other },
			202, 202, server.ResultReplayed, server.ResultReplayed,
		},
		"of another operation": {
			func(rec *server.Record) { rec.Response, rec.Operation = other, uuid.New() },
			201, 202, server.ResultExecuted, server.ResultReplayed,
		},
		"of another request": {
			func(rec *server.Record) { rec.Reused, rec.Operation = true, uuid.New() },
			201, 409, server.ResultExecuted, server.ResultReused,
		},
		"that is not completed": {
			func(rec *server.Record) { *rec = server.Record{Status: server.Processing, Operation: rec.Operation} },
			201, 503, server.ResultExecuted, server.ResultStoreError,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, atomic := range []bool{false, true} {
				s := newService(nil, created)
				s.store.atomic, s.store.rewrite = atomic, c.rewrite
				w := serve(s, post("{}"))
				if atomic {
					require.Equal(t, c.atomic, w.Code, w.Body)
					require.Equal(t, c.atomicResult, s.lastEvent().Result)
					continue
				}
				require.Equal(t, c.lease, w.Code, w.Body)
				require.Equal(t, c.leaseResult, s.lastEvent().Result)
				require.Equal(t, c.leaseResult == server.ResultExecuted, s.lastEvent().Err != nil)
			}
		})
	}
}

func TestACompletionWhoseAcknowledgementWasLostIsFoundAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, created)
		var lost atomic.Bool
		s.store.acknowledge = func() error {
			if !lost.Swap(true) {
				return errOutage
			}
			return nil
		}
		first := serve(s, post("{}"))
		require.Equal(t, "attempt 1", first.Body.String())
		require.NoError(t, s.mw.Drain(t.Context()))
		require.Equal(t, 1, s.results()[server.ResultRecorded])
		requireReplay(t, first, serve(s, post("{}")))
	})
}

// What has reached the client cannot be taken back: it is neither followed by
// another answer nor run again.
func TestAnAnswerThatIsPassingStaysTheAnswer(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*faultStore){
		"another was stored": func(s *faultStore) {
			s.rewrite = func(rec *server.Record) { rec.Response = &server.Response{StatusCode: 202, Body: []byte("other")} }
		},
		"the store wants it run again": func(s *faultStore) { s.fail("complete", server.ErrRestart) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(nil, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "passing")
				assert.NoError(t, http.NewResponseController(w).Flush())
			})
			fault(s.store)
			w := serve(s, post("{}"))
			require.Equal(t, http.StatusOK, w.Code)
			require.Equal(t, "passing", w.Body.String())
			require.EqualValues(t, 1, s.runs.Load())
			require.Equal(t, server.ResultExecuted, s.lastEvent().Result)
		})
	}
}

// slowWriter is a client that takes its answer when it is told to.
type slowWriter struct {
	*httptest.ResponseRecorder
	take chan struct{}
}

func (w slowWriter) Write(p []byte) (int, error) {
	<-w.take
	return w.ResponseRecorder.Write(p)
}

func TestAFailureMakesRoomBeforeItsClientHasTakenIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(100 * time.Millisecond)
			if op, _ := server.OperationFrom(r.Context()); op.Attempt == 1 {
				http.Error(w, "not now", http.StatusServiceUnavailable)
				return
			}
			created(w, r)
		})
		slow := slowWriter{httptest.NewRecorder(), make(chan struct{})}
		start, taken := time.Now(), make(chan struct{})
		go func() {
			defer close(taken)
			s.ServeHTTP(slow, post("{}"))
		}()
		synctest.Wait()
		require.Equal(t, "attempt 2", serve(s, post("{}")).Body.String())
		require.Equal(t, 200*time.Millisecond, time.Since(start))
		close(slow.take)
		<-taken
		require.Equal(t, http.StatusServiceUnavailable, slow.Code)
	})
}

func TestALostLeaseIsNotExtendedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.Lease = 3 * time.Second }, takes(time.Minute))
		s.store.on("extend", func() error {
			if s.store.called("extend") < 3 {
				return errOutage
			}
			return server.ErrLeaseLost
		})
		serve(s, post("{}"))
		require.Equal(t, 3, s.store.called("extend"))
		require.True(t, s.lastEvent().LeaseLost)
		require.Zero(t, s.lastEvent().Extensions)
	})
}

func TestAnAtomicAttemptWhoseTransactionFailedIsA500(t *testing.T) {
	t.Parallel()
	s := newService(nil, created)
	s.store.atomic = true
	s.store.fail("complete", server.ErrRolledBack)
	w := serve(s, post("{}"))
	requireProblem(t, w, http.StatusInternalServerError, "OPERATION_FAILED")
	require.Equal(t, server.ResultFailed, s.lastEvent().Result)
	require.ErrorIs(t, s.lastEvent().Err, server.ErrRolledBack)
}

func TestAnAtomicAnswerMustFitTheBuffer(t *testing.T) {
	t.Parallel()
	s := newService(func(mw *server.Middleware) { mw.MaxBuffered, mw.MaxStored = 100, 50 }, func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.Header.Get("Size"))
		assert.NoError(t, err)
		assert.ErrorIs(t, http.NewResponseController(w).Flush(), http.ErrNotSupported)
		_, isFlusher := w.(http.Flusher)
		assert.False(t, isFlusher)
		_, _ = w.Write(bytes.Repeat([]byte("x"), n))
	})
	s.store.atomic = true
	send := func(size string) *httptest.ResponseRecorder {
		r := request("POST", "/payments", "key-"+size, "{}")
		r.Header.Set("Size", size)
		return serve(s, r)
	}
	requireReplay(t, send("50"), send("50"))
	require.Equal(t, 100, send("100").Body.Len(), "sent in full, though not kept")
	requireProblem(t, send("100"), http.StatusConflict, "RESPONSE_NOT_KEPT")
	requireProblem(t, send("101"), http.StatusInternalServerError, "OPERATION_FAILED")
	require.Equal(t, 1, s.store.called("release"), "rolled back")
}

func TestAnAnswerThatIsPassingIsStillRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a")
			assert.NoError(t, http.NewResponseController(w).Flush())
			time.Sleep(300 * time.Millisecond)
			_, _ = io.WriteString(w, "b")
		})
		client := http.Client{Transport: faultnet.Handle(t, s)}
		send := func() *http.Response {
			r, err := http.NewRequestWithContext(t.Context(), "POST", "http://test/payments", strings.NewReader("{}"))
			require.NoError(t, err)
			r.Header.Set("Idempotency-Key", "key")
			answer, err := client.Do(r)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, answer.Body.Close()) })
			return answer
		}
		start := time.Now()
		answer := send()
		p := make([]byte, 1)
		_, err := io.ReadFull(answer.Body, p)
		require.NoError(t, err)
		require.Equal(t, "a", string(p))
		require.Zero(t, time.Since(start))
		rest, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, "b", string(rest))
		replay, err := io.ReadAll(send().Body)
		require.NoError(t, err)
		require.Equal(t, "ab", string(replay))
		require.EqualValues(t, 1, s.runs.Load())
	})
}

func TestTheHandlersOperation(t *testing.T) {
	t.Parallel()
	var got []server.Operation
	s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
		op, ok := server.OperationFrom(r.Context())
		assert.True(t, ok)
		got = append(got, op)
		w.WriteHeader(http.StatusBadGateway)
	})
	serve(s, post("{}"))
	serve(s, post("{}"))
	require.Len(t, got, 2)
	for i, op := range got {
		require.Equal(t, server.Operation{ID: got[0].ID, Account: "acme", Key: "key", Attempt: i + 1}, op)
	}
	require.Equal(t, got[1], s.lastEvent().Operation)
}
