package pgstore_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// onceAt returns a hook that gives verdict to the first statement with prefix.
func onceAt(prefix string, act func(pgtest.Statement) pgtest.Verdict) func(pgtest.Statement) pgtest.Verdict {
	var struck atomic.Bool
	return func(s pgtest.Statement) pgtest.Verdict {
		if strings.HasPrefix(strings.TrimSpace(s.SQL), prefix) && struck.CompareAndSwap(false, true) {
			return act(s)
		}
		return pgtest.Pass
	}
}

func always(v pgtest.Verdict) func(pgtest.Statement) pgtest.Verdict {
	return func(pgtest.Statement) pgtest.Verdict { return v }
}

func TestClaimWhoseCommitWasNotAcknowledgedIsOwned(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, store *pgstore.Store, db *pgtest.DB){
		"a new operation": func(*testing.T, *pgstore.Store, *pgtest.DB) {},
		"a takeover": func(t *testing.T, store *pgstore.Store, _ *pgtest.DB) {
			t.Helper()
			require.NoError(t, owned(t, store, request("key")).Lease.Release(t.Context(), nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			w := newWire(t, db)
			store := open(t, pgstore.New, w.DB)
			prepare(t, store, db)
			statement := map[string]string{"a new operation": "COMMIT", "a takeover": "UPDATE idem_operations"}[name]
			w.Intercept(onceAt(statement, always(pgtest.CutReply)))
			claim := owned(t, store, request("key"))
			require.Equal(t, map[string]int{"a new operation": 1, "a takeover": 2}[name], claim.Operation.Attempt)
			completed(t, claim, answer(201, "done"))
		})
	}
}

func TestClaimThatFailedIsWithdrawn(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	store := open(t, pgstore.New, w.DB)
	ctx, cancel := context.WithCancel(t.Context())
	w.Intercept(onceAt("COMMIT", func(pgtest.Statement) pgtest.Verdict {
		cancel()
		return pgtest.CutReply
	}))
	req := request("key")
	req.Takeover = server.Refuse
	_, err := store.Claim(ctx, req)
	require.Error(t, err)
	next, _ := comesToOwn(t, open(t, pgstore.New, db), req)
	require.LessOrEqual(t, next.Operation.Attempt, 2)
}

func TestRecordDeletedUnderAClaim(t *testing.T) {
	t.Parallel()
	looks := map[string]string{"lease": "SELECT clock_timestamp", "transactional": "SELECT CASE"}
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			w := newWire(t, db)
			store := open(t, newStore, w.DB)
			completed(t, owned(t, open(t, newStore, db), request("key")), answer(201, "done"))
			w.Intercept(onceAt(looks[name], func(pgtest.Statement) pgtest.Verdict {
				db.Exec(t, "DELETE FROM idem_operations")
				return pgtest.Pass
			}))
			claim, _ := comesToOwn(t, store, request("key"))
			completed(t, claim, answer(201, "again"))
			require.Equal(t, "again", string(found(t, store, request("key")).Response.Body))
		})
	}
}

func TestCompletionWhoseCommitWasNotAcknowledgedIsFound(t *testing.T) {
	t.Parallel()
	w := newWire(t, newDB(t))
	store := open(t, pgstore.New, w.DB)
	claim := owned(t, store, request("key"))
	w.Intercept(onceAt("UPDATE idem_operations", always(pgtest.CutReply)))
	rec, err := claim.Lease.Complete(t.Context(), answer(201, "done"), time.Hour)
	require.NoError(t, err)
	require.Equal(t, claim.Operation.ID, rec.Operation)
	require.Equal(t, "done", string(rec.Response.Body))
}

func TestDatabaseClockDecides(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		for skew, offset := range map[string]string{"behind": "- interval '10 years'", "ahead": "+ interval '10 years'"} {
			t.Run(name+", database "+skew, func(t *testing.T) {
				t.Parallel()
				db := newDB(t)
				store := open(t, newStore, shadowed(t, db, `
					CREATE FUNCTION shadow.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
					AS $$ SELECT pg_catalog.clock_timestamp() `+offset+` $$`))
				req := request("key")
				claim := owned(t, store, req)
				require.Equal(t, server.Processing, found(t, store, req).Status)
				completed(t, claim, answer(201, "done"))
				require.Equal(t, server.Completed, found(t, store, req).Status)

				brief := request("brief")
				first := owned(t, store, brief)
				_, err := first.Lease.Complete(t.Context(), answer(201, "done"), 50*time.Millisecond)
				require.NoError(t, err)
				next, waited := comesToOwn(t, store, brief)
				require.NotEqual(t, first.Operation.ID, next.Operation.ID)
				require.Less(t, waited, 5*time.Second)
			})
		}
	}
}

// An operator is not told that somebody else has done what he did.
func TestReleaseWhoseAnswerIsLostIsNotDenied(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	store := open(t, pgstore.New, w.DB)
	lost := owned(t, store, request("key"))
	db.Exec(t, "UPDATE idem_operations SET lease_until = now()")
	w.Intercept(onceAt("UPDATE idem_operations", always(pgtest.CutReply)))
	released, err := store.ReleaseLost(t.Context(), lost.Operation)
	require.Error(t, err)
	require.False(t, released)
	require.Eventually(t, func() bool { return recorded(t, db, "key") == "failed" }, 10*time.Second, time.Millisecond)
}
