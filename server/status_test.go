package server_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

func TestAnAccountSeesItsOwnOperationsOnly(t *testing.T) {
	t.Parallel()
	s := newReports(nil)
	accepted := serve(s, post("{}"))
	look := func(account string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", accepted.Header().Get("Location"), nil)
		r.Header.Set("X-Account", account)
		return serve(s.status, r)
	}
	requireAccepted(t, look("acme"))
	requireUnknown := func() {
		members := requireProblem(t, look("globex"), http.StatusNotFound, "OPERATION_NOT_FOUND")
		require.NotContains(t, members, "operation_id")
		requireProblem(t, look(""), http.StatusUnauthorized, "ACCOUNT_REQUIRED")
	}
	requireUnknown()
	require.NoError(t, s.work(0, 0, reportDone))
	requireFinished(t, look("acme"), reportDone)
	requireUnknown()

	r := post("{}")
	r.Header.Set("X-Account", "globex")
	requireAccepted(t, serve(s, r))
	requireUnknown() // though it has an operation of its own under the same key
}

func TestAnOperationIsFoundByItsIDAndKey(t *testing.T) {
	t.Parallel()
	s := newReports(nil)
	accepted := serve(s, request("POST", "/payments", `an/odd?key&"%`, "{}"))
	location := accepted.Header().Get("Location")
	require.Regexp(t, `^/operations/[0-9a-f-]{36}\.[A-Za-z0-9_-]+$`, location)
	requireAccepted(t, s.look(accepted))

	id, encoded, _ := strings.Cut(strings.TrimPrefix(location, "/operations/"), ".")
	for _, unknown := range []string{
		"", ".", id, id + ".", "." + encoded, id + "." + encoded + "=", id + "." + encoded + ".", id + ".a2V5",
		uuid.NewString() + "." + encoded, uuid.Nil.String() + ".bm9uZQ", id + ".IA", id + ".Cg", id + "." + strings.Repeat("eHg", 300),
	} {
		w := serve(s.status, httptest.NewRequest("GET", "/operations/"+unknown, nil))
		members := requireProblem(t, w, http.StatusNotFound, "OPERATION_NOT_FOUND")
		require.NotContains(t, members, "operation_id", unknown)
		require.Equal(t, []string{"no-store"}, w.Header()["Cache-Control"])
	}
	require.EqualValues(t, 1, s.runs.Load())
}

func TestTheStatusIsToldWhereverItIsMounted(t *testing.T) {
	t.Parallel()
	s := newReports(nil)
	id := strings.TrimPrefix(serve(s, post("{}")).Header().Get("Location"), "/operations/")
	mux := http.NewServeMux()
	mux.Handle("GET /v1/things/{name}", s.status)
	mux.Handle("/stripped/", http.StripPrefix("/stripped/", s.status))
	for _, path := range []string{"/v1/things/" + id, "/stripped/" + id} {
		for _, method := range []string{"GET", "HEAD"} {
			w := serve(mux, httptest.NewRequest(method, path, nil))
			require.Equal(t, http.StatusAccepted, w.Code)
			require.Equal(t, []string{"1"}, w.Header()["Retry-After"])
		}
	}
	w := serve(s.status, httptest.NewRequest("POST", "/operations/"+id, nil))
	require.Equal(t, http.StatusMethodNotAllowed, w.Code)
	require.Equal(t, []string{"GET, HEAD"}, w.Header()["Allow"])
}

func TestTheStatusOfOperationsThatWereNotAccepted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(func(mw *server.Middleware) { mw.MaxStored = 10 }, nil)
		status := s.mw.StatusHandler()
		var op server.Operation
		look := func() *httptest.ResponseRecorder {
			return serve(status, httptest.NewRequest("GET", "/operations/"+op.StatusID(), nil))
		}
		guard := func(answer http.HandlerFunc) http.Handler {
			return s.mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				op, _ = server.OperationFrom(r.Context())
				answer(w, r)
			}))
		}
		running := begin(guard(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Second)
			w.WriteHeader(http.StatusServiceUnavailable)
		}), post("{}"))
		requireProcessing(t, look(), "1")
		<-running
		members := requireProblem(t, look(), http.StatusNotFound, "OPERATION_NOT_FOUND")
		require.Equal(t, op.ID.String(), members["operation_id"])

		first := serve(guard(created), post("{}"))
		found := look()
		require.Equal(t, first.Code, found.Code)
		require.Equal(t, first.Body, found.Body)

		serve(guard(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 11)) }),
			request("POST", "/payments", "large", "{}"))
		members = requireProblem(t, look(), http.StatusConflict, "RESPONSE_NOT_KEPT")
		require.InDelta(t, 200, members["original_status"], 0)

		time.Sleep(48 * time.Hour)
		requireProblem(t, look(), http.StatusNotFound, "OPERATION_NOT_FOUND")
	})
}

