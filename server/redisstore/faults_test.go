package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/redisstore"
)

// faulty returns a client of s, and what happens to the next reply to it before
// it is read. If that returns false, the reply is lost with its connection.
func faulty(t *testing.T, s *redistest.Server) (client rueidis.Client, next *atomic.Pointer[func() bool]) {
	t.Helper()
	next = new(atomic.Pointer[func() bool])
	option := s.Option()
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, address, dialer, config)
		return faultyConn{conn, next}, err
	}
	return redistest.Connect(t, option), next
}

type faultyConn struct {
	net.Conn

	next *atomic.Pointer[func() bool]
}

func (c faultyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if f := c.next.Swap(nil); f != nil && err == nil && !(*f)() {
		c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// newWarmStore returns a store that has called all scripts and has checked the
// settings of its server, so that its next reply is that of the next call.
func newWarmStore(t *testing.T, client rueidis.Client) *redisstore.Store {
	t.Helper()
	store := newStore(t, client)
	logger, log := notes()
	store.Logger = logger
	claim := owned(t, store, request("another"))
	require.NoError(t, claim.Lease.Extend(t.Context(), time.Minute))
	released(t, claim)
	completed(t, owned(t, store, request("another")), answer("done"))
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "appendonly") }, 10*time.Second, time.Millisecond)
	return store
}

func TestALostReplyChangesNothing(t *testing.T) {
	t.Parallel()
	client, next := faulty(t, redistest.Start(t))
	store, req := newWarmStore(t, client), request("key")
	lost := func(f func()) {
		t.Helper()
		lose := func() bool { return false }
		next.Store(&lose)
		f()
		require.Nil(t, next.Load(), "a reply was lost")
	}
	var claim server.Claim
	lost(func() { claim = owned(t, store, req) })
	require.Equal(t, 1, claim.Operation.Attempt, "the second try is the same claim")
	lost(func() { require.NoError(t, claim.Lease.Extend(t.Context(), time.Minute)) })
	lost(func() { released(t, claim) })
	lost(func() { claim = owned(t, store, req) })
	require.Equal(t, 2, claim.Operation.Attempt)
	lost(func() { completed(t, claim, answer("done")) })
	lost(func() { require.Equal(t, answer("done"), *found(t, store, req).Response) })
}

func TestAClaimThatFailedIsWithdrawn(t *testing.T) {
	t.Parallel()
	client, next := faulty(t, redistest.Start(t))
	store, req := newWarmStore(t, client), request("key")
	ctx, cancel := context.WithCancel(t.Context())
	late := func() bool {
		cancel() // when the claim has been executed
		return true
	}
	next.Store(&late)
	_, err := store.Claim(ctx, req)
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool {
		claim, err := store.Claim(t.Context(), req)
		return err == nil && claim.Lease != nil && claim.Operation.Attempt == 2
	}, 10*time.Second, 5*time.Millisecond, "long before the lease of a minute ends")
}

func TestCallsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := newStore(t, s.Client(t))
	store.Prefix = redisstore.DefaultPrefix
	claim := owned(t, store, request("key"))
	s.Freeze(t)
	t.Cleanup(func() { s.Thaw(t) })
	stop := errors.New("the caller stops")
	for name, call := range map[string]func(context.Context) error{
		"claim": func(ctx context.Context) error {
			_, err := store.Claim(ctx, request("other"))
			return err
		},
		"extend": func(ctx context.Context) error { return claim.Lease.Extend(ctx, time.Minute) },
		"complete": func(ctx context.Context) error {
			_, err := claim.Lease.Complete(ctx, answer("done"), time.Minute)
			return err
		},
		"release": func(ctx context.Context) error { return claim.Lease.Release(ctx, nil) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the client waits for it, or longer
		ctx, cancelCause := context.WithCancelCause(ctx)
		time.AfterFunc(50*time.Millisecond, func() { cancelCause(stop) })
		began := time.Now()
		require.ErrorIs(t, call(ctx), stop, name)
		require.Less(t, time.Since(began), 10*time.Second, name)
		cancel()
	}
}

