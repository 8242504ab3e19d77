package redisstore_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/pgstore"
	"github.com/idemhttp/idem/server/redisstore"
	"github.com/idemhttp/idem/server/storetest"
)

func TestLock(t *testing.T) {
	t.Parallel()
	for name, newDurable := range durables {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, other := redistest.Client(t), redistest.Client(t)
			storetest.RunShared(t, func(t *testing.T) (server.Store, server.Store) {
				t.Helper()
				d := newDurable(t)
				store, peer := newLock(t, one, d.open(t)), newLock(t, other, d.open(t))
				peer.Prefix = store.Prefix
				return store, peer
			})
		})
	}
}

// watched is a durable store that counts its claims.
type watched struct {
	server.Store

	claims atomic.Int64
}

func (w *watched) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	w.claims.Add(1)
	return w.Store.Claim(ctx, req)
}

func TestDuplicatesDoNotTouchTheDurableStore(t *testing.T) {
	t.Parallel()
	w := &watched{Store: &memstore.Store{}}
	lock, req := newLock(t, redistest.Client(t), w), request("key")
	claim := owned(t, lock, req)
	for range 10 {
		rec := found(t, lock, req)
		require.Positive(t, rec.LeaseLeft)
		require.LessOrEqual(t, rec.LeaseLeft, req.Lease)
		rec.LeaseLeft = 0
		require.Equal(t, server.Record{Status: server.Processing, Operation: claim.Operation.ID, Attempt: 1}, rec)
		require.True(t, found(t, lock, somethingElse(req)).Reused)
	}
	completed(t, claim, answer("done"))
	for range 10 {
		rec := found(t, lock, req)
		require.Equal(t, server.Record{Status: server.Completed, Operation: claim.Operation.ID, Attempt: 1, Response: rec.Response}, rec)
		require.Equal(t, answer("done"), *rec.Response)
		require.True(t, found(t, lock, somethingElse(req)).Reused)
	}
	require.EqualValues(t, 1, w.claims.Load())
}

func TestADuplicateCostsOneSetWithNXAndPX(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	lock, req := newLock(t, s.Client(t), &memstore.Store{}), request("key")
	owned(t, lock, req)
	found(t, lock, req)
	commands, inScript := monitor(t, s, func() { found(t, lock, req) })
	require.Len(t, commands, 1)
	key := `"` + lock.Prefix + `{4:acme:key}"`
	require.Equal(t, [][]string{
		{`"SET"`, key, inScript[0][2], `"NX"`, `"PX"`, `"2000"`}, {`"GET"`, key}, {`"PTTL"`, key},
	}, inScript)
}

func TestAReleasedKeyIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	for name, newDurable := range durables {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock, req := newLock(t, redistest.Client(t), newDurable(t).open(t)), request("key")
			for attempt := 1; attempt <= 3; attempt++ {
				claim := owned(t, lock, req)
				require.Equal(t, attempt, claim.Operation.Attempt)
				released(t, claim)
			}
		})
	}
}

// paused is a durable store whose claims wait.
type paused struct {
	server.Store

	entered chan struct{} // gets a value when a claim has begun
	leave   chan struct{} // gives it to one that may go on
}

func (p *paused) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	p.entered <- struct{}{}
	<-p.leave
	return p.Store.Claim(ctx, req)
}

// TestAClaimInProgressIsNoEvidence lets the wrong request be at the door while
// the right one comes: what the durable store says is all that counts.
func TestAClaimInProgressIsNoEvidence(t *testing.T) {
	t.Parallel()
	client, durable, req := redistest.Client(t), &memstore.Store{}, request("key")
	completed(t, owned(t, durable, req), answer("done"))

	slow := &paused{Store: durable, entered: make(chan struct{}), leave: make(chan struct{})}
	lock, quick := newLock(t, client, slow), newLock(t, client, durable)
	quick.Prefix = lock.Prefix
	wrong := make(chan server.Claim)
	go func() {
		claim, _ := lock.Claim(context.WithoutCancel(t.Context()), somethingElse(req))
		wrong <- claim
	}()
	<-slow.entered
	require.Equal(t, answer("done"), *found(t, quick, req).Response, "it is not refused because of the other, and replayed at once")
	rec := found(t, quick, somethingElse(req))
	require.Equal(t, server.Processing, rec.Status, "the same request is told that it is in flight")
	require.Positive(t, rec.LeaseLeft)
	slow.leave <- struct{}{}
	require.True(t, (<-wrong).Record.Reused)
	require.Equal(t, answer("done"), *found(t, quick, req).Response)
}

