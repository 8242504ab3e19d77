package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// A handler that is not safe to repeat becomes so.
func ExampleMiddleware() {
	payments := 0
	guard := &server.Middleware{
		Store: new(memstore.Store),
		Account: func(*http.Request) (string, error) {
			return "acme", nil // whoever your authentication found out
		},
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", payments)
	})))

	for _, body := range []string{`{"amount":1200}`, `{"amount":1200}`, `{"amount":9900}`} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "order-1042")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Idempotent-Replayed"), w.Body)
	}
	// Output:
	// 201  payment 1
	// 201 true payment 1
	// 409  {"code":"IDEMPOTENCY_KEY_REUSE","detail":"A new operation needs a new key; to repeat the earlier one, send exactly the same request.","status":409,"title":"The idempotency key was used for another request","type":"https://github.com/idemhttp/idem#idempotency-key-reuse"}
}

// Whoever reads the configuration first learns all that is wrong with it.
func ExampleMiddleware_Validate() {
	guard := &server.Middleware{Store: new(memstore.Store), Wait: -time.Second}
	fmt.Println(guard.Validate())
	// Output:
	// idem: Middleware.Account is nil: set it to a function that returns the authenticated account of a request
	// idem: Middleware.Wait is -1s: set it to 1ns or more, or to 0 for the default
}

// A graceful stop waits for handlers, then for answers that could not be
// recorded at once.
func ExampleMiddleware_Drain() {
	guard := &server.Middleware{
		Store:   new(memstore.Store),
		Account: func(*http.Request) (string, error) { return "acme", nil },
	}
	srv := &http.Server{Handler: guard.Handler(http.NotFoundHandler()), ReadHeaderTimeout: time.Second}

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fmt.Println(srv.Shutdown(ctx))
	fmt.Println(guard.Drain(ctx))
	// Only now close the store.

	// Output:
	// <nil>
	// <nil>
}

// Events have what a metric needs: few labels, and durations.
func ExampleEvent() {
	var mu sync.Mutex
	requests := map[server.Result]int{}
	guard := &server.Middleware{
		Store:   new(memstore.Store),
		Account: func(*http.Request) (string, error) { return "acme", nil },
		Observe: func(_ context.Context, e server.Event) {
			mu.Lock()
			defer mu.Unlock()
			requests[e.Result]++
		},
	}
	h := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, key := range []string{"1", "1", "2", "not a key"} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", key)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	fmt.Println(requests)
	// Output: map[executed:2 invalid:1 replayed:1]
}

// The key for a provider is the same whenever the operation is attempted, and
// another for every call that it makes.
func ExampleOperation_DownstreamKey() {
	op := server.Operation{ID: uuid.MustParse("2c9a1e9b-4b9e-4d6e-9e67-6e3b2e7c1e32")}
	fmt.Println(op.DownstreamKey("charge"))
	fmt.Println(op.DownstreamKey("receipt"))
	fmt.Println(op.DownstreamKey("charge"))
	// Output:
	// 9fb50594-cd14-80de-a615-dac52dad16fa
	// e191c4dc-3fdc-89b9-9dbf-491dc3cd020e
	// 9fb50594-cd14-80de-a615-dac52dad16fa
}

// What a handler may know of its operation.
func ExampleOperationFrom() {
	guard := &server.Middleware{
		Store:   new(memstore.Store),
		Account: func(*http.Request) (string, error) { return "acme", nil },
	}
	h := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := server.OperationFrom(r.Context())
		fmt.Println("account", op.Account, "key", op.Key, "attempt", op.Attempt)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1042")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// account acme key order-1042 attempt 1
	// account acme key order-1042 attempt 2
}

// A message that a queue delivers twice is handled once.
func ExampleDo() {
	store := new(memstore.Store)
	message := []byte("invoice 1042 is due")
	for range 2 {
		done, err := server.Do(context.Background(), store, server.ClaimRequest{
			ID:          server.ID{Account: "reminders", Key: "message-77"},
			Fingerprint: server.Fingerprint{Version: 1, Sum: sha256.Sum256(message)},
		}, func(context.Context) ([]byte, error) {
			fmt.Println("sending")
			return []byte("receipt 1"), nil
		})
		fmt.Println(string(done.Value), done.Replayed, err)
	}
	// Output:
	// sending
	// receipt 1 false <nil>
	// receipt 1 true <nil>
}

// Expired records are deleted for as long as the process wants.
func ExampleCleanup() {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	cleanup := &server.Cleanup{
		Store:    new(memstore.Store),
		Interval: time.Minute,
		Observe:  func(_ context.Context, e server.CleanupEvent) { fmt.Println("deleted", e.Deleted) },
	}
	fmt.Println(cleanup.Run(ctx))
	// Output:
	// deleted 0
	// context deadline exceeded
}

// A report takes longer than a request may. Its handler leaves it to a worker.
func ExampleAccept() {
	store := new(memstore.Store)
	guard := &server.Middleware{
		Store:   store,
		Account: func(*http.Request) (string, error) { return "acme", nil },
	}
	jobs := make(chan []byte, 1) // a queue
	mux := http.NewServeMux()
	mux.Handle("GET /operations/{operation}", guard.StatusHandler())
	mux.Handle("POST /reports", guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ticket, err := server.Accept(r.Context(), 10*time.Minute)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		job, _ := json.Marshal(ticket)
		jobs <- job
		w.Header().Set("Location", "/operations/"+ticket.StatusID())
		w.WriteHeader(http.StatusAccepted)
	})))
	post := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/reports", nil)
		r.Header.Set("Idempotency-Key", "report-2026")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Printf("POST: %d %q\n", w.Code, w.Body)
		return w
	}
	accepted := post()
	post()

	var ticket server.Ticket // in another process, perhaps
	if err := json.Unmarshal(<-jobs, &ticket); err != nil {
		fmt.Println(err)
	}
	err := server.Work(context.Background(), store, ticket, func(context.Context) (server.Response, error) {
		return server.Response{StatusCode: http.StatusCreated, Body: []byte("the report")}, nil
	})
	fmt.Println("finished:", err)

	post()
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", accepted.Header().Get("Location"), nil))
	fmt.Printf("GET: %d %q\n", w.Code, w.Body)
	// Output:
	// POST: 202 ""
	// POST: 202 ""
	// finished: <nil>
	// POST: 201 "the report"
	// GET: 201 "the report"
}

// An API that answers errors in a format of its own keeps to it.
func ExampleContract() {
	guard := &server.Middleware{
		Store:   new(memstore.Store),
		Account: func(*http.Request) (string, error) { return "acme", nil },
		Contract: func(r server.Refusal) server.Response {
			answer := server.IETF(r)
			answer.Body = fmt.Appendf(nil, `{"errors":[{"id":%q}]}`, r.Code)
			answer.Fields[0].Value = "application/vnd.api+json"
			return answer
		},
	}
	h := guard.Handler(http.NotFoundHandler())
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/payments", nil))
	fmt.Println(w.Code, w.Body)
	// Output:
	// 400 {"errors":[{"id":"IDEMPOTENCY_KEY_MISSING"}]}
}
