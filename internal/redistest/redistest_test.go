package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
)

func TestPrefixesAreCleanedUp(t *testing.T) { //nolint:tparallel // the end of the subtest is what the rest looks at
	t.Parallel()
	client := redistest.Client(t)
	var prefix string
	t.Run("test", func(t *testing.T) {
		prefix = redistest.Prefix(t, client)
		redistest.Do(t, client, "SET", prefix+"1", "x")
		redistest.Do(t, client, "SET", prefix+"2", "x")
		require.ElementsMatch(t, []string{prefix + "1", prefix + "2"}, redistest.Keys(t, client, prefix))
	})
	require.Empty(t, redistest.Keys(t, client, prefix))
}

func TestCrashAndRestart(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]int{"appendonly no": 0, "appendonly yes\nappendfsync always": 1} {
		t.Run(settings, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, settings)
			client := s.Client(t)
			redistest.Do(t, client, "SET", "key", "x")
			s.Crash(t)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			require.Error(t, client.Do(ctx, client.B().Ping().Build()).Error())
			s.Restart(t)
			require.Len(t, redistest.Keys(t, s.Client(t), "key"), want)
		})
	}
}

func TestFreezeAndThaw(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := s.Client(t)
	s.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, client.Do(ctx, client.B().Ping().Build()).Error(), context.DeadlineExceeded)
	s.Thaw(t)
	redistest.Do(t, s.Client(t), "PING")
}

func TestClusterSpreadsKeys(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	client := c.Client(t)
	prefix := redistest.Prefix(t, client)
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		require.NoError(t, client.Do(t.Context(), client.B().Set().Key(prefix+key).Value("x").Build()).Error())
	}
	total := 0
	for _, node := range c.Nodes {
		n := len(redistest.Keys(t, node.Client(t), prefix))
		require.Less(t, n, 10)
		total += n
	}
	require.Equal(t, 10, total)
}

func TestSentinelPromotesTheReplica(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	client := s.Client(t)
	redistest.Do(t, client, "SET", "before", "x")
	redistest.Do(t, client, "WAIT", "1", "10000")
	s.Failover(t)
	require.Eventually(t, func() bool {
		return client.Do(t.Context(), client.B().Set().Key("after").Value("x").Build()).Error() == nil
	}, time.Minute, 20*time.Millisecond)
	require.ElementsMatch(t, []string{"before", "after"}, redistest.Keys(t, s.Replica.Client(t), ""))
}