func TestAnswersAreFreshForAWhile(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := s.Client(t)
	for name, c := range map[string]struct {
		configure func(*redisstore.Locked)
		body      string
		ttl       time.Duration
		want      time.Duration // 0 if the answer is not in Redis
	}{
		"ten minutes":              {func(*redisstore.Locked) {}, "done", 48 * time.Hour, 10 * time.Minute},
		"as long as it is told":    {func(l *redisstore.Locked) { l.Fresh = time.Hour }, "done", 48 * time.Hour, time.Hour},
		"not longer than its TTL":  {func(l *redisstore.Locked) { l.Fresh = time.Hour }, "done", 5 * time.Minute, 5*time.Minute - 5*time.Second},
		"not with a TTL too short": {func(*redisstore.Locked) {}, "done", 5 * time.Second, 0},
		"not if it is large":       {func(*redisstore.Locked) {}, strings.Repeat("x", 64<<10), 48 * time.Hour, 0},
		"large, if that is meant":  {func(l *redisstore.Locked) { l.MaxAnswer = 1 << 20 }, strings.Repeat("x", 64<<10), 48 * time.Hour, 10 * time.Minute},
	} {
		w := &watched{Store: &memstore.Store{}}
		lock, req := newLock(t, client, w), request("key")
		c.configure(lock)
		claim := owned(t, lock, req)
		_, err := claim.Lease.Complete(t.Context(), answer(c.body), c.ttl)
		require.NoError(t, err)
		left, there := lifetimes(t, client)[lock.Prefix+"{4:acme:key}"]
		require.Equal(t, c.want > 0, there, name)
		if there {
			require.LessOrEqual(t, left, c.want.Milliseconds(), name)
			require.InDelta(t, c.want.Milliseconds(), left, 2000, name)
		}
		require.Equal(t, answer(c.body), *found(t, lock, req).Response, name)
		require.Equal(t, !there, w.claims.Load() == 2, name)
	}
}

func TestEveryDoorExpires(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	slow := &paused{Store: &memstore.Store{}, entered: make(chan struct{}), leave: make(chan struct{})}
	lock, req := newLock(t, client, slow), request("key")
	key := lock.Prefix + "{4:acme:key}"
	claimed := make(chan server.Claim)
	go func() {
		claim, _ := lock.Claim(context.WithoutCancel(t.Context()), req)
		claimed <- claim
	}()
	<-slow.entered
	require.InDelta(t, 2000, lifetimes(t, client)[key], 1000, "while the durable store is asked")
	slow.leave <- struct{}{}
	claim := <-claimed
	require.InDelta(t, req.Lease.Milliseconds(), lifetimes(t, client)[key], 1000, "while the attempt runs")
	require.NoError(t, claim.Lease.Extend(t.Context(), 2*time.Minute))
	require.InDelta(t, 120_000, lifetimes(t, client)[key], 1000, "when the lease was extended")
	completed(t, claim, answer("done"))
	require.InDelta(t, 600_000, lifetimes(t, client)[key], 1000, "when it is completed")
}

