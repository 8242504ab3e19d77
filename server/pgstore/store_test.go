package pgstore_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/storetest"
)

// TestStore runs the suite in both modes on every way to a database. Each case
// has a table of its own, and two stores with pools of their own.
func TestStore(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		for way, open := range map[string]func(*testing.T, *pgtest.DB) *pgtest.DB{
			"prepared statements": func(_ *testing.T, db *pgtest.DB) *pgtest.DB { return db },
			"cached descriptions": func(_ *testing.T, db *pgtest.DB) *pgtest.DB {
				return db.With("default_query_exec_mode", "cache_describe")
			},
			"exec": func(_ *testing.T, db *pgtest.DB) *pgtest.DB { return db.With("default_query_exec_mode", "exec") },
			"simple protocol": func(_ *testing.T, db *pgtest.DB) *pgtest.DB {
				return db.With("default_query_exec_mode", "simple_protocol")
			},
			"pgbouncer and exec": func(t *testing.T, db *pgtest.DB) *pgtest.DB {
				t.Helper()
				return db.Bouncer(t).With("default_query_exec_mode", "exec")
			},
			"pgbouncer and cached descriptions": func(t *testing.T, db *pgtest.DB) *pgtest.DB {
				t.Helper()
				return db.Bouncer(t).With("default_query_exec_mode", "cache_describe")
			},
			"locks that are not real": withoutLocks,
		} {
			t.Run(name+" with "+way, func(t *testing.T) {
				t.Parallel()
				db := open(t, pgtest.New(t))
				one, other := db.Pool(t), db.Pool(t)
				var tables atomic.Int64
				storetest.RunShared(t, func(t *testing.T) (server.Store, server.Store) {
					t.Helper()
					store, peer := newStore(one), newStore(other)
					store.Table = fmt.Sprintf("records_%d", tables.Add(1))
					peer.Table = store.Table
					store.Logger, peer.Logger = quiet, quiet
					require.NoError(t, store.Migrate(t.Context()))
					return store, peer
				})
			})
		}
	}
}
