package pgstore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// guarded returns handler behind a middleware on store, as one process of
// several would run it.
func guarded(store *pgstore.Store, handler http.HandlerFunc, configure ...func(*server.Middleware)) http.Handler {
	m := &server.Middleware{
		Store:        store,
		Account:      func(*http.Request) (string, error) { return "acme", nil },
		StoreTimeout: 30 * time.Second, // these tests keep more busy than a database of tests
		Logger:       quiet,
	}
	for _, c := range configure {
		c(m)
	}
	return m.Handler(handler)
}

func post(h http.Handler, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// handlerOf returns a handler that does its effect after a pause.
func handlerOf(t *testing.T, mode string, db *pgtest.DB, pause time.Duration) http.HandlerFunc {
	t.Helper()
	do := effect(inTransaction)
	if mode == "lease" {
		do = elsewhere(db.Pool(t))
	}
	return func(w http.ResponseWriter, r *http.Request) {
		op, _ := server.OperationFrom(r.Context())
		if err := do(r.Context(), op); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		<-time.After(pause)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "attempt %d of %s", op.Attempt, op.ID)
	}
}

func TestConcurrentDuplicatesExecuteOnceAcrossProcesses(t *testing.T) {
	t.Parallel()
	for mode, newStore := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			processes := make([]http.Handler, 2)
			for i := range processes {
				processes[i] = guarded(open(t, newStore, db), handlerOf(t, mode, db, 50*time.Millisecond))
			}
			for round := range 50 {
				key := fmt.Sprintf("round-%d", round)
				answers := make([]*httptest.ResponseRecorder, 200)
				var requests sync.WaitGroup
				start := make(chan struct{})
				for i := range answers {
					requests.Go(func() {
						<-start
						answers[i] = post(processes[i%2], key, `{"amount": 1}`)
					})
				}
				close(start)
				requests.Wait()
				final := post(processes[0], key, `{"amount": 1}`)
				require.Equal(t, http.StatusCreated, final.Code)
				require.Equal(t, "true", final.Header().Get("Idempotent-Replayed"))
				require.Equal(t, 1, effects(t, db, key))
				for _, a := range answers {
					if a.Code == http.StatusAccepted {
						require.NotEmpty(t, a.Header().Get("Retry-After"))
						continue
					}
					require.Equal(t, http.StatusCreated, a.Code, a.Body.String())
					require.Equal(t, final.Body.String(), a.Body.String())
				}
			}
		})
	}
}

// TestDuplicatesAreAnsweredInTime is not parallel: it measures.
func TestDuplicatesAreAnsweredInTime(t *testing.T) { //nolint:paralleltest // see above
	for mode, newStore := range modes {
		t.Run(mode, func(t *testing.T) {
			db := newDB(t)
			arrived, goOn := make(chan struct{}), make(chan struct{})
			owner := guarded(open(t, newStore, db), func(w http.ResponseWriter, _ *http.Request) {
				close(arrived)
				<-goOn
				w.WriteHeader(http.StatusCreated)
			})
			const wait = 300 * time.Millisecond
			other := guarded(open(t, newStore, db.With("pool_max_conns", "4")), http.NotFound, func(m *server.Middleware) { m.Wait = wait })
			first := make(chan *httptest.ResponseRecorder, 1)
			go func() { first <- post(owner, "key", "{}") }()
			<-arrived

			var requests sync.WaitGroup
			var longest atomic.Int64
			for range 50 {
				requests.Go(func() {
					began := time.Now()
					if a := post(other, "key", "{}"); a.Code != http.StatusAccepted {
						t.Errorf("got %d", a.Code)
					}
					longest.Store(max(longest.Load(), int64(time.Since(began))))
				})
			}
			blocked := 0
			for range 5 {
				blocked += pgtest.Value[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
			}
			requests.Wait()
			require.Zero(t, blocked)
			require.Less(t, time.Duration(longest.Load()), wait+200*time.Millisecond)
			close(goOn)
			require.Equal(t, http.StatusCreated, (<-first).Code)
		})
	}
}

func TestAnswerWakesWhoWaitsInAnotherProcess(t *testing.T) {
	t.Parallel()
	for mode, newStore := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			arrived, goOn := make(chan struct{}), make(chan struct{})
			owner := guarded(open(t, newStore, db), func(w http.ResponseWriter, _ *http.Request) {
				close(arrived)
				<-goOn
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, "done")
			})
			other := guarded(open(t, newStore, db), http.NotFound, func(m *server.Middleware) { m.Wait = 20 * time.Second })
			answers := make(chan *httptest.ResponseRecorder, 2)
			go func() { answers <- post(owner, "key", "{}") }()
			<-arrived
			go func() { answers <- post(other, "key", "{}") }()
			select {
			case a := <-answers:
				require.Fail(t, "answered while the operation runs", "%d", a.Code)
			case <-time.After(300 * time.Millisecond):
			}
			close(goOn)
			for range 2 {
				a := <-answers
				require.Equal(t, http.StatusCreated, a.Code)
				require.Equal(t, "done", a.Body.String())
			}
		})
	}
}

