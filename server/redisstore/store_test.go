package redisstore_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/redisstore"
	"github.com/idemhttp/idem/server/storetest"
)

// quiet is the logger of tests that expect nothing to be logged.
var quiet = slog.New(slog.DiscardHandler)

// runSuite runs the suite on stores with clients of their own.
func runSuite(t *testing.T, one, other rueidis.Client) {
	t.Helper()
	storetest.RunShared(t, func(t *testing.T) (server.Store, server.Store) {
		t.Helper()
		store, peer := redisstore.New(one), redisstore.New(other)
		store.Prefix = redistest.Prefix(t, one)
		peer.Prefix = store.Prefix
		store.Logger, peer.Logger = quiet, quiet
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

func TestLockInFrontOfMemory(t *testing.T) {
	t.Parallel()
	one, other := redistest.Client(t), redistest.Client(t)
	storetest.RunShared(t, func(t *testing.T) (server.Store, server.Store) {
		t.Helper()
		durable := &memstore.Store{}
		store, peer := redisstore.Lock(one, durable), redisstore.Lock(other, durable)
		store.Prefix = redistest.Prefix(t, one)
		peer.Prefix = store.Prefix
		store.Logger, peer.Logger = quiet, quiet
		return store, peer
	})
}

var _ = fmt.Sprint
var _ atomic.Int64
var _ = strings.Contains
