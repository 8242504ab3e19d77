package redisstore_test

import (
	"bufio"
	"math"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/redisstore"
	"github.com/idemhttp/idem/server/storetest"
)

// runSuite runs the suite on stores with clients of their own.
func runSuite(t *testing.T, one, other rueidis.Client) {
	t.Helper()
	storetest.RunShared(t, func(t *testing.T) (server.Store, server.Store) {
		t.Helper()
		store, peer := newStore(t, one), redisstore.New(other)
		peer.Prefix, peer.Logger = store.Prefix, quiet
		return store, peer
	})
}

func TestStore(t *testing.T) {
	t.Parallel()
	runSuite(t, redistest.Client(t), redistest.Client(t))
}

func TestStoreInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	runSuite(t, cluster.Client(t), cluster.Client(t))
}

func TestStoreBehindASentinel(t *testing.T) { //nolint:tparallel // the failover is between the subtests
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	one, other := sentinel.Client(t), sentinel.Client(t)
	t.Run("before the failover", func(t *testing.T) { runSuite(t, one, other) })

	store, req := newStore(t, one), request("from before the failover")
	claim := owned(t, store, req)
	redistest.Do(t, one, "WAIT", "1", "10000") // a replica that has not got it could not know
	sentinel.Failover(t)
	require.Eventually(t, func() bool {
		_, err := store.Claim(t.Context(), req)
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	rec := found(t, store, req)
	require.Equal(t, server.Processing, rec.Status)
	require.Equal(t, claim.Operation.ID, rec.Operation)
	completed(t, claim, answer("done"))
	require.Equal(t, answer("done"), *found(t, store, req).Response)

	t.Run("after the failover", func(t *testing.T) { runSuite(t, one, other) })
}

// TestOperationsInACluster executes operations in all of its nodes.
func TestOperationsInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	one, other := cluster.Client(t), cluster.Client(t)
	store, peer := newStore(t, one), redisstore.New(other)
	peer.Prefix, peer.Logger = store.Prefix, quiet
	d := elsewhere()
	storm(t, 200, d, []server.Store{store, peer}, func() {})
	for _, node := range cluster.Nodes {
		require.NotEmpty(t, redistest.Keys(t, node.Client(t), store.Prefix))
	}
}

// monitor returns the commands that clients and scripts send while f runs, each
// with its arguments, but for those that make and keep a connection.
func monitor(t *testing.T, s *redistest.Server, f func()) (commands, inScripts [][]string) {
	t.Helper()
	conn, err := net.Dial("unix", s.Address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	lines := bufio.NewScanner(conn)
	require.True(t, lines.Scan())
	require.Equal(t, "+OK", lines.Text())

	f()
	redistest.Do(t, s.Client(t), "ECHO", "the end")
	quoted := regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	for lines.Scan() && !strings.Contains(lines.Text(), "the end") {
		words := quoted.FindAllString(lines.Text(), -1)
		switch {
		case strings.Contains(lines.Text(), " lua] "):
			inScripts = append(inScripts, words)
		case !slices.Contains([]string{`"HELLO"`, `"CLIENT"`, `"PING"`}, words[0]):
			commands = append(commands, words)
		}
	}
	return commands, inScripts
}

func TestEveryStepIsOneCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := newStore(t, s.Client(t))
	all := func(key string) {
		claim := owned(t, store, request(key))
		require.NoError(t, claim.Lease.Extend(t.Context(), time.Minute))
		released(t, claim)
		completed(t, owned(t, store, request(key)), answer("done"))
	}
	require.NoError(t, store.Check(t.Context()))
	all("first") // makes the scripts known, and has the settings checked
	commands, _ := monitor(t, s, func() { all("second") })
	require.Len(t, commands, 5)
	for _, command := range commands {
		require.Equal(t, `"EVALSHA"`, command[0])
		require.Equal(t, `"1"`, command[2], "number of keys")
		require.Equal(t, `"`+store.Prefix+`{4:acme:second}"`, command[3])
	}
}

func TestScriptsAreSentAgainWhenRedisForgetsThem(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := s.Client(t)
	store := newStore(t, client)
	completed(t, owned(t, store, request("first")), answer("done"))
	redistest.Do(t, client, "SCRIPT", "FLUSH")
	completed(t, owned(t, store, request("second")), answer("done"))
	require.Equal(t, answer("done"), *found(t, store, request("first")).Response)
}

func TestEveryKeyExpires(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := s.Client(t)
	store := newStore(t, client)
	req := request("key")
	req.Lease, req.TTL = 90*time.Second, 1500*time.Millisecond
	key := store.Prefix + "{4:acme:key}"
	lives := func(after string, want time.Duration) {
		t.Helper()
		left := lifetimes(t, client)
		require.Len(t, left, 1)
		require.InDelta(t, want.Milliseconds(), left[key], 1000, "after %s", after)
		require.LessOrEqual(t, left[key], want.Milliseconds())
		require.Positive(t, left[key])
	}
	claim := owned(t, store, req)
	lives("a claim", req.Lease+req.TTL)
	require.NoError(t, claim.Lease.Extend(t.Context(), 40*time.Second))
	lives("an extension", 40*time.Second+req.TTL)
	released(t, claim)
	lives("a release", req.TTL)
	claim = owned(t, store, req)
	lives("another claim", req.Lease+req.TTL)
	_, err := claim.Lease.Complete(t.Context(), answer("done"), 2500*time.Millisecond)
	require.NoError(t, err)
	lives("a completion", 2500*time.Millisecond)
}

func TestDurationsAreNeverRoundedToNothing(t *testing.T) {
	t.Parallel()
	store := newStore(t, redistest.Client(t))
	for _, d := range []time.Duration{math.MinInt64, -time.Second, 0, 1, 500 * time.Microsecond, time.Millisecond - 1} {
		req := request("key")
		req.Lease = d
		_, err := store.Claim(t.Context(), req)
		require.ErrorContains(t, err, "the lease is "+d.String()+", which is less than a millisecond")
		req = request("key")
		req.TTL = d
		_, err = store.Claim(t.Context(), req)
		require.ErrorContains(t, err, "the TTL is "+d.String()+", which is less than a millisecond")
		_, err = redisstore.Lock(redistest.Client(t), store).Claim(t.Context(), req)
		require.ErrorContains(t, err, "less than a millisecond")
	}
	claim := owned(t, store, request("key"))
	require.ErrorContains(t, claim.Lease.Extend(t.Context(), 0), "the lease is 0s")
	_, err := claim.Lease.Complete(t.Context(), answer("done"), 999*time.Microsecond)
	require.ErrorContains(t, err, "the TTL is 999µs")
	completed(t, claim, answer("done"))
}

func TestDurationsAreRoundedUp(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := newStore(t, s.Client(t))
	for d, want := range map[time.Duration]string{
		time.Millisecond:                    `"1"`,
		time.Millisecond + 1:                `"2"`,
		1500 * time.Millisecond:             `"1500"`,
		1500*time.Millisecond + 500_000_000: `"2000"`,
		math.MaxInt64:                       `"9223372036855"`,
	} {
		req := request(d.String())
		req.Lease = d
		owned(t, store, request("the script is known before "+d.String()))
		commands, _ := monitor(t, s, func() { owned(t, store, req) })
		require.Equal(t, want, commands[0][7], "%v", d)
		for _, ms := range lifetimes(t, s.Client(t)) {
			require.Positive(t, ms)
		}
	}
}