func TestHandlerRunsAgainAfterASerializationFailure(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"that it reports": http.StatusInternalServerError, "that it ignores": http.StatusCreated} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			var runs atomic.Int64
			h := guarded(open(t, pgstore.Transactional, db), func(w http.ResponseWriter, r *http.Request) {
				op, _ := server.OperationFrom(r.Context())
				if err := inTransaction(r.Context(), op); err != nil {
					t.Error(err)
				}
				if body, err := io.ReadAll(r.Body); err != nil || string(body) != `{"a":1}` {
					t.Errorf("got the body %q and the error %v", body, err)
				}
				if runs.Add(1) < 3 {
					raising("40001")(r.Context(), pgstore.Tx(r.Context()))
					w.WriteHeader(status)
					return
				}
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, "done")
			})
			a := post(h, "key", `{"a":1}`)
			require.Equal(t, http.StatusCreated, a.Code)
			require.Equal(t, "done", a.Body.String())
			require.Equal(t, int64(3), runs.Load())
			require.Equal(t, 1, effects(t, db, "key"))
		})
	}
}

func TestSwallowedErrorIsAnsweredWith500(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	h := guarded(open(t, pgstore.Transactional, db), func(w http.ResponseWriter, r *http.Request) {
		op, _ := server.OperationFrom(r.Context())
		_ = inTransaction(r.Context(), op)
		failing(r.Context(), pgstore.Tx(r.Context()))
		w.WriteHeader(http.StatusCreated)
	})
	for range 2 {
		require.Equal(t, http.StatusInternalServerError, post(h, "key", "{}").Code)
	}
	require.Equal(t, 0, effects(t, db, "key"))
}

func TestPanicRollsBackAndTheRetryExecutes(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	var runs atomic.Int64
	h := guarded(open(t, pgstore.Transactional, db), func(w http.ResponseWriter, r *http.Request) {
		op, _ := server.OperationFrom(r.Context())
		_ = inTransaction(r.Context(), op)
		if runs.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "attempt %d", op.Attempt)
	})
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { post(h, "key", "{}") })
	require.Equal(t, 0, effects(t, db, "key"))
	require.Equal(t, "failed", recorded(t, db, "key"))
	require.Equal(t, "attempt 2", post(h, "key", "{}").Body.String())
	require.Equal(t, 1, effects(t, db, "key"))
}

// The completion of an effect that has happened fails for a while.
func TestCompletionIsRepeatedUntilTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	var calls atomic.Int64
	m := &server.Middleware{
		Store:   open(t, pgstore.New, w.DB),
		Account: func(*http.Request) (string, error) { return "acme", nil },
		Logger:  quiet,
		Wait:    server.NoWait,
	}
	h := m.Handler(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Intercept(always(pgtest.Cut))
		rw.WriteHeader(http.StatusCreated)
		fmt.Fprint(rw, "charged")
	}))
	a := post(h, "key", "{}")
	require.Equal(t, http.StatusCreated, a.Code, "the first client gets its answer")
	require.Equal(t, "charged", a.Body.String())
	for range 3 {
		require.Contains(t, []int{http.StatusAccepted, http.StatusServiceUnavailable}, post(h, "key", "{}").Code)
	}
	require.Equal(t, "processing", recorded(t, db, "key"))
	w.Intercept(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, m.Drain(ctx))
	again := post(h, "key", "{}")
	require.Equal(t, http.StatusCreated, again.Code)
	require.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
	require.Equal(t, "charged", again.Body.String())
	require.Equal(t, int64(1), calls.Load())
}

func TestReplayIsByteForByte(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	body := bytes.Repeat([]byte{0, 0xFF, '\n', 'a'}, 1000)
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Link", "</a>")
		w.Header().Add("Link", "</b>")
		w.Header().Set("Content-Type", "application/octet-stream")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}
	lease, tx := guarded(open(t, pgstore.New, db), handler), guarded(open(t, pgstore.Transactional, db), handler)
	for key, order := range map[string][]http.Handler{"lease first": {lease, tx}, "transaction first": {tx, lease}} {
		key = strings.ReplaceAll(key, " ", "-")
		first, second := post(order[0], key, "{}"), post(order[1], key, "{}")
		require.Equal(t, http.StatusCreated, second.Code)
		require.Equal(t, "true", second.Header().Get("Idempotent-Replayed"))
		require.Equal(t, body, second.Body.Bytes())
		require.Equal(t, first.Header()["Link"], second.Header()["Link"])
		require.Equal(t, http.StatusConflict, post(order[1], key, `{"other":1}`).Code)
	}
}
