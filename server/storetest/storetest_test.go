package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// Every case finds the stores that break its rule, and no case fails for a
// store that keeps it.
func TestBrokenStoresAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil spoiled
		found string // the case that has to fail; "" if none may
	}{
		"none": {spoiled{}, ""},
		"an attempt that starts at 0": {
			spoiled{claim: func(c *server.Claim, _ server.ClaimRequest) { c.Operation.Attempt-- }},
			"a key without record is claimed",
		},
		"a record beside the lease": {
			spoiled{claim: func(c *server.Claim, _ server.ClaimRequest) {
				if c.Lease != nil {
					c.Record.Status = server.Processing
				}
			}},
			"a key without record is claimed",
		},
		"a new operation on every attempt": {
			spoiled{claim: func(c *server.Claim, _ server.ClaimRequest) {
				if c.Lease != nil {
					c.Operation.ID = uuid.New()
				}
			}},
			"a failed record is claimed again",
		},
		"no lock at all": {
			spoiled{before: func(req *server.ClaimRequest) { req.ID.Key += uuid.NewString() }},
			"one of 200 concurrent claims gets the lease",
		},
		"keys without accounts": {
			spoiled{before: func(req *server.ClaimRequest) { req.ID.Account = "" }},
			"other ids are other operations",
		},
		"joined keys": {
			spoiled{before: func(req *server.ClaimRequest) {
				req.ID = server.ID{Key: req.ID.Account + ":" + req.ID.Key}
			}},
			"other ids are other operations",
		},
		"fingerprints that do not matter": {
			spoiled{before: func(req *server.ClaimRequest) { req.Fingerprint = server.Fingerprint{} }},
			"a reused key is reported after completion",
		},
		"short fingerprints": {
			spoiled{before: func(req *server.ClaimRequest) { clear(req.Fingerprint.Sum[16:]) }},
			"one bit makes another fingerprint",
		},
		"versions that do not matter": {
			spoiled{before: func(req *server.ClaimRequest) { req.Fingerprint.Version = 1 }},
			"fingerprints of different versions prove nothing",
		},
		"refusals that take over": {
			spoiled{before: func(req *server.ClaimRequest) { req.Takeover = server.Rerun }},
			"a lost owner is refused",
		},
		"takeovers that are kept quiet": {
			spoiled{claim: func(c *server.Claim, _ server.ClaimRequest) { c.TakenOver = false }},
			"a lost owner is taken over by one claim",
		},
		"one lifetime for lease and record": {
			spoiled{before: func(req *server.ClaimRequest) { req.Lease = req.TTL }},
			"a lease outlives a short TTL",
		},
		"leases in whole seconds": {
			spoiled{before: func(req *server.ClaimRequest) { req.Lease = max(time.Second, req.Lease.Truncate(time.Second)) }},
			"a lost owner is taken over by one claim",
		},
		"bodies as text": {
			spoiled{response: func(r *server.Response) { r.Body = fmt.Appendf(nil, "%q", r.Body) }},
			"a completed record is replayed byte for byte",
		},
		"fields as a map": {
			spoiled{response: func(r *server.Response) { r.Fields = slices.CompactFunc(r.Fields, sameName) }},
			"a completed record is replayed byte for byte",
		},
		"fields in another order": {
			spoiled{response: func(r *server.Response) { r.Fields = reversed(r.Fields) }},
			"a completed record is replayed byte for byte",
		},
		"no mark that it was not kept": {
			spoiled{response: func(r *server.Response) { r.NotKept = false }},
			"a completed record is replayed byte for byte",
		},
		"the TTL of the claim": {
			spoiled{ttl: func(time.Duration) time.Duration { return long }},
			"a completed operation lives for the TTL of its completion",
		},
		"a second completion that wins": {
			spoiled{complete: func(l *spoiledLease, r server.Response, rec server.Record) (server.Record, error) {
				rec.Response = &r
				return rec, nil
			}},
			"a second completion changes nothing",
		},
		"a second completion that fails": {
			spoiled{complete: func(l *spoiledLease, r server.Response, rec server.Record) (server.Record, error) {
				if l.completed.Swap(true) {
					return server.Record{}, server.ErrLeaseLost
				}
				return rec, nil
			}},
			"a second completion changes nothing",
		},
		"a release that reports what it finds": {
			spoiled{release: func(l *spoiledLease, err error) error {
				if l.completed.Swap(true) {
					return server.ErrLeaseLost
				}
				return err
			}},
			"a second release changes nothing",
		},
		"an extension that does nothing": {
			spoiled{extend: func(context.Context, *spoiledLease, time.Duration) error { return nil }},
			"an extension moves the end of the lease and the expiry",
		},
		"an extension that never fails": {
			spoiled{extend: func(ctx context.Context, l *spoiledLease, d time.Duration) error {
				_ = l.Lease.Extend(ctx, d)
				return nil
			}},
			"a lease that was taken over cannot be extended",
		},
		"a context of its own": {
			spoiled{context: func(context.Context) context.Context { return context.Background() }},
			"the handler's context is derived from its parent",
		},
		"contexts that do not matter": {
			spoiled{detached: true},
			"a claim ends with its context",
		},
		"a cleanup that knows no limit": {
			spoiled{cleanup: func(ctx context.Context, s *memstore.Store, _ int) (int, error) { return s.Cleanup(ctx, 1<<30) }},
			"a cleanup deletes what has expired and nothing else",
		},
		"a cleanup that does nothing": {
			spoiled{cleanup: func(context.Context, *memstore.Store, int) (int, error) { return 0, nil }},
			"a cleanup deletes what has expired and nothing else",
		},
		"a cleanup that fails": {
			spoiled{cleanup: func(context.Context, *memstore.Store, int) (int, error) { return 0, errHandler }},
			"a claim gets along with cleanups",
		},
		"counts that are wrong": {
			spoiled{stats: func(s *server.Stats) { s.Failed, s.Processing = s.Processing, 0 }},
			"a store counts what it holds",
		},
		"acceptances that complete": {
			spoiled{accept: func(ctx context.Context, l *spoiledLease, interim server.Response, _ time.Duration) (server.Record, error) {
				return l.Lease.Complete(ctx, interim, long)
			}},
			"an accepted operation is reported with its interim response",
		},
		"acceptances without an interim response": {
			spoiled{accept: func(ctx context.Context, l *spoiledLease, interim server.Response, d time.Duration) (server.Record, error) {
				rec, err := l.Lease.(server.Acceptor).Accept(ctx, server.Response{}, d)
				rec.Response = &interim
				return rec, err
			}},
			"an accepted operation is reported with its interim response",
		},
		"acceptances under the lease of the claim": {
			spoiled{accept: func(ctx context.Context, l *spoiledLease, interim server.Response, _ time.Duration) (server.Record, error) {
				return l.Lease.(server.Acceptor).Accept(ctx, interim, time.Millisecond)
			}},
			"an accepted operation has a lease of its own",
		},
		"acceptances that cut leases short": {
			spoiled{accept: func(ctx context.Context, l *spoiledLease, interim server.Response, d time.Duration) (server.Record, error) {
				rec, err := l.Lease.(server.Acceptor).Accept(ctx, interim, d)
				return rec, errors.Join(err, l.Lease.Extend(ctx, d))
			}},
			"an acceptance does not cut a lease short",
		},
		"acceptances after a takeover": {
			spoiled{accept: func(ctx context.Context, l *spoiledLease, interim server.Response, d time.Duration) (server.Record, error) {
				rec, err := l.Lease.(server.Acceptor).Accept(ctx, interim, d)
				if errors.Is(err, server.ErrLeaseLost) {
					err = nil
				}
				return rec, err
			}},
			"an operation that was taken over cannot be accepted",
		},
		"tickets that anybody may renew": {
			spoiled{renew: func(ctx context.Context, s *memstore.Store, t server.Ticket, d time.Duration) error {
				if err := s.Renew(ctx, t, d); !errors.Is(err, server.ErrLeaseLost) {
					return err
				}
				return nil
			}},
			"the ticket of an operation that was taken over cannot be renewed",
		},
		"renewals that do nothing": {
			spoiled{renew: func(context.Context, *memstore.Store, server.Ticket, time.Duration) error { return nil }},
			"a renewal moves the end of the lease and the expiry",
		},
		"finishes by a token that has passed on": {
			spoiled{finish: func(ctx context.Context, s *memstore.Store, t server.Ticket, r server.Response) (server.Record, error) {
				if err := s.Renew(ctx, t, long); err != nil {
					return server.Record{}, err
				}
				return s.Finish(ctx, t, r, long)
			}},
			"the finish of a lost worker wins if it is first",
		},
		"finishes of good answers only": {
			spoiled{finish: func(ctx context.Context, s *memstore.Store, t server.Ticket, r server.Response) (server.Record, error) {
				if r.StatusCode >= 500 {
					return server.Record{}, errHandler
				}
				return s.Finish(ctx, t, r, long)
			}},
			"a ticket finishes the operation in any process",
		},
		"finishes that tell what they were told": {
			spoiled{finish: func(ctx context.Context, s *memstore.Store, t server.Ticket, r server.Response) (server.Record, error) {
				rec, err := s.Finish(ctx, t, r, long)
				rec.Response = &r
				return rec, err
			}},
			"of concurrent finishes one wins",
		},
		"a look that claims": {
			spoiled{find: func(ctx context.Context, s *memstore.Store, id server.ID) (server.Record, error) {
				claim, err := s.Claim(ctx, server.ClaimRequest{ID: id, Lease: long, TTL: long})
				return claim.Record, err
			}},
			"an operation is found and left alone",
		},
		"entries without times": {
			spoiled{entry: func(e *server.Entry) { e.CompletedAt = time.Time{} }},
			"an operator sees what is kept of an operation",
		},
		"entries of a clock that is ahead": {
			spoiled{entry: func(e *server.Entry) { e.SeenAt = e.SeenAt.Add(-long) }},
			"an operator sees who is at it",
		},
		"lists in another order": {
			spoiled{list: func(entries []server.Entry) { slices.Reverse(entries) }},
			"unfinished and lost operations are listed, the oldest first",
		},
		"an operator who interferes": {
			spoiled{releaseLost: func(ctx context.Context, s *memstore.Store, op server.Operation) (bool, error) {
				e, err := s.Inspect(ctx, server.ID{Account: op.Account, Key: op.Key})
				if err == nil && e.Status == server.Completed {
					return true, nil
				}
				return s.ReleaseLost(ctx, op)
			}},
			"a lost operation is given up by an operator",
		},
		"a wait that never ends": {
			spoiled{wait: func(ctx context.Context) error { <-ctx.Done(); return errHandler }},
			"a wait ends with its context",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newStore := func() server.Store { return &spoiledStore{spoiled: c.spoil} }
			if c.found == "" {
				require.Empty(t, failures(t, newStore, casesFor(false, true), patience))
				return
			}
			require.Equal(t, []string{c.found}, failures(t, newStore, casesNamed(c.found), time.Second))
		})
	}
}

