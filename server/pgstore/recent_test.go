package pgstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

func TestReplayOfARecentKeyIsOneSelect(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, newDB(t))
			store := open(t, newStore, w.With("pool_max_conns", "2"))
			for _, key := range []string{"warm-up", "key"} {
				completed(t, owned(t, store, request(key)), answer(201, "done"))
			}
			require.Equal(t, "done", string(found(t, store, request("warm-up")).Response.Body))
			w.reset()
			rec := found(t, store, request("key"))
			require.Equal(t, "done", string(rec.Response.Body))
			require.False(t, rec.Reused)
			require.Equal(t, []string{"SELECT clock_timestamp(),"}, w.seen())
			require.True(t, found(t, store, somethingElse(request("key"))).Reused)
		})
	}
}

// A key that a process has seen is one that it remembers, from then on.
func TestReplayMakesAKeyRecent(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			completed(t, owned(t, open(t, newStore, db), request("key")), answer(201, "done"))
			w := newWire(t, db)
			store := open(t, newStore, w.With("pool_max_conns", "2"))
			var seen [][]string
			for range 2 {
				w.reset()
				require.Equal(t, "done", string(found(t, store, request("key")).Response.Body))
				seen = append(seen, w.seen())
			}
			require.Contains(t, seen[0][0], "BEGIN")
			require.NotContains(t, seen[1], "BEGIN ISOLATION")
		})
	}
}

func TestRecentKeysAreClaimedWhenTheirRecordIsGone(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			store := open(t, newStore, db)
			first := owned(t, store, request("key"))
			completed(t, first, answer(201, "done"))
			db.Exec(t, "UPDATE idem_operations SET expires_at = clock_timestamp()")
			second := owned(t, store, request("key"))
			require.NotEqual(t, first.Operation.ID, second.Operation.ID)
			require.NoError(t, second.Lease.Release(t.Context(), nil))

			db.Exec(t, "DELETE FROM idem_operations")
			third := owned(t, store, request("key"))
			require.Equal(t, 1, third.Operation.Attempt)
			rec, err := third.Lease.Complete(t.Context(), answer(201, "again"), time.Hour)
			require.NoError(t, err)
			require.Equal(t, server.Completed, rec.Status)
			require.Equal(t, "again", string(found(t, store, request("key")).Response.Body))
		})
	}
}