func TestTheStoreHasTheAbilitiesOfTheDurableOne(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	lock := newLock(t, client, struct{ server.Store }{&memstore.Store{}})
	require.ErrorIs(t, lock.Wait(t.Context(), request("key").ID), errors.ErrUnsupported)
	_, err := lock.Cleanup(t.Context(), 1)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = lock.Stats(t.Context())
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = lock.Find(t.Context(), request("key").ID)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = lock.Finish(t.Context(), server.Ticket{}, answer("done"), time.Minute)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, lock.Renew(t.Context(), server.Ticket{}, time.Minute), errors.ErrUnsupported)
	_, err = lock.Inspect(t.Context(), request("key").ID)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = lock.Unfinished(t.Context(), 1)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = lock.Lost(t.Context(), 1)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = lock.ReleaseLost(t.Context(), server.Operation{})
	require.ErrorIs(t, err, errors.ErrUnsupported)

	lock = newLock(t, client, open(t, pgstore.Transactional, newDB(t)))
	claim := owned(t, lock, request("key"))
	var one int
	require.NoError(t, pgstore.Tx(claim.Lease.Context(t.Context())).QueryRow(t.Context(), "SELECT 1").Scan(&one))
	completed(t, claim, answer("done"))
	require.NoError(t, lock.Wait(t.Context(), request("key").ID))
	stats, err := lock.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Completed)
	deleted, err := lock.Cleanup(t.Context(), 1)
	require.NoError(t, err)
	require.Zero(t, deleted)
}

// leasing is a durable store that makes its leases something else.
type leasing struct {
	server.Store

	as func(server.Acceptor) server.Lease
}

func (l leasing) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	claim, err := l.Store.Claim(ctx, req)
	if acceptor, ok := claim.Lease.(server.Acceptor); ok {
		claim.Lease = l.as(acceptor)
	}
	return claim, err
}

type atomicLease struct{ server.Lease }

func (atomicLease) Atomic() {}

type atomicAcceptor struct{ server.Acceptor }

func (atomicAcceptor) Atomic() {}

func TestLeasesHaveTheAbilitiesOfTheDurableOnes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		as              func(server.Acceptor) server.Lease
		atomic, accepts bool
	}{
		"none":   {func(a server.Acceptor) server.Lease { return struct{ server.Lease }{a} }, false, false},
		"accept": {func(a server.Acceptor) server.Lease { return a }, false, true},
		"atomic": {func(a server.Acceptor) server.Lease { return atomicLease{a} }, true, false},
		"both":   {func(a server.Acceptor) server.Lease { return atomicAcceptor{a} }, true, true},
	} {
		lock := newLock(t, redistest.Client(t), leasing{&memstore.Store{}, c.as})
		claim := owned(t, lock, request("key"))
		_, atomic := claim.Lease.(server.AtomicLease)
		require.Equal(t, c.atomic, atomic, name)
		_, accepts := claim.Lease.(server.Acceptor)
		require.Equal(t, c.accepts, accepts, name)
		completed(t, claim, answer("done"))
	}
}

// TestAnAcceptedOperationIsTheDurableStoresOwn has a worker that knows nothing
// of Redis finish what a handler behind the lock accepted.
func TestAnAcceptedOperationIsTheDurableStoresOwn(t *testing.T) {
	t.Parallel()
	durable := &memstore.Store{}
	lock, req := newLock(t, redistest.Client(t), durable), request("key")
	claim := owned(t, lock, req)
	acceptor := claim.Lease.(server.Acceptor)
	_, err := acceptor.Accept(t.Context(), answer("working"), time.Minute)
	require.NoError(t, err)
	for range 2 {
		rec := found(t, lock, req)
		require.Equal(t, claim.Operation.ID, rec.Operation)
		require.Equal(t, answer("working"), *rec.Response)
	}
	_, err = durable.Finish(t.Context(), acceptor.Ticket(), answer("done"), time.Minute)
	require.NoError(t, err)
	require.Equal(t, answer("done"), *found(t, lock, req).Response)
}