func sameName(a, b server.Field) bool { return a.Name == b.Name }

func reversed(fields []server.Field) []server.Field {
	fields = slices.Clone(fields)
	slices.Reverse(fields)
	return fields
}

// Stores without the optional interfaces, and those with atomic leases, pass
// too.
func TestModestStoresPass(t *testing.T) {
	t.Parallel()
	require.Empty(t, failures(t, func() server.Store { return bareStore{new(memstore.Store)} }, casesFor(false, false), patience))
	Run(t, func(*testing.T) server.Store { return atomicStore{new(memstore.Store)} })
}

// A store whose leases are Acceptors has to be the rest of it too.
func TestHalfAnAcceptanceIsFound(t *testing.T) {
	t.Parallel()
	newStore := func() server.Store { return bareStore{new(memstore.Store)} }
	for _, name := range []string{"a ticket finishes the operation in any process", "an operation is found and left alone"} {
		require.Equal(t, []string{name}, failures(t, newStore, casesNamed(name), time.Second))
	}
}

type bareStore struct{ server.Store }

type atomicStore struct{ *memstore.Store }

func (s atomicStore) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	claim, err := s.Store.Claim(ctx, req)
	if claim.Lease != nil {
		claim.Lease = atomicLease{claim.Lease}
	}
	return claim, err
}

