package redisstore_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/redisstore"
)

// disasters are what happens to the Redis of a lock during a storm. Each
// returns a client for each of two processes, and what strikes ten times.
var disasters = map[string]func(t *testing.T) (one, other rueidis.Client, strike func()){
	"killed and restarted": func(t *testing.T) (rueidis.Client, rueidis.Client, func()) {
		t.Helper()
		s := redistest.Start(t)
		return s.Client(t), s.Client(t), func() {
			s.Crash(t)
			<-time.After(20 * time.Millisecond)
			s.Restart(t)
		}
	},
	"killed and restarted with old data": func(t *testing.T) (rueidis.Client, rueidis.Client, func()) {
		t.Helper()
		s := redistest.Start(t, "appendonly yes", "appendfsync no")
		return s.Client(t), s.Client(t), func() {
			s.Crash(t)
			s.Restart(t)
		}
	},
	"frozen": func(t *testing.T) (rueidis.Client, rueidis.Client, func()) {
		t.Helper()
		s := redistest.Start(t)
		return s.Client(t), s.Client(t), func() {
			s.Freeze(t)
			<-time.After(50 * time.Millisecond)
			s.Thaw(t)
		}
	},
	"flushed": func(t *testing.T) (rueidis.Client, rueidis.Client, func()) {
		t.Helper()
		client := redistest.Start(t).Client(t)
		return client, client, func() { flush(t, client) }
	},
	"full": func(t *testing.T) (rueidis.Client, rueidis.Client, func()) {
		t.Helper()
		client := redistest.Start(t, "maxmemory-policy allkeys-lru").Client(t)
		strikes := 0
		return client, client, func() {
			switch strikes++; strikes {
			case 2:
				redistest.Do(t, client, "CONFIG", "SET", "maxmemory", "1") // no key has room
			case 3:
				redistest.Do(t, client, "CONFIG", "SET", "maxmemory", strconv.Itoa(info(t, client, "used_memory")+64<<10)) // some have
			case 10:
				require.Positive(t, info(t, client, "evicted_keys"))
			}
		}
	},
	"failed over": func(t *testing.T) (rueidis.Client, rueidis.Client, func()) {
		t.Helper()
		s := redistest.StartSentinel(t)
		strikes := 0
		return s.Client(t), s.Client(t), func() {
			if strikes++; strikes == 5 {
				s.Failover(t)
			}
		}
	},
}

// info returns a number from Redis' own statistics.
func info(t *testing.T, client rueidis.Client, name string) int {
	t.Helper()
	reply, err := client.Do(t.Context(), client.B().Info().Build()).ToString()
	require.NoError(t, err)
	_, value, found := strings.Cut(reply, "\r\n"+name+":")
	require.True(t, found, name)
	value, _, _ = strings.Cut(value, "\r\n")
	n, err := strconv.Atoi(value)
	require.NoError(t, err)
	return n
}

// TestNothingThatHappensToRedisDoublesAnEffect executes operations in two
// processes behind one lock, while Redis suffers.
func TestNothingThatHappensToRedisDoublesAnEffect(t *testing.T) {
	t.Parallel()
	for name, newDurable := range durables {
		for fate, start := range disasters {
			t.Run(name+" "+fate, func(t *testing.T) {
				t.Parallel()
				d := newDurable(t)
				one, other, strike := start(t)
				stores := make([]server.Store, 2)
				for i, client := range []rueidis.Client{one, other} {
					lock := redisstore.Lock(client, d.open(t))
					lock.Logger, lock.Timeout = quiet, 20*time.Millisecond
					lock.SetRest(20 * time.Millisecond)
					stores[i] = lock
				}
				operations := 100
				if name == "memory" || name == "PostgreSQL" && fate == "killed and restarted" {
					operations = 2000
				}
				storm(t, operations, d, stores, strike)
			})
		}
	}
}