// TestAttemptsThatAreUndoneLeaveTheDoorOpen runs an operation again whose
// transaction was ended by the server.
func TestAttemptsThatAreUndoneLeaveTheDoorOpen(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	lock, req := newLock(t, redistest.Client(t), open(t, pgstore.Transactional, db)), request("key")
	claim := owned(t, lock, req)
	require.Equal(t, 1, db.Terminate(t, "state = 'idle in transaction'"))
	_, err := pgstore.Tx(claim.Lease.Context(t.Context())).Exec(t.Context(), "SELECT 1")
	require.Error(t, err)
	_, err = claim.Lease.Complete(t.Context(), answer("done"), time.Minute)
	require.ErrorIs(t, err, server.ErrRestart)
	require.Eventually(t, func() bool { // when the session is gone, and long before the lease of a minute ends
		claim, err = lock.Claim(t.Context(), req)
		return err == nil && claim.Lease != nil
	}, 20*time.Second, 5*time.Millisecond)
	completed(t, claim, answer("done"))
}

func TestNegativeFieldsAreRefused(t *testing.T) {
	t.Parallel()
	for _, lock := range []*redisstore.Locked{
		{Fresh: -1}, {MaxAnswer: -1}, {Timeout: -1},
	} {
		_, err := lock.Claim(t.Context(), request("key"))
		require.EqualError(t, err, "redisstore: Fresh, MaxAnswer and Timeout must not be negative")
	}
	_, err := (&redisstore.Locked{Prefix: "}"}).Claim(t.Context(), request("key"))
	require.EqualError(t, err, `redisstore: the prefix "}" has a brace`)
}

func TestAnOutageCostsTimeOncePerSecond(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*redistest.Server, testing.TB){
		"crashed": (*redistest.Server).Crash,
		"frozen":  (*redistest.Server).Freeze,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			lock := newLock(t, s.Client(t), &memstore.Store{})
			lock.Timeout = 300 * time.Millisecond
			logger, log := notes()
			lock.Logger = logger
			completed(t, owned(t, lock, request("first")), answer("done"))
			fail(s, t)
			began := time.Now()
			for i := range 100 {
				key := "operation-" + strconv.Itoa(i)
				completed(t, owned(t, lock, request(key)), answer(key))
				require.Equal(t, answer(key), *found(t, lock, request(key)).Response)
				require.True(t, found(t, lock, somethingElse(request(key))).Reused)
			}
			took := time.Since(began)
			calls := 2 + took.Seconds()
			require.Less(t, took.Seconds(), calls*lock.Timeout.Seconds())
			require.Equal(t, 1, strings.Count(log.String(), "Redis failed"), log)

			if name == "crashed" {
				s.Restart(t)
			} else {
				s.Thaw(t)
			}
			require.Eventually(t, func() bool {
				_, err := lock.Claim(t.Context(), request("first"))
				return err == nil && strings.Contains(log.String(), "Redis works again")
			}, 30*time.Second, 50*time.Millisecond)
		})
	}
}

// TestRedisForgetsBehindALock executes one operation through two processes with
// a lock, makes Redis forget everything at some time, and lets a duplicate come
// to the other process right after. There is one effect, whatever is forgotten.
func TestRedisForgetsBehindALock(t *testing.T) {
	t.Parallel()
	for name, newDurable := range durables {
		for _, when := range []string{"while the handler runs", "before the completion", "after the completion"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				client, d := redistest.Start(t).Client(t), newDurable(t)
				var here, there http.Handler
				var duplicate *httptest.ResponseRecorder
				forget := func() {
					flush(t, client)
					duplicate = post(t, there)
				}
				completing := &completing{Store: d.open(t), before: func() {
					if when == "before the completion" {
						forget()
						<-time.After(200 * time.Millisecond)
					}
				}}
				handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					op, _ := server.OperationFrom(r.Context())
					if err := d.effect(r.Context(), op); err != nil {
						http.Error(w, err.Error(), http.StatusInternalServerError)
						return
					}
					if when == "while the handler runs" {
						forget()
					}
					w.WriteHeader(http.StatusCreated)
					_, _ = w.Write([]byte("by attempt " + strconv.Itoa(op.Attempt)))
				})
				lock := newLock(t, client, completing)
				peer := newLock(t, client, d.open(t))
				peer.Prefix = lock.Prefix
				here, there = guard(lock, handler, server.NoWait), guard(peer, handler, server.NoWait)

				first := post(t, here)
				require.Equal(t, http.StatusCreated, first.Code)
				if when == "after the completion" {
					forget()
					require.Equal(t, http.StatusCreated, duplicate.Code)
					require.Equal(t, "by attempt 1", duplicate.Body.String())
					require.Equal(t, "true", duplicate.Header().Get("Idempotent-Replayed"))
				} else {
					require.Equal(t, http.StatusAccepted, duplicate.Code)
				}
				again := post(t, there)
				require.Equal(t, http.StatusCreated, again.Code)
				require.Equal(t, "by attempt 1", again.Body.String())
				require.Equal(t, 1, d.effects(t, "key"))
			})
		}
	}
}