type atomicLease struct{ server.Lease }

func (atomicLease) Atomic() {}

func casesNamed(name string) (cases []testCase) {
	for _, tc := range casesFor(false, true) {
		if tc.name == name {
			cases = append(cases, tc)
		}
	}
	return cases
}

// failures returns the names of those cases that fail for a store.
func failures(t *testing.T, newStore func() server.Store, cases []testCase, patience time.Duration) (failed []string) {
	t.Helper()
	for _, tc := range cases {
		tb := &trial{TB: t}
		store := newStore()
		tb.run(func() { tc.check(&checker{TB: tb, store: store, peer: store, patience: patience}) })
		if tb.Failed() {
			failed = append(failed, tc.name)
		}
	}
	return failed
}

// trial is a test whose failure is a finding.
type trial struct {
	testing.TB

	mu       sync.Mutex
	failed   bool
	cleanups []func()
}

func (tr *trial) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	for _, cleanup := range slices.Backward(tr.cleanups) {
		cleanup()
	}
}

func (tr *trial) Helper()               {}
func (tr *trial) Log(...any)            {}
func (tr *trial) Logf(string, ...any)   {}
func (tr *trial) Error(...any)          { tr.Fail() }
func (tr *trial) Errorf(string, ...any) { tr.Fail() }
func (tr *trial) Fatal(...any)          { tr.FailNow() }
func (tr *trial) Fatalf(string, ...any) { tr.FailNow() }

