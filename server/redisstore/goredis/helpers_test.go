package goredis_test

import (
	"bytes"
	"crypto/sha256"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/redisstore"
	"github.com/idemhttp/idem/server/redisstore/goredis"
)

// connect returns a new client of s, closed when the test ends.
func connect(t *testing.T, s *redistest.Server) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Address})
	t.Cleanup(func() { client.Close() })
	return client
}

// connectToAll is connect for a cluster.
func connectToAll(t *testing.T, c *redistest.Cluster) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{c.Nodes[0].Address}})
	t.Cleanup(func() { client.Close() })
	return client
}

// quiet is the logger of tests that do not look at the log.
var quiet = slog.New(slog.DiscardHandler)

func newStore(client redis.UniversalClient, prefix string) *redisstore.Store {
	store := goredis.New(client)
	store.Prefix, store.Logger = prefix, quiet
	return store
}

// newLock returns a lock for which a slow test is not an outage.
func newLock(client redis.UniversalClient, durable server.Store, prefix string) *redisstore.Locked {
	lock := goredis.Lock(client, durable)
	lock.Prefix, lock.Logger, lock.Timeout = prefix, quiet, 5*time.Second
	return lock
}

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

func request(key string) server.ClaimRequest {
	return server.ClaimRequest{
		ID:          server.ID{Account: "acme", Key: key},
		Fingerprint: server.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte("this"))},
		Lease:       time.Minute,
		TTL:         48 * time.Hour,
	}
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