// TestAnAnswerIsNowhereBeforeTheDurableStoreHasIt lets the durable store refuse
// an answer, and asks before, during and after that.
func TestAnAnswerIsNowhereBeforeTheDurableStoreHasIt(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	durable, req := &memstore.Store{}, request("key")
	var lock *redisstore.Locked
	lock = newLock(t, redistest.Client(t), leasing{durable, func(a server.Acceptor) server.Lease {
		return refusingLease{a, func() error {
			require.Equal(t, server.Processing, found(t, lock, req).Status, "while it is stored")
			return refused
		}}
	}})
	claim := owned(t, lock, req)
	require.Equal(t, server.Processing, found(t, lock, req).Status)
	_, err := claim.Lease.Complete(t.Context(), answer("done"), req.TTL)
	require.ErrorIs(t, err, refused)
	require.Equal(t, server.Processing, found(t, lock, req).Status, "when that has failed")
}

// refusingLease is a lease that stores no answer.
type refusingLease struct {
	server.Lease

	refuse func() error
}

func (l refusingLease) Complete(context.Context, server.Response, time.Duration) (server.Record, error) {
	return server.Record{}, l.refuse()
}

// TestDuplicatesInAnotherProcessWait has them wait by the means of the durable
// store, while the door tells them that they are in flight.
func TestDuplicatesInAnotherProcessWait(t *testing.T) {
	t.Parallel()
	for name, newDurable := range durables {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, d := redistest.Client(t), newDurable(t)
			here, there := newLock(t, client, d.open(t)), newLock(t, client, d.open(t))
			there.Prefix = here.Prefix
			running, finish := make(chan struct{}), make(chan struct{})
			handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				close(running)
				<-finish
				w.WriteHeader(http.StatusCreated)
			})
			first, duplicate := make(chan int, 1), make(chan int, 1)
			go func() { first <- post(t, guard(here, handler, 0)).Code }()
			<-running
			go func() { duplicate <- post(t, guard(there, handler, time.Minute)).Code }()
			require.Eventually(t, func() bool { return post(t, guard(there, handler, server.NoWait)).Code == http.StatusAccepted },
				10*time.Second, 10*time.Millisecond)
			close(finish)
			require.Equal(t, http.StatusCreated, <-first)
			require.Equal(t, http.StatusCreated, <-duplicate)
		})
	}
}

// completing is a durable store that calls before when it is to complete.
type completing struct {
	server.Store

	before func()
}

func (c *completing) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	claim, err := c.Store.Claim(ctx, req)
	_, atomic := claim.Lease.(server.AtomicLease)
	if claim.Lease != nil {
		claim.Lease = completingLease{claim.Lease, c.before}
	}
	if atomic {
		claim.Lease = atomicLease{claim.Lease}
	}
	return claim, err
}

type completingLease struct {
	server.Lease

	before func()
}

func (l completingLease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	l.before()
	return l.Lease.Complete(ctx, r, ttl)
}

func guard(store server.Store, handler http.Handler, wait time.Duration) http.Handler {
	mw := &server.Middleware{
		Store:        store,
		Account:      func(*http.Request) (string, error) { return "acme", nil },
		Wait:         wait,
		StoreTimeout: 10 * time.Second,
		Logger:       quiet,
	}
	return mw.Handler(handler)
}

func post(t *testing.T, handler http.Handler) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader(`{"amount":1}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "key")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}
