package goredis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/redisstore"
	"github.com/idemhttp/idem/server/redisstore/goredis"
	"github.com/idemhttp/idem/server/storetest"
)

// runSuite runs the suite on stores with clients of their own, and returns when
// all of its cases have ended.
func runSuite(t *testing.T, newStores func(t *testing.T) (server.Store, server.Store)) {
	t.Helper()
	t.Run("suite", func(t *testing.T) { storetest.RunShared(t, newStores) })
}

func TestStore(t *testing.T) { //nolint:tparallel // its keys are looked at when all cases have ended
	t.Parallel()
	s := redistest.Start(t)
	one, other := connect(t, s), connect(t, s)
	runSuite(t, func(t *testing.T) (server.Store, server.Store) {
		t.Helper()
		return newStore(one, t.Name()), newStore(other, t.Name())
	})
	require.NotEmpty(t, redistest.Keys(t, s.Client(t), ""))
}

func TestStoreInACluster(t *testing.T) { //nolint:tparallel // its keys are looked at when all cases have ended
	t.Parallel()
	cluster := redistest.StartCluster(t)
	one, other := connectToAll(t, cluster), connectToAll(t, cluster)
	runSuite(t, func(t *testing.T) (server.Store, server.Store) {
		t.Helper()
		return newStore(one, t.Name()), newStore(other, t.Name())
	})
	for _, node := range cluster.Nodes {
		require.NotEmpty(t, redistest.Keys(t, node.Client(t), ""))
	}
}

func TestLock(t *testing.T) { //nolint:tparallel // its keys are looked at when all cases have ended
	t.Parallel()
	s := redistest.Start(t)
	one, other := connect(t, s), connect(t, s)
	runSuite(t, func(t *testing.T) (server.Store, server.Store) {
		t.Helper()
		durable := &memstore.Store{}
		return newLock(one, durable, t.Name()), newLock(other, durable, t.Name())
	})
	require.NotEmpty(t, redistest.Keys(t, s.Client(t), ""))
}

func TestStoreOutlivesAFailover(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: redistest.MasterSet, SentinelAddrs: []string{sentinel.Watcher.Address},
	})
	t.Cleanup(func() { client.Close() })
	store, req := newStore(client, ""), request("key")
	claim := owned(t, store, req)
	redistest.Do(t, sentinel.Client(t), "WAIT", "1", "10000") // a replica that has not got it could not know
	sentinel.Failover(t)
	require.Eventually(t, func() bool {
		_, err := store.Claim(t.Context(), req)
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	require.Equal(t, claim.Operation.ID, found(t, store, req).Operation)
	completed(t, claim, answer("done"))
	require.Equal(t, answer("done"), *found(t, store, req).Response)
}

func TestTheTwoClientsShareRecords(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ours, theirs := newStore(connect(t, s), ""), redisstore.New(s.Client(t))
	theirs.Logger = quiet
	claim := owned(t, ours, request("ours"))
	require.Equal(t, claim.Operation.ID, found(t, theirs, request("ours")).Operation)
	completed(t, claim, answer("ours"))
	require.Equal(t, answer("ours"), *found(t, theirs, request("ours")).Response)
	completed(t, owned(t, theirs, request("theirs")), answer("theirs"))
	require.Equal(t, answer("theirs"), *found(t, ours, request("theirs")).Response)
}

func TestScriptsAreSentWhenRedisDoesNotKnowThem(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := s.Client(t)
	store := newStore(connect(t, s), "")
	completed(t, owned(t, store, request("first")), answer("done"))
	redistest.Do(t, client, "SCRIPT", "FLUSH")
	completed(t, owned(t, store, request("second")), answer("done"))
	redistest.Do(t, client, "CONFIG", "RESETSTAT")
	completed(t, owned(t, store, request("third")), answer("done"))
	message := redistest.Do(t, client, "INFO", "commandstats")
	stats, err := message.ToString()
	require.NoError(t, err)
	require.Contains(t, stats, "cmdstat_evalsha:calls=2,")
	require.NotContains(t, stats, "cmdstat_eval:")
}

func TestCheckAsksEveryNode(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	redistest.Do(t, cluster.Nodes[2].Client(t), "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
	store := goredis.New(connectToAll(t, cluster))
	logger, log := notes()
	store.Logger = logger
	require.NoError(t, store.Check(t.Context()))
	require.Equal(t, 3, strings.Count(log.String(), "set its appendonly to yes"), log)
	require.Equal(t, 1, strings.Count(log.String(), "maxmemory_policy=allkeys-random"), log)
	require.Contains(t, log.String(), "node="+cluster.Nodes[2].Address)

	cluster.Nodes[0].Crash(t)
	require.ErrorContains(t, store.Check(t.Context()), "redisstore: "+cluster.Nodes[0].Address)
}

// wrapped is a client that somebody has put something around.
type wrapped struct{ redis.UniversalClient }

func TestCheckOfASingleNode(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "maxmemory-policy allkeys-lru")
	client := connect(t, s)
	for name, c := range map[string]struct {
		client  redis.UniversalClient
		address string
	}{
		"client":  {client, s.Address},
		"wrapped": {wrapped{client}, "Redis"},
	} {
		store := goredis.New(c.client)
		logger, log := notes()
		store.Logger = logger
		require.NoError(t, store.Check(t.Context()), name)
		require.Contains(t, log.String(), "node="+c.address+" maxmemory_policy=allkeys-lru", name)
	}
	s.Crash(t)
	require.ErrorContains(t, goredis.New(client).Check(t.Context()), "redisstore: "+s.Address)
}