func TestAFullServerRefusesClaimsAndKeepsRecords(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t, "maxmemory-policy noeviction").Client(t)
	store := newStore(t, client)
	completed(t, owned(t, store, request("first")), answer("done"))
	redistest.Do(t, client, "CONFIG", "SET", "maxmemory", "1")
	_, err := store.Claim(t.Context(), request("second"))
	require.ErrorContains(t, err, "OOM")
	require.Equal(t, answer("done"), *found(t, store, request("first")).Response)
	redistest.Do(t, client, "CONFIG", "SET", "maxmemory", "0")
	require.Equal(t, 1, owned(t, store, request("second")).Operation.Attempt)
}

func TestRecordsSurviveARestartWithAnAppendOnlyFile(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "appendonly yes", "appendfsync always")
	store := newStore(t, s.Client(t))
	completed(t, owned(t, store, request("completed")), answer("done"))
	processing := owned(t, store, request("processing"))
	released(t, owned(t, store, request("failed")))
	s.Crash(t)
	s.Restart(t)
	require.Equal(t, answer("done"), *found(t, store, request("completed")).Response)
	require.Equal(t, processing.Operation.ID, found(t, store, request("processing")).Operation)
	require.Equal(t, 2, owned(t, store, request("failed")).Operation.Attempt)
	for key, left := range lifetimes(t, s.Client(t)) {
		require.Positive(t, left, key)
	}
}

