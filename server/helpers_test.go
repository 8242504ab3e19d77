package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

var errOutage = errors.New("the store is down")

// faultStore is a store whose calls can be made to fail. The hook of a call is
// run before it; an error takes the call's place.
type faultStore struct {
	server.Store
	atomic bool // its leases are
	// unproven keeps quiet about other fingerprints while an attempt runs, as a
	// store may that sees no more than a lock.
	unproven bool
	// rewrite, if not nil, changes what a completion is told was stored.
	rewrite func(*server.Record)
	// acknowledge, if not nil, may lose the answer of a completion.
	acknowledge func() error

	mu    sync.Mutex
	hooks map[string]func() error
	calls map[string]int
}

func newFaultStore() *faultStore {
	return &faultStore{
		Store: new(memstore.Store), hooks: map[string]func() error{}, calls: map[string]int{},
	}
}

// on sets the hook of "claim", "complete", "release", "extend", "accept",
// "finish", "renew" or "find"; nil heals it.
func (s *faultStore) on(call string, hook func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks[call] = hook
}

func (s *faultStore) fail(call string, err error) { s.on(call, func() error { return err }) }

// forget drops all records, as a rollback does.
func (s *faultStore) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Store = new(memstore.Store)
}

func (s *faultStore) called(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[call]
}

func (s *faultStore) enter(call string) error {
	s.mu.Lock()
	s.calls[call]++
	hook := s.hooks[call]
	s.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook()
}

func (s *faultStore) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	if err := s.enter("claim"); err != nil {
		return server.Claim{}, err
	}
	s.mu.Lock()
	store := s.Store
	s.mu.Unlock()
	claim, err := store.Claim(ctx, req)
	if s.unproven && claim.Record.Status == server.Processing {
		claim.Record.Reused = false
	}
	if claim.Lease != nil {
		lease := &faultLease{claim.Lease, s}
		claim.Lease = lease
		if s.atomic {
			claim.Lease = atomicLease{lease}
		}
	}
	return claim, err
}

func (s *faultStore) Finish(ctx context.Context, t server.Ticket, r server.Response, ttl time.Duration) (server.Record, error) {
	if err := s.enter("finish"); err != nil {
		return server.Record{}, err
	}
	return s.Store.(server.Finisher).Finish(ctx, t, r, ttl)
}

func (s *faultStore) Renew(ctx context.Context, t server.Ticket, d time.Duration) error {
	if err := s.enter("renew"); err != nil {
		return err
	}
	return s.Store.(server.Finisher).Renew(ctx, t, d)
}

func (s *faultStore) Find(ctx context.Context, id server.ID) (server.Record, error) {
	if err := s.enter("find"); err != nil {
		return server.Record{}, err
	}
	return s.Store.(server.Finder).Find(ctx, id)
}

type faultLease struct {
	server.Lease
	store *faultStore
}

func (l *faultLease) Ticket() server.Ticket { return l.Lease.(server.Acceptor).Ticket() }

func (l *faultLease) Accept(ctx context.Context, interim server.Response, d time.Duration) (server.Record, error) {
	if err := l.store.enter("accept"); err != nil {
		return server.Record{}, err
	}
	return l.Lease.(server.Acceptor).Accept(ctx, interim, d)
}

type atomicLease struct{ *faultLease }

func (atomicLease) Atomic() {}

func (l *faultLease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	if err := l.store.enter("complete"); err != nil {
		return server.Record{}, err
	}
	rec, err := l.Lease.Complete(ctx, r, ttl)
	if err == nil && l.store.rewrite != nil {
		l.store.rewrite(&rec)
	}
	if err == nil && l.store.acknowledge != nil {
		err = l.store.acknowledge()
	}
	return rec, err
}

func (l *faultLease) Release(ctx context.Context, cause error) error {
	err := l.store.enter("release")
	if err != nil && !errors.Is(err, server.ErrRestart) {
		return err
	}
	return errors.Join(err, l.Lease.Release(ctx, cause))
}

