package redistest

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// Shared returns how to connect to the server that all tests of the process
// share, which is started on first use.
var Shared = sync.OnceValues(func() (rueidis.ClientOption, error) {
	if given := os.Getenv("TEST_REDIS_URL"); given != "" {
		return rueidis.ParseURL(given)
	}
	s, err := start("", []string{"port 0", "unixsocket redis.sock"})
	if err != nil {
		return rueidis.ClientOption{}, err
	}
	s.Address = filepath.Join(s.service.Folder, "redis.sock")
	return s.Option(), nil
})

// Client returns a new client of the shared server, closed when the test ends.
func Client(tb testing.TB) rueidis.Client {
	tb.Helper()
	option, err := Shared()
	require.NoError(tb, err)
	return Connect(tb, option)
}

// Prefix returns a prefix for the keys of one test on the server of client.
// They are deleted when the test ends.
func Prefix(tb testing.TB, client rueidis.Client) string {
	tb.Helper()
	prefix := "idem-test:" + rand.Text() + ":"
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, node := range client.Nodes() {
			for _, key := range Keys(tb, node, prefix) {
				require.NoError(tb, client.Do(ctx, client.B().Del().Key(key).Build()).Error())
			}
		}
	})
	return prefix
}

// Keys returns the keys with the prefix on one node.
func Keys(tb testing.TB, node rueidis.Client, prefix string) (keys []string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for cursor := uint64(0); ; {
		page, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(prefix+"*").Count(1000).Build()).AsScanEntry()
		require.NoError(tb, err)
		keys = append(keys, page.Elements...)
		if cursor = page.Cursor; cursor == 0 {
			return keys
		}
	}
}
