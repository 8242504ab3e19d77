package redisstore_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/pgstore"
	"github.com/idemhttp/idem/server/redisstore"
)

// quiet is the logger of tests that do not look at the log.
var quiet = slog.New(slog.DiscardHandler)

// notes is a logger whose output a test looks at.
func notes() (*slog.Logger, *safeBuffer) {
	var b safeBuffer
	return slog.New(slog.NewTextHandler(&b, nil)), &b
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newStore returns a store on the server of client with keys of its own.
func newStore(t *testing.T, client rueidis.Client) *redisstore.Store {
	t.Helper()
	store := redisstore.New(client)
	store.Prefix, store.Logger = redistest.Prefix(t, client), quiet
	return store
}

// newLock returns a lock on the server of client with keys of its own. Redis
// has more time than in production, so that a slow test is not an outage.
func newLock(t *testing.T, client rueidis.Client, durable server.Store) *redisstore.Locked {
	t.Helper()
	lock := redisstore.Lock(client, durable)
	lock.Prefix, lock.Logger, lock.Timeout = redistest.Prefix(t, client), quiet, 5*time.Second
	return lock
}

// durable is a store that stands behind a lock, and where its effects are.
type durable struct {
	// open returns a handle on the records, as a process of its own has it.
	open func(t *testing.T) server.Store
	// effect is what a handler does.
	effect func(ctx context.Context, op server.Operation) error
	// effects returns how often it did so.
	effects func(t *testing.T, key string) int
}

var durables = map[string]func(t *testing.T) durable{
	"memory": func(*testing.T) durable {
		store, d := &memstore.Store{}, elsewhere()
		d.open = func(*testing.T) server.Store { return store }
		return d
	},
	"PostgreSQL": func(t *testing.T) durable {
		t.Helper()
		db, d := newDB(t), elsewhere()
		d.open = func(t *testing.T) server.Store { t.Helper(); return open(t, pgstore.New, db) }
		return d
	},
	"PostgreSQL transactional": func(t *testing.T) durable {
		t.Helper()
		db := newDB(t)
		return durable{
			open: func(t *testing.T) server.Store { t.Helper(); return open(t, pgstore.Transactional, db) },
			effect: func(ctx context.Context, op server.Operation) error {
				_, err := pgstore.Tx(ctx).Exec(ctx, "INSERT INTO effects (key) VALUES ($1)", op.Key)
				return err
			},
			effects: func(t *testing.T, key string) int {
				t.Helper()
				return pgtest.Value[int](t, db, "SELECT count(*) FROM effects WHERE key = $1", key)
			},
		}
	},
}

// elsewhere is a durable whose effects are in no database.
func elsewhere() durable {
	var mu sync.Mutex
	done := make(map[string]int)
	return durable{
		effect: func(_ context.Context, op server.Operation) error {
			mu.Lock()
			defer mu.Unlock()
			done[op.Key]++
			return nil
		},
		effects: func(_ *testing.T, key string) int {
			mu.Lock()
			defer mu.Unlock()
			return done[key]
		},
	}
}

func newDB(t *testing.T) *pgtest.DB {
	t.Helper()
	steps, err := pgstore.Migrations("")
	require.NoError(t, err)
	return pgtest.New(t, append(steps, "CREATE TABLE effects (key text NOT NULL)", "CREATE INDEX ON effects (key)")...)
}

func open(t *testing.T, newStore func(*pgxpool.Pool) *pgstore.Store, db *pgtest.DB) *pgstore.Store {
	t.Helper()
	store := newStore(db.Pool(t))
	store.Logger = quiet
	return store
}

func request(key string) server.ClaimRequest {
	return server.ClaimRequest{
		ID:          server.ID{Account: "acme", Key: key},
		Fingerprint: server.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte("this"))},
		Lease:       time.Minute,
		TTL:         48 * time.Hour,
	}
}

func somethingElse(req server.ClaimRequest) server.ClaimRequest {
	req.Fingerprint.Sum = sha256.Sum256([]byte("something else"))
	return req
}

func answer(body string) server.Response {
	return server.Response{StatusCode: 201, Fields: []server.Field{{Name: "Content-Type", Value: "text/plain"}}, Body: []byte(body)}
}

func owned(t *testing.T, store server.Store, req server.ClaimRequest) server.Claim {
	t.Helper()
	claim, err := store.Claim(t.Context(), req)
	require.NoError(t, err)
	require.NotNil(t, claim.Lease, "got the record %+v", claim.Record)
	return claim
}