func (l *faultLease) Extend(ctx context.Context, d time.Duration) error {
	if err := l.store.enter("extend"); err != nil {
		return err
	}
	return l.Lease.Extend(ctx, d)
}

// service is a middleware in front of a handler that counts.
type service struct {
	http.Handler
	mw    *server.Middleware
	store *faultStore
	runs  atomic.Int64
	log   *bytes.Buffer

	mu     sync.Mutex
	events []server.Event
}

// newService guards a handler with what configure makes of a middleware over a
// store in memory. The account is whatever X-Account says, or acme.
func newService(configure func(*server.Middleware), handler http.HandlerFunc) *service {
	s := &service{store: newFaultStore(), log: new(bytes.Buffer)}
	s.mw = &server.Middleware{
		Store:   s.store,
		Account: account,
		Logger:  slog.New(slog.NewTextHandler(&lockedWriter{w: s.log}, nil)),
		Observe: s.observe,
	}
	if configure != nil {
		configure(s.mw)
	}
	s.Handler = s.mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		handler(w, r)
	}))
	return s
}

func account(r *http.Request) (string, error) {
	if names := r.Header["X-Account"]; len(names) > 0 {
		return names[0], nil
	}
	return "acme", nil
}

func (s *service) observe(_ context.Context, e server.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

// lastEvent returns the event that was observed last.
func (s *service) lastEvent() server.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) == 0 {
		return server.Event{}
	}
	return s.events[len(s.events)-1]
}

// results counts the events by result.
func (s *service) results() map[server.Result]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[server.Result]int{}
	for _, e := range s.events {
		counts[e.Result]++
	}
	return counts
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// created answers 201 with a body that tells one execution from another.
func created(w http.ResponseWriter, r *http.Request) {
	op, _ := server.OperationFrom(r.Context())
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "attempt "+string('0'+rune(op.Attempt)))
}

// answers returns a handler that answers with the given status, and 201 when
// it is called again.
func answers(status int) http.HandlerFunc {
	var calls atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) > 1 {
			status = http.StatusCreated
		}
		w.WriteHeader(status)
	}
}

// post returns a request with the key "key".
func post(body string) *http.Request { return request(http.MethodPost, "/payments", "key", body) }

func request(method, target, key, body string) *http.Request {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	return r
}

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// requireProblem demands problem details with a status and code, and returns
// all members.
func requireProblem(t *testing.T, w *httptest.ResponseRecorder, status int, code string) map[string]any {
	t.Helper()
	require.Equal(t, status, w.Code, w.Body)
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	var members map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &members))
	require.Equal(t, code, members["code"])
	require.InDelta(t, status, members["status"], 0)
	kebab := strings.ReplaceAll(strings.ToLower(code), "_", "-")
	require.Equal(t, "https://github.com/idemhttp/idem#"+kebab, members["type"])
	require.NotEmpty(t, members["title"])
	return members
}

func requireReplay(t *testing.T, first, replay *httptest.ResponseRecorder) {
	t.Helper()
	require.Equal(t, first.Code, replay.Code)
	require.Equal(t, first.Body.String(), replay.Body.String())
	require.Empty(t, first.Header()["Idempotent-Replayed"])
	require.Equal(t, []string{"true"}, replay.Header()["Idempotent-Replayed"])
	header := replay.Header().Clone()
	maps.DeleteFunc(header, func(name string, lines []string) bool {
		return name == "Idempotent-Replayed" || len(lines) == 0 // which is not sent
	})
	require.Equal(t, first.Header(), header)
}

func requireProcessing(t *testing.T, w *httptest.ResponseRecorder, retryAfter string) {
	t.Helper()
	require.Equal(t, http.StatusAccepted, w.Code, w.Body)
	require.Equal(t, retryAfter, w.Header().Get("Retry-After"))
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Empty(t, w.Header()["Idempotent-Replayed"])
	var body map[string]string
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	require.Equal(t, "processing", body["status"])
}
