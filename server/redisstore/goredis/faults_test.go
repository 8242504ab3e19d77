package goredis_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// losing returns a client of s, and a switch by which the next reply to it is
// lost with its connection.
func losing(t *testing.T, s *redistest.Server) (client *redis.Client, lose *atomic.Bool) {
	t.Helper()
	lose = new(atomic.Bool)
	client = redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", s.Address)
		return losingConn{conn, lose}, err
	}})
	t.Cleanup(func() { client.Close() })
	return client, lose
}

type losingConn struct {
	net.Conn

	lose *atomic.Bool
}

func (c losingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.lose.Swap(false) {
		c.Close()
		return 0, io.EOF
	}
	return n, err
}

func TestALostReplyChangesNothing(t *testing.T) {
	t.Parallel()
	client, lose := losing(t, redistest.Start(t))
	store, durable := newStore(client, ""), &memstore.Store{}
	logger, log := notes()
	store.Logger = logger
	for name, c := range map[string]server.Store{"store": store, "lock": newLock(client, durable, "lock:")} {
		completed(t, owned(t, c, request("another")), answer("done")) // makes the scripts known
		if name == "store" {                                          // and has the settings checked
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "appendonly") }, 10*time.Second, time.Millisecond)
		}
		lost := func(f func()) {
			t.Helper()
			lose.Store(true)
			f()
			require.False(t, lose.Load(), "a reply was lost")
		}
		req := request("key")
		var claim server.Claim
		lost(func() { claim = owned(t, c, req) })
		require.Equal(t, 1, claim.Operation.Attempt, "the second try is the same claim")
		lost(func() { require.NoError(t, claim.Lease.Extend(t.Context(), time.Minute)) })
		lost(func() { require.NoError(t, claim.Lease.Release(t.Context(), nil)) })
		lost(func() { claim = owned(t, c, req) })
		require.Equal(t, 2, claim.Operation.Attempt)
		lost(func() { completed(t, claim, answer("done")) })
		lost(func() { require.Equal(t, answer("done"), *found(t, c, req).Response) })
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := newStore(connect(t, s), "")
	claim := owned(t, store, request("key"))
	s.Freeze(t)
	t.Cleanup(func() { s.Thaw(t) })
	stop := errors.New("the caller stops")
	for name, call := range map[string]func(context.Context) error{
		"claim": func(ctx context.Context) error {
			_, err := store.Claim(ctx, request("other"))
			return err
		},
		"release": func(ctx context.Context) error { return claim.Lease.Release(ctx, nil) },
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(stop) })
		began := time.Now()
		require.ErrorIs(t, call(ctx), stop, name)
		require.Less(t, time.Since(began), 2*time.Second, name) // the client's own limit is 3 s
	}
	lock := newLock(connect(t, s), &memstore.Store{}, "lock:")
	lock.Timeout = 50 * time.Millisecond
	began := time.Now()
	completed(t, owned(t, lock, request("key")), answer("done"))
	require.Less(t, time.Since(began), 2*time.Second)
}

// TestNothingThatHappensToRedisDoublesAnEffect executes operations in two
// processes behind one lock, while Redis suffers. There are ten storms, each in
// processes that do not know of the last, since those that do leave Redis alone
// for a second.
func TestNothingThatHappensToRedisDoublesAnEffect(t *testing.T) {
	t.Parallel()
	for fate, strike := range map[string]func(*testing.T, *redistest.Server){
		"killed and restarted": func(t *testing.T, s *redistest.Server) {
			t.Helper()
			s.Crash(t)
			s.Restart(t)
		},
		"flushed": func(t *testing.T, s *redistest.Server) {
			t.Helper()
			redistest.Do(t, s.Client(t), "FLUSHALL")
		},
	} {
		t.Run(fate, func(t *testing.T) {
			t.Parallel()
			s, durable := redistest.Start(t), &memstore.Store{}
			clients := []*redis.Client{connect(t, s), connect(t, s)}
			for n := range 10 {
				locks := make([]server.Store, len(clients))
				for i, client := range clients {
					require.Eventually(t, func() bool { return client.Ping(t.Context()).Err() == nil }, time.Minute, 10*time.Millisecond)
					locks[i] = newLock(client, durable, "")
				}
				storm(t, "storm-"+strconv.Itoa(n), locks, func() {
					require.NotEmpty(t, redistest.Keys(t, s.Client(t), ""), "the door was used")
					strike(t, s)
				})
			}
		})
	}
}

// storm executes operations, each asked for twice of each store at the same
// time, and strikes when half of them have begun.
func storm(t *testing.T, name string, stores []server.Store, strike func()) {
	t.Helper()
	const operations = 200
	var effects [operations]atomic.Int64
	var begun atomic.Int64
	var workers sync.WaitGroup
	half := make(chan struct{})
	for range 8 {
		workers.Go(func() {
			for i := begun.Add(1) - 1; i < operations; i = begun.Add(1) - 1 {
				if i == operations/2 {
					close(half)
				}
				req := request(name + "-operation-" + strconv.FormatInt(i, 10))
				operate(t, stores, req, func(context.Context) ([]byte, error) {
					return []byte("effect " + strconv.FormatInt(effects[i].Add(1), 10)), nil
				})
			}
		})
	}
	<-half
	strike()
	workers.Wait()
	for i := range effects {
		require.EqualValues(t, 1, effects[i].Load(), "effects of operation %d", i)
	}
}

func operate(t *testing.T, stores []server.Store, req server.ClaimRequest, do func(context.Context) ([]byte, error)) {
	t.Helper()
	var requests sync.WaitGroup
	for i := range 2 * len(stores) {
		requests.Go(func() {
			for {
				done, err := server.Do(t.Context(), stores[i%len(stores)], req, do)
				var inFlight *server.InFlightError
				if !errors.As(err, &inFlight) {
					assert.Equal(t, "effect 1", string(done.Value), "error %v", err)
					return
				}
				<-time.After(5 * time.Millisecond)
			}
		})
	}
	requests.Wait()
}
