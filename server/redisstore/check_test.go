package redisstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server/redisstore"
)

func TestCheckWarnsOfSettingsThatForget(t *testing.T) {
	t.Parallel()
	const evicts, restarts = "level=ERROR msg=\"Redis deletes idempotency records", "level=WARN msg=\"Redis loses idempotency records"
	for name, c := range map[string]struct {
		settings []string
		evicts   bool
		restarts bool
	}{
		"noeviction and appendonly":  {[]string{"maxmemory-policy noeviction", "appendonly yes"}, false, false},
		"nothing set":                {nil, false, true},
		"allkeys-lru":                {[]string{"maxmemory-policy allkeys-lru", "appendonly yes"}, true, false},
		"volatile-ttl":               {[]string{"maxmemory-policy volatile-ttl"}, true, true},
		"allkeys-lru without CONFIG": {[]string{"maxmemory-policy allkeys-lru", `rename-command CONFIG ""`}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := redisstore.New(redistest.Start(t, c.settings...).Client(t))
			logger, log := notes()
			store.Logger = logger
			require.NoError(t, store.Check(t.Context()))
			require.Equal(t, c.evicts, strings.Contains(log.String(), evicts), log)
			require.Equal(t, c.restarts, strings.Contains(log.String(), restarts), log)
		})
	}
}

func TestCheckAsksEveryNode(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	redistest.Do(t, cluster.Nodes[2].Client(t), "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
	store := redisstore.New(cluster.Client(t))
	logger, log := notes()
	store.Logger = logger
	require.NoError(t, store.Check(t.Context()))
	require.Equal(t, 1, strings.Count(log.String(), "maxmemory_policy=allkeys-random"), log)
	require.Contains(t, log.String(), "node="+cluster.Nodes[2].Address)
}

func TestTheFirstClaimChecks(t *testing.T) {
	t.Parallel()
	store := redisstore.New(redistest.Start(t, "maxmemory-policy allkeys-lfu").Client(t))
	logger, log := notes()
	store.Logger = logger
	owned(t, store, request("first"))
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "maxmemory_policy=allkeys-lfu") }, 10*time.Second, time.Millisecond)
	owned(t, store, request("second"))
	require.Equal(t, 1, strings.Count(log.String(), "maxmemory_policy"), log)
}

func TestCheckFailsWhereRedisDoes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := redisstore.New(s.Client(t))
	s.Crash(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, store.Check(ctx), "redisstore: "+s.Address)
}