func TestTheStatusNeedsTheStore(t *testing.T) {
	t.Parallel()
	s := newReports(func(mw *server.Middleware) { mw.StoreTimeout = time.Minute })
	accepted := serve(s, post("{}"))
	s.store.fail("find", errOutage)
	w := s.look(accepted)
	requireProblem(t, w, http.StatusServiceUnavailable, "STORE_UNAVAILABLE")
	require.Equal(t, []string{"1"}, w.Header()["Retry-After"])
	require.Contains(t, s.log.String(), errOutage.Error())

	for _, mw := range []*server.Middleware{
		{},
		{Account: account},
		{Account: account, Store: modestStore{new(memstore.Store)}},
		{Account: account, Store: new(memstore.Store), Wait: -1},
	} {
		mw.Logger = s.mw.Logger
		s.log.Reset()
		status := mw.StatusHandler()
		require.Contains(t, s.log.String(), "misconfigured")
		requireProblem(t, serve(status, httptest.NewRequest("GET", "/", nil)), http.StatusInternalServerError, "MIDDLEWARE_MISCONFIGURED")
	}
}

func TestTheContractWordsTheStatus(t *testing.T) {
	t.Parallel()
	s := newService(func(mw *server.Middleware) { mw.Contract = server.Stripe }, created)
	w := serve(s.mw.StatusHandler(), httptest.NewRequest("GET", "/operations/none", nil))
	require.Equal(t, http.StatusNotFound, w.Code)
	require.JSONEq(t, `{"error": {"type": "invalid_request_error", "code": "operation_not_found",
		"message": "The operation was not found. There is no such operation, or there is none any more."}}`, w.Body.String())
}

// accepted returns a store and the ticket of an operation in it.
func accepted(t *testing.T) (*faultStore, server.Ticket) {
	t.Helper()
	s := newReports(nil)
	serve(s, post("{}"))
	ticket, err := s.job(0)
	require.NoError(t, err)
	return s.store, ticket
}

func TestWorkKeepsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, ticket := accepted(t)
		require.NoError(t, server.Work(t.Context(), store, ticket, func(ctx context.Context) (server.Response, error) {
			op, ok := server.OperationFrom(ctx)
			require.True(t, ok)
			require.Equal(t, ticket.Operation, op)
			time.Sleep(10*longLease - time.Second)
			require.NoError(t, ctx.Err())
			return reportDone, nil
		}))
		require.Equal(t, 1+29, store.called("renew"))
		rec, err := store.Find(t.Context(), server.ID{Account: "acme", Key: "key"})
		require.NoError(t, err)
		require.Equal(t, server.Completed, rec.Status)
		time.Sleep(48*time.Hour - time.Nanosecond)
		rec, err = store.Find(t.Context(), server.ID{Account: "acme", Key: "key"})
		require.NoError(t, err)
		require.Equal(t, &reportDone, rec.Response)
		time.Sleep(time.Nanosecond)
		rec, err = store.Find(t.Context(), server.ID{Account: "acme", Key: "key"})
		require.NoError(t, err)
		require.Zero(t, rec, "it lives for the TTL of the route")
	})
}

func TestWorkEndsWhenItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, ticket := accepted(t)
		start := time.Now()
		err := server.Work(t.Context(), store, ticket, func(ctx context.Context) (server.Response, error) {
			_, err := store.Finish(t.Context(), ticket, reportDone, time.Hour)
			require.NoError(t, err)
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), server.ErrLeaseLost)
			return server.Response{}, ctx.Err()
		})
		require.ErrorIs(t, err, server.ErrLeaseLost)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, longLease/3, time.Since(start))
	})
}

func TestWorkIsDoneOnceHoweverOftenItIsDelivered(t *testing.T) {
	t.Parallel()
	store, ticket := accepted(t)
	failed, runs := errors.New("the printer is on fire"), 0
	deliver := func() error {
		return server.Work(t.Context(), store, ticket, func(context.Context) (server.Response, error) {
			if runs++; runs == 1 {
				return server.Response{}, failed
			}
			return reportDone, nil
		})
	}
	require.Equal(t, failed, deliver())
	require.NoError(t, deliver(), "the queue tries again")
	require.ErrorIs(t, deliver(), server.ErrLeaseLost)
	require.Equal(t, 2, runs)
}

func TestWorkThatIsDoneIsFinishedWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, ticket := accepted(t)
		done := func(context.Context) (server.Response, error) { return reportDone, nil }
		store.fail("renew", errOutage)
		require.ErrorIs(t, server.Work(t.Context(), store, ticket, done), errOutage, "nothing is begun without the store")
		store.on("renew", nil)

		store.fail("finish", errOutage)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, server.Work(ctx, store, ticket, done), context.DeadlineExceeded)

		time.AfterFunc(time.Minute, func() { store.on("finish", nil) })
		require.NoError(t, server.Work(t.Context(), store, ticket, done))
		rec, err := store.Find(t.Context(), server.ID{Account: "acme", Key: "key"})
		require.NoError(t, err)
		require.Equal(t, &reportDone, rec.Response)
	})
}

func TestWorkRefusesBadUse(t *testing.T) {
	t.Parallel()
	store, ticket := accepted(t)
	done := func(context.Context) (server.Response, error) { return reportDone, nil }
	require.ErrorContains(t, server.Work(t.Context(), nil, ticket, done), "needs a store")
	require.ErrorContains(t, server.Work(t.Context(), store, ticket, nil), "needs a store and a function")
	require.ErrorContains(t, server.Work(t.Context(), store, server.Ticket{}, done), "not made by Accept")
	for _, status := range []int{-1, 0, 199, 600} {
		err := server.Work(t.Context(), store, ticket, func(context.Context) (server.Response, error) {
			return server.Response{StatusCode: status}, nil
		})
		require.ErrorContains(t, err, "cannot be finished with the status")
	}
	require.Zero(t, store.called("finish"))
}
