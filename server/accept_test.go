package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// longLease is that of the workers in these tests.
const longLease = time.Minute

// reports is a service whose operations are accepted, and a queue of the jobs.
type reports struct {
	*service

	status http.Handler

	mu   sync.Mutex
	jobs [][]byte // tickets as JSON
}

func newReports(configure func(*server.Middleware)) *reports {
	r := &reports{}
	r.service = newService(configure, r.create)
	r.status = r.mw.StatusHandler()
	return r
}

// create accepts the operation and leaves a job. It answers what the request
// asks for.
func (s *reports) create(w http.ResponseWriter, r *http.Request) {
	ticket, err := server.Accept(r.Context(), longLease)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	job, _ := json.Marshal(ticket)
	s.mu.Lock()
	s.jobs = append(s.jobs, job)
	s.mu.Unlock()
	w.Header().Set("Location", "/operations/"+ticket.StatusID())
}

// job returns the ticket of the nth job, as its worker gets it.
func (s *reports) job(n int) (ticket server.Ticket, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ticket, json.Unmarshal(s.jobs[n], &ticket)
}

// work does the work of the nth job in d, and finishes with r.
func (s *reports) work(n int, d time.Duration, r server.Response) error {
	ticket, err := s.job(n)
	if err != nil {
		return err
	}
	return server.Work(context.Background(), s.store, ticket, func(context.Context) (server.Response, error) {
		time.Sleep(d)
		return r, nil
	})
}

// look asks for the status of the operation that an answer was about.
func (s *reports) look(accepted *httptest.ResponseRecorder) *httptest.ResponseRecorder {
	return serve(s.status, httptest.NewRequest("GET", accepted.Header().Get("Location"), nil))
}

var reportDone = server.Response{
	StatusCode: http.StatusCreated, Fields: []server.Field{{Name: "Content-Type", Value: "text/plain"}}, Body: []byte("the report"),
}