func (tr *trial) Fail() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.failed = true
}

func (tr *trial) FailNow() {
	tr.Fail()
	runtime.Goexit()
}

func (tr *trial) Failed() bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.failed
}

func (tr *trial) Cleanup(f func()) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.cleanups = append(tr.cleanups, f)
}

// spoiled says in what way a store is broken; what is nil is not.
type spoiled struct {
	before      func(*server.ClaimRequest)
	claim       func(*server.Claim, server.ClaimRequest)
	response    func(*server.Response)
	ttl         func(time.Duration) time.Duration
	complete    func(*spoiledLease, server.Response, server.Record) (server.Record, error)
	release     func(*spoiledLease, error) error
	extend      func(context.Context, *spoiledLease, time.Duration) error
	context     func(context.Context) context.Context
	cleanup     func(context.Context, *memstore.Store, int) (int, error)
	stats       func(*server.Stats)
	wait        func(context.Context) error
	accept      func(context.Context, *spoiledLease, server.Response, time.Duration) (server.Record, error)
	renew       func(context.Context, *memstore.Store, server.Ticket, time.Duration) error
	finish      func(context.Context, *memstore.Store, server.Ticket, server.Response) (server.Record, error)
	find        func(context.Context, *memstore.Store, server.ID) (server.Record, error)
	entry       func(*server.Entry)
	list        func([]server.Entry)
	releaseLost func(context.Context, *memstore.Store, server.Operation) (bool, error)
	detached    bool
}

type spoiledStore struct {
	memstore.Store
	spoiled
}

type spoiledLease struct {
	server.Lease

	store     *spoiledStore
	completed atomic.Bool
}