func found(t *testing.T, store server.Store, req server.ClaimRequest) server.Record {
	t.Helper()
	claim, err := store.Claim(t.Context(), req)
	require.NoError(t, err)
	require.Nil(t, claim.Lease, "got a lease for %+v", claim.Operation)
	return claim.Record
}

func completed(t *testing.T, claim server.Claim, r server.Response) {
	t.Helper()
	rec, err := claim.Lease.Complete(t.Context(), r, 48*time.Hour)
	require.NoError(t, err)
	require.Equal(t, server.Completed, rec.Status)
	require.Equal(t, r, *rec.Response)
}

func released(t *testing.T, claim server.Claim) {
	t.Helper()
	require.NoError(t, claim.Lease.Release(t.Context(), nil))
}

// flush deletes all keys of a node, as an operator may.
func flush(t *testing.T, client rueidis.Client) {
	t.Helper()
	redistest.Do(t, client, "FLUSHALL")
}

// lifetimes returns for how long each key of a node still lives, in
// milliseconds, less than 0 if for ever.
func lifetimes(t *testing.T, client rueidis.Client) map[string]int64 {
	t.Helper()
	left := make(map[string]int64)
	for _, key := range redistest.Keys(t, client, "") {
		message := redistest.Do(t, client, "PTTL", key)
		ms, err := message.AsInt64()
		require.NoError(t, err)
		left[key] = ms
	}
	return left
}

// storm executes n operations, each asked for by two requests to each of the
// stores at the same time, until all have the answer, and strikes ten times
// meanwhile. It demands that each operation has one effect and one answer.
func storm(t *testing.T, n int, d durable, stores []server.Store, strike func()) {
	t.Helper()
	var begun atomic.Int64
	var workers sync.WaitGroup
	strikes := make(chan struct{})
	for range 16 {
		workers.Go(func() {
			for i := int(begun.Add(1)); i <= n && t.Context().Err() == nil; i = int(begun.Add(1)) {
				if i%(n/10) == 0 {
					select {
					case strikes <- struct{}{}:
					case <-t.Context().Done():
						return
					}
				}
				operate(t, d, stores, request("operation-"+strconv.Itoa(i)))
			}
		})
	}
	go func() {
		workers.Wait()
		close(strikes)
	}()
	for range strikes {
		strike()
	}
	for i := range n {
		key := "operation-" + strconv.Itoa(i+1)
		require.Equal(t, 1, d.effects(t, key), "effects of %s", key)
	}
}

func operate(t *testing.T, d durable, stores []server.Store, req server.ClaimRequest) {
	t.Helper()
	answers := make([]string, 2*len(stores))
	var requests sync.WaitGroup
	for i := range answers {
		requests.Go(func() {
			for answers[i] == "" && t.Context().Err() == nil {
				answers[i] = serve(t, d, stores[i%len(stores)], req)
			}
		})
	}
	requests.Wait()
	if t.Context().Err() != nil {
		return
	}
	for _, got := range answers {
		assert.Equal(t, answers[0], got)
	}
}

// serve does what a server does with one request, and returns the answer, ""
// if the request is to be sent again.
func serve(t *testing.T, d durable, store server.Store, req server.ClaimRequest) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	claim, err := store.Claim(ctx, req)
	if err == nil && claim.Lease != nil {
		return execute(ctx, d, claim, req.TTL)
	}
	if err == nil && claim.Record.Status == server.Completed {
		return string(claim.Record.Response.Body)
	}
	<-time.After(5 * time.Millisecond)
	return ""
}

func execute(ctx context.Context, d durable, claim server.Claim, ttl time.Duration) string {
	if err := d.effect(claim.Lease.Context(ctx), claim.Operation); err != nil {
		_ = claim.Lease.Release(ctx, err)
		return ""
	}
	// The effect has happened: as a server does, go on while the lease lasts. When
	// it is over, another request makes the effect again.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 50*time.Second)
	defer cancel()
	body := strings.Repeat(rand.Text(), 40) // about 1 KiB
	for ctx.Err() == nil {
		rec, err := claim.Lease.Complete(ctx, answer(body), ttl)
		if err == nil {
			return string(rec.Response.Body)
		}
		if errors.Is(err, server.ErrRestart) {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	return ""
}