// requireAccepted demands the interim answer of an operation, which it returns.
func requireAccepted(t *testing.T, w *httptest.ResponseRecorder) (operation uuid.UUID) {
	t.Helper()
	requireProcessing(t, w, "1")
	var body struct {
		Operation uuid.UUID `json:"operation_id"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	require.NotEqual(t, uuid.Nil, body.Operation)
	require.True(t, strings.HasPrefix(w.Header().Get("Location"), "/operations/"+body.Operation.String()+"."))
	return body.Operation
}

func requireFinished(t *testing.T, w *httptest.ResponseRecorder, r server.Response) {
	t.Helper()
	require.Equal(t, r.StatusCode, w.Code, w.Body)
	require.Equal(t, string(r.Body), w.Body.String())
	require.Equal(t, []string{"text/plain"}, w.Header()["Content-Type"])
	require.Equal(t, []string{"true"}, w.Header()["Idempotent-Replayed"])
	require.Empty(t, w.Header()["Location"], "a field of the interim answer")
}

func TestALongOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReports(nil)
		first := serve(s, post("{}"))
		operation := requireAccepted(t, first)
		require.Equal(t, []string{"key"}, first.Header()["Idempotency-Key"])
		require.Equal(t, server.ResultAccepted, s.lastEvent().Result)
		require.Equal(t, operation, s.lastEvent().Operation.ID)
		finished := make(chan error, 1)
		go func() { finished <- s.work(0, 300*time.Millisecond, reportDone) }()

		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		second := serve(s, post("{}"))
		require.Zero(t, time.Since(start), "there is nothing to wait for")
		require.Equal(t, operation, requireAccepted(t, second))
		require.Equal(t, first.Body.String(), second.Body.String())
		require.Equal(t, operation, requireAccepted(t, s.look(first)))
		requireProblem(t, serve(s, post(`{"other":1}`)), http.StatusConflict, "IDEMPOTENCY_KEY_REUSE")

		time.Sleep(400 * time.Millisecond)
		require.NoError(t, <-finished)
		final := serve(s, post("{}"))
		requireFinished(t, final, reportDone)
		requireFinished(t, s.look(first), reportDone)
		require.EqualValues(t, 1, s.runs.Load())
		require.Equal(t, map[server.Result]int{
			server.ResultAccepted: 2, server.ResultReused: 1, server.ResultReplayed: 1,
		}, s.results())
		require.Equal(t, server.Load{}, s.mw.Load())
	})
}

// A failure is an answer like any other, also one that a handler's would not be.
func TestALongOperationThatFailsForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, status := range []int{422, 500, 503} {
			s := newReports(nil)
			failure := server.Response{StatusCode: status, Fields: reportDone.Fields, Body: []byte("no paper")}
			accepted := serve(s, post("{}"))
			require.NoError(t, s.work(0, time.Second, failure))
			for range 2 {
				requireFinished(t, serve(s, post("{}")), failure)
				requireFinished(t, s.look(accepted), failure)
				time.Sleep(time.Hour)
			}
			require.EqualValues(t, 1, s.runs.Load())
		}
	})
}

func TestALongOperationWhoseWorkerIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReports(nil)
		first := serve(s, post("{}"))
		operation := requireAccepted(t, first)
		time.Sleep(longLease - time.Nanosecond)
		require.Equal(t, operation, requireAccepted(t, serve(s, post("{}"))), "the lease is the worker's own")
		time.Sleep(time.Nanosecond)
		members := requireProblem(t, s.look(first), http.StatusNotFound, "OPERATION_NOT_FOUND")
		require.Equal(t, operation.String(), members["operation_id"])
		require.Contains(t, members["detail"], "send its request again with the same key")

		require.Equal(t, operation, requireAccepted(t, serve(s, post("{}"))), "run again, under the same id")
		require.EqualValues(t, 2, s.runs.Load())
		require.True(t, s.lastEvent().TakenOver)
		require.Equal(t, 2, s.lastEvent().Operation.Attempt)
		require.Equal(t, operation, requireAccepted(t, s.look(first)), "its URL is what it was")
		lost, err := s.job(0)
		require.NoError(t, err)
		next, err := s.job(1)
		require.NoError(t, err)
		require.Equal(t, lost.DownstreamKey("print"), next.DownstreamKey("print"))

		require.ErrorIs(t, s.work(0, 0, reportDone), server.ErrLeaseLost, "the first worker is not needed any more")
		requireAccepted(t, serve(s, post("{}")))
		require.NoError(t, s.work(1, time.Second, reportDone))
		requireFinished(t, serve(s, post("{}")), reportDone)
		requireFinished(t, s.look(first), reportDone)
	})
}

func TestALostWorkerIsNotReplacedUnderRefuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReports(func(mw *server.Middleware) { mw.Takeover = server.Refuse })
		first := serve(s, post("{}"))
		time.Sleep(longLease)
		for _, w := range []*httptest.ResponseRecorder{serve(s, post("{}")), s.look(first)} {
			requireProblem(t, w, http.StatusConflict, "OPERATION_INDETERMINATE")
		}
		require.EqualValues(t, 1, s.runs.Load())
	})
}

func TestWhoWaitsIsToldOfTheAcceptanceAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReports(nil)
		enqueue := s.create
		h := s.mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			enqueue(w, r)
			time.Sleep(300 * time.Millisecond)
		}))
		start := time.Now()
		first := begin(h, post("{}"))
		var waiting []<-chan *httptest.ResponseRecorder
		for range 10 {
			waiting = append(waiting, begin(h, post("{}")))
		}
		operation := requireAccepted(t, <-first)
		for _, answer := range waiting {
			require.Equal(t, operation, requireAccepted(t, <-answer))
		}
		require.Equal(t, 300*time.Millisecond, time.Since(start))
		require.Equal(t, 1, s.store.called("claim"))
	})
}

func TestTheInterimAnswerIsWhatTheHandlerAnswers(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
		_, err := server.Accept(r.Context(), longLease)
		assertNoError(w, err)
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "come back later")
	})
	first, second := serve(s, post("{}")), serve(s, post("{}"))
	require.Equal(t, http.StatusAccepted, first.Code)
	require.Equal(t, "come back later", first.Body.String())
	require.Equal(t, []string{"7"}, first.Header()["Retry-After"])
	require.NotEmpty(t, first.Header()["Content-Digest"])
	require.Equal(t, first.Code, second.Code)
	require.Equal(t, first.Body, second.Body)
	require.Equal(t, first.Header(), second.Header(), "it is no replay, or clients would take it for final")
}

// assertNoError fails the request.
func assertNoError(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func TestAnInterimAnswerAlwaysSaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter){
		"nothing":       func(http.ResponseWriter) {},
		"other lengths": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "1000") },
		"a bare status": func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) },
		"a flush": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusAccepted)
			w.(http.Flusher).Flush()
		},
		"too much to keep": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusAccepted)
			_, _ = w.Write(make([]byte, 100))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(func(mw *server.Middleware) { mw.MaxStored = 99 }, func(w http.ResponseWriter, r *http.Request) {
				_, err := server.Accept(r.Context(), longLease)
				assertNoError(w, err)
				answer(w)
			})
			first := serve(s, post("{}"))
			require.Equal(t, http.StatusAccepted, first.Code)
			if name != "a flush" { // then it was too late
				require.Equal(t, []string{"1"}, first.Header()["Retry-After"])
			}
			second := serve(s, post("{}"))
			require.Equal(t, http.StatusAccepted, second.Code)
			require.Equal(t, []string{"1"}, second.Header()["Retry-After"])
			require.Empty(t, second.Header()["Idempotent-Replayed"])
			require.EqualValues(t, 1, s.runs.Load())
		})
	}
}

// Any other answer means what it means without Accept.
func TestAHandlerMayAnswerOtherwiseAfterAccept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter)
		result server.Result
	}{
		"final":  {func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) }, server.ResultExecuted},
		"failed": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }, server.ResultFailed},
		"panic":  {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, server.ResultFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ticket server.Ticket
			s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
				var err error
				ticket, err = server.Accept(r.Context(), longLease)
				assertNoError(w, err)
				c.answer(w)
			})
			func() {
				defer func() { _ = recover() }()
				serve(s, post("{}"))
			}()
			require.Equal(t, c.result, s.lastEvent().Result)
			require.Zero(t, s.store.called("accept"))
			require.ErrorIs(t, s.store.Renew(t.Context(), ticket, longLease), server.ErrLeaseLost)
		})
	}
}

func TestAWorkerMayBeFasterThanTheHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReports(nil)
		enqueue := s.create
		h := s.mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			enqueue(w, r)
			if err := s.work(0, time.Second, reportDone); err != nil {
				panic(err)
			}
		}))
		requireFinished(t, serve(h, post("{}")), reportDone)
		requireFinished(t, serve(h, post("{}")), reportDone)
		require.Equal(t, map[server.Result]int{server.ResultReplayed: 2}, s.results())
	})
}

// The handler's lease is extended while it runs, but a worker who is at it
// already has a longer one.
func TestTheHandlerDoesNotCutTheWorkersLeaseShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReports(func(mw *server.Middleware) { mw.Lease = 3 * time.Second })
		enqueue := s.create
		h := s.mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			enqueue(w, r)
			time.Sleep(9500 * time.Millisecond)
		}))
		serve(h, post("{}"))
		require.Equal(t, 9, s.store.called("extend"))
		rec, err := s.store.Find(t.Context(), server.ID{Account: "acme", Key: "key"})
		require.NoError(t, err)
		require.Equal(t, longLease, rec.LeaseLeft)
	})
}

func TestAcceptNeedsAnOperation(t *testing.T) {
	t.Parallel()
	_, err := server.Accept(t.Context(), longLease)
	require.ErrorContains(t, err, "a handler that a Middleware guards")

	_, err = server.Do(t.Context(), new(memstore.Store), server.ClaimRequest{ID: server.ID{Account: "acme", Key: "key"}},
		func(ctx context.Context) ([]byte, error) {
			_, err := server.Accept(ctx, longLease)
			return nil, err
		})
	require.ErrorIs(t, err, errors.ErrUnsupported)

	var errs []error
	late := make(chan func() error, 1)
	handler := func(_ http.ResponseWriter, r *http.Request) {
		for _, lease := range []time.Duration{-1, 0, time.Millisecond - 1, time.Millisecond} {
			_, err := server.Accept(r.Context(), lease)
			errs = append(errs, err)
		}
		late <- func() error {
			_, err := server.Accept(r.Context(), longLease)
			return err
		}
	}
	serve(newService(nil, handler), post("{}"))
	for _, err := range errs[:3] {
		require.ErrorContains(t, err, "at least 1ms")
	}
	require.NoError(t, errs[3])
	require.ErrorContains(t, (<-late)(), "after the handler had returned")

	errs = nil
	serve(newService(func(mw *server.Middleware) { mw.Store = modestStore{new(memstore.Store)} }, handler), post("{}"))
	require.ErrorIs(t, errs[3], errors.ErrUnsupported)
}

// modestStore can do nothing but what every store can.
type modestStore struct{ server.Store }

func (s modestStore) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	claim, err := s.Store.Claim(ctx, req)
	if claim.Lease != nil {
		claim.Lease = modestLease{claim.Lease}
	}
	return claim, err
}

type modestLease struct{ server.Lease }

// The job is on its way, so the client is told so, and the acceptance recorded
// as soon as the store is back.
func TestAnAcceptanceOutlivesAnOutageOfTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReports(nil)
		s.store.fail("accept", errOutage)
		operation := requireAccepted(t, serve(s, post("{}")))
		require.True(t, s.lastEvent().Pending)
		require.Equal(t, server.ResultAccepted, s.lastEvent().Result)
		time.Sleep(time.Minute)
		s.store.on("accept", nil)
		time.Sleep(10 * time.Second)
		require.Equal(t, server.ResultRecorded, s.lastEvent().Result)
		require.Equal(t, operation, requireAccepted(t, serve(s, post("{}"))))
		require.NoError(t, s.work(0, time.Second, reportDone))
		requireFinished(t, serve(s, post("{}")), reportDone)
		require.EqualValues(t, 1, s.runs.Load())
	})
}

// Under an atomic lease there is no job without the acceptance.
func TestAnAcceptanceThatCannotBeCommittedIsNone(t *testing.T) {
	t.Parallel()
	s := newReports(nil)
	s.store.atomic = true
	s.store.fail("accept", errOutage)
	requireProblem(t, serve(s, post("{}")), http.StatusServiceUnavailable, "STORE_UNAVAILABLE")
	s.store.fail("accept", server.ErrRolledBack)
	s.store.forget()
	requireProblem(t, serve(s, post("{}")), http.StatusInternalServerError, "OPERATION_FAILED")
	s.store.forget()
	restarts := 0
	s.store.on("accept", func() error {
		if restarts++; restarts < 3 {
			s.store.forget()
			return server.ErrRestart
		}
		return nil
	})
	requireAccepted(t, serve(s, post("{}")))
	require.EqualValues(t, 2+3, s.runs.Load())
	require.Equal(t, 2, s.lastEvent().Restarts)
}

func TestClientsWaitForALongOperation(t *testing.T) {
	t.Parallel()
	for name, c := range dialects {
		for _, watch := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", by its URL"}[watch], func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := newReports(func(mw *server.Middleware) { mw.Contract = c.contract })
					mux := http.NewServeMux()
					mux.Handle("POST /reports", s)
					mux.Handle("GET /operations/{operation}", s.status)
					d := *c.dialect
					if watch {
						d.StatusField = "Location"
					}
					client := &idem.Client{BaseURL: "http://api", Transport: faultnet.Handle(t, mux), Dialect: &d}
					finished := make(chan error, 1)
					time.AfterFunc(20*time.Second, func() { finished <- s.work(0, time.Second, reportDone) })

					result, err := idem.Post[string](t.Context(), client, "/reports", "please")
					require.NoError(t, err)
					require.Equal(t, http.StatusCreated, result.StatusCode)
					require.Equal(t, "the report", result.Value)
					require.NoError(t, <-finished)
					require.EqualValues(t, 1, s.runs.Load())
					require.Equal(t, watch, s.results()[server.ResultAccepted] == 1)
				})
			})
		}
	}
}