func (s *spoiledStore) ctx(ctx context.Context) context.Context {
	if s.detached {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

func (s *spoiledStore) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	asked := req
	if s.before != nil {
		s.before(&req)
	}
	claim, err := s.Store.Claim(s.ctx(ctx), req)
	if claim.Lease != nil {
		claim.Lease = &spoiledLease{Lease: claim.Lease, store: s}
		claim.Operation.Account, claim.Operation.Key = asked.ID.Account, asked.ID.Key
	}
	if s.claim != nil {
		s.claim(&claim, asked)
	}
	return claim, err
}

func (l *spoiledLease) Context(parent context.Context) context.Context {
	if l.store.context != nil {
		return l.store.context(parent)
	}
	return l.Lease.Context(parent)
}

func (l *spoiledLease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	kept := r
	if l.store.response != nil {
		l.store.response(&kept)
	}
	if l.store.ttl != nil {
		ttl = l.store.ttl(ttl)
	}
	rec, err := l.Lease.Complete(l.store.ctx(ctx), kept, ttl)
	if err == nil && l.store.complete != nil {
		return l.store.complete(l, r, rec)
	}
	return rec, err
}

func (l *spoiledLease) Release(ctx context.Context, cause error) error {
	err := l.Lease.Release(ctx, cause)
	if l.store.release != nil {
		return l.store.release(l, err)
	}
	return err
}

func (l *spoiledLease) Extend(ctx context.Context, d time.Duration) error {
	if l.store.extend != nil {
		return l.store.extend(ctx, l, d)
	}
	return l.Lease.Extend(ctx, d)
}

func (l *spoiledLease) Ticket() server.Ticket {
	return l.Lease.(server.Acceptor).Ticket()
}

func (l *spoiledLease) Accept(ctx context.Context, interim server.Response, d time.Duration) (server.Record, error) {
	if l.store.accept != nil {
		return l.store.accept(ctx, l, interim, d)
	}
	return l.Lease.(server.Acceptor).Accept(l.store.ctx(ctx), interim, d)
}

func (s *spoiledStore) Renew(ctx context.Context, t server.Ticket, d time.Duration) error {
	if s.renew != nil {
		return s.renew(ctx, &s.Store, t, d)
	}
	return s.Store.Renew(ctx, t, d)
}

func (s *spoiledStore) Finish(ctx context.Context, t server.Ticket, r server.Response, ttl time.Duration) (server.Record, error) {
	if s.finish != nil {
		return s.finish(ctx, &s.Store, t, r)
	}
	return s.Store.Finish(ctx, t, r, ttl)
}

func (s *spoiledStore) Find(ctx context.Context, id server.ID) (server.Record, error) {
	if s.find != nil {
		return s.find(ctx, &s.Store, id)
	}
	return s.Store.Find(ctx, id)
}

func (s *spoiledStore) Inspect(ctx context.Context, id server.ID) (server.Entry, error) {
	e, err := s.Store.Inspect(ctx, id)
	if s.entry != nil {
		s.entry(&e)
	}
	return e, err
}

func (s *spoiledStore) Unfinished(ctx context.Context, limit int) ([]server.Entry, error) {
	entries, err := s.Store.Unfinished(ctx, limit)
	if s.list != nil {
		s.list(entries)
	}
	return entries, err
}

func (s *spoiledStore) ReleaseLost(ctx context.Context, op server.Operation) (bool, error) {
	if s.releaseLost != nil {
		return s.releaseLost(ctx, &s.Store, op)
	}
	return s.Store.ReleaseLost(ctx, op)
}

func (s *spoiledStore) Cleanup(ctx context.Context, limit int) (int, error) {
	if s.cleanup != nil {
		return s.cleanup(ctx, &s.Store, limit)
	}
	return s.Store.Cleanup(ctx, limit)
}

func (s *spoiledStore) Stats(ctx context.Context) (server.Stats, error) {
	stats, err := s.Store.Stats(ctx)
	if s.stats != nil {
		s.stats(&stats)
	}
	return stats, err
}

func (s *spoiledStore) Wait(ctx context.Context, _ server.ID) error {
	if s.wait != nil {
		return s.wait(ctx)
	}
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err())
	}
}