// TestRedisAloneForgets says what a store without a durable one behind it gives
// when Redis loses everything, and when.
func TestRedisAloneForgets(t *testing.T) {
	t.Parallel()
	setUp := func(t *testing.T) (rueidis.Client, *redisstore.Store, server.ClaimRequest, server.Claim) {
		t.Helper()
		client := redistest.Start(t).Client(t)
		store, req := newStore(t, client), request("key")
		return client, store, req, owned(t, store, req)
	}
	t.Run("a duplicate before the owner shows up again is executed", func(t *testing.T) {
		t.Parallel()
		client, store, req, first := setUp(t)
		flush(t, client)
		second := owned(t, store, req)
		require.NotEqual(t, first.Operation.ID, second.Operation.ID)
		require.ErrorIs(t, first.Lease.Extend(t.Context(), time.Minute), server.ErrLeaseLost)
		_, err := first.Lease.Complete(t.Context(), answer("first"), time.Minute)
		require.ErrorIs(t, err, server.ErrLeaseLost)
		released(t, first)
		completed(t, second, answer("second"))
		require.Equal(t, answer("second"), *found(t, store, req).Response)
	})
	t.Run("an owner that extends its lease puts its record back", func(t *testing.T) {
		t.Parallel()
		client, store, req, first := setUp(t)
		flush(t, client)
		require.NoError(t, first.Lease.Extend(t.Context(), time.Minute))
		rec := found(t, store, req)
		require.Equal(t, server.Processing, rec.Status)
		require.Equal(t, first.Operation.ID, rec.Operation)
		require.True(t, found(t, store, somethingElse(req)).Reused)
		completed(t, first, answer("first"))
	})
	t.Run("an owner that completes puts its record back", func(t *testing.T) {
		t.Parallel()
		client, store, req, first := setUp(t)
		flush(t, client)
		completed(t, first, answer("first"))
		rec := found(t, store, req)
		require.Equal(t, server.Record{
			Status: server.Completed, Operation: first.Operation.ID, Attempt: 1, Response: rec.Response,
		}, rec)
		require.Equal(t, answer("first"), *rec.Response)
		require.True(t, found(t, store, somethingElse(req)).Reused)
	})
	t.Run("an owner that accepts puts its record back, a worker does not", func(t *testing.T) {
		t.Parallel()
		client, store, req, first := setUp(t)
		flush(t, client)
		acceptor := first.Lease.(server.Acceptor)
		_, err := acceptor.Accept(t.Context(), answer("working"), time.Minute)
		require.NoError(t, err)
		rec := found(t, store, req)
		require.Equal(t, server.Processing, rec.Status)
		require.Equal(t, answer("working"), *rec.Response)
		flush(t, client)
		require.ErrorIs(t, store.Renew(t.Context(), acceptor.Ticket(), time.Minute), server.ErrLeaseLost)
		_, err = store.Finish(t.Context(), acceptor.Ticket(), answer("done"), time.Minute)
		require.ErrorIs(t, err, server.ErrLeaseLost)
		require.Equal(t, 1, owned(t, store, req).Operation.Attempt)
	})
	t.Run("a duplicate after completion is executed", func(t *testing.T) {
		t.Parallel()
		client, store, req, first := setUp(t)
		completed(t, first, answer("first"))
		flush(t, client)
		require.Equal(t, 1, owned(t, store, req).Operation.Attempt)
	})
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	store, req := newStore(t, client), request("key")
	key := store.Prefix + "{4:acme:key}"
	for name, spoil := range map[string][]string{
		"a status of a newer version":      {"HSET", key, "status", "paused"},
		"a response of a newer version":    {"HSET", key, "response", "1:2,3:200,4:kept,0:,"},
		"a damaged response":               {"HSET", key, "response", "1:1,3:200,4:kept,5:x"},
		"a response without its body":      {"HSET", key, "response", "1:1,3:200,4:kept,"},
		"a response with half a field":     {"HSET", key, "response", "1:1,3:200,4:kept,0:,4:Name,"},
		"a response with a strange status": {"HSET", key, "response", "1:1,3:2xx,4:kept,0:,"},
		"a response that may be kept":      {"HSET", key, "response", "1:1,3:200,5:maybe,0:,"},
		"an operation that is no UUID":     {"HSET", key, "operation", "1"},
		"an attempt that is no number":     {"HSET", key, "attempt", "first"},
		"no fingerprint":                   {"HDEL", key, "fingerprint"},
		"something else":                   {"SET", key, "x"},
	} {
		redistest.Do(t, client, "DEL", key)
		completed(t, owned(t, store, req), answer("done"))
		redistest.Do(t, client, spoil...)
		claim, err := store.Claim(t.Context(), req)
		require.Error(t, err, name)
		require.Equal(t, server.Claim{}, claim, name)
	}
	redistest.Do(t, client, "DEL", key)
	released(t, owned(t, store, req))
	redistest.Do(t, client, "HSET", key, "operation", "1")
	claim, err := store.Claim(t.Context(), req)
	require.ErrorContains(t, err, "a record has something that this version cannot read")
	require.Equal(t, server.Claim{}, claim, "of an operation that failed and is no UUID")
}

func TestKeysAreOperations(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	store := newStore(t, client)
	for id, want := range map[server.ID]string{
		{Account: "acme", Key: "key"}: "{4:acme:key}",
		{Account: "a:c", Key: "k"}:    "{3:a:c:k}",
		{Account: "a", Key: "c:k"}:    "{1:a:c:k}",
		{Account: "}", Key: "{}"}:     "{1:}:{}}",
	} {
		req := request("")
		req.ID = id
		owned(t, store, req)
		require.Contains(t, redistest.Keys(t, client, store.Prefix), store.Prefix+want)
	}
	store.Prefix = "idem{1}:"
	_, err := store.Claim(t.Context(), request("key"))
	require.EqualError(t, err, `redisstore: the prefix "idem{1}:" has a brace`)
	_, err = store.Find(t.Context(), request("key").ID)
	require.EqualError(t, err, `redisstore: the prefix "idem{1}:" has a brace`)
}

func TestDefaultPrefix(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	store := redisstore.New(client)
	store.Logger = quiet
	lock := redisstore.Lock(client, store)
	lock.Timeout = 5 * time.Second
	owned(t, lock, request("key"))
	require.ElementsMatch(t, []string{"idem:{4:acme:key}", "idem-lock:{4:acme:key}"}, redistest.Keys(t, client, ""))
}
