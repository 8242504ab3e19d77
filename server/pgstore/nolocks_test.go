package pgstore_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// What an engine may have in place of pg_try_advisory_xact_lock.
var fakes = map[string]string{
	"true to everybody":  "LANGUAGE sql AS 'SELECT true'",
	"false to everybody": "LANGUAGE sql AS 'SELECT false'",
	"not implemented":    "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = 'feature_not_supported'; END $$",
	"no such function":   "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = 'undefined_function'; END $$",
}

func TestCheckFindsOutWhetherLocksAreReal(t *testing.T) {
	t.Parallel()
	placesRecord := func(t *testing.T, functions string) bool {
		t.Helper()
		w := newWire(t, newDB(t))
		store := open(t, pgstore.Transactional, shadowed(t, w.DB, functions))
		w.reset()
		owned(t, store, request("key"))
		return slices.Contains(w.seen(), "INSERT INTO")
	}
	require.False(t, placesRecord(t, "SELECT"), "PostgreSQL's own")
	for name, body := range fakes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.True(t, placesRecord(t, "CREATE FUNCTION shadow.pg_try_advisory_xact_lock(bigint) RETURNS boolean "+body))
		})
	}
}

// What is found out stays, so it must not be a session's end that was found out.
func TestSessionThatEndsDuringTheCheckProvesNothingAboutLocks(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	var tries atomic.Int64
	w.Intercept(func(s pgtest.Statement) pgtest.Verdict {
		if strings.HasPrefix(s.SQL, "SELECT pg_try_advisory_xact_lock(") && tries.Add(1) == 2 {
			db.Exec(t, `
				SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'
				   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		}
		return pgtest.Pass
	})
	store := open(t, pgstore.Transactional, w.DB)
	require.Equal(t, int64(4), tries.Load(), "the check was made again")
	owned(t, store, request("key"))
	require.True(t, found(t, open(t, pgstore.Transactional, db), somethingElse(request("key"))).Reused, "as only locks can prove")
}

// A pool of one cannot find out. The locks then promise what they do not keep,
// and the index still lets one of two owners commit.
func TestLocksThatAreTrustedWronglyCostAnAttemptAndNothingElse(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	engine := withoutLocks(t, db).With("pool_max_conns", "1")
	one, ctx := begun(t, open(t, pgstore.Transactional, engine), request("key"))
	done(t, ctx, "key")
	other, ctx := begun(t, open(t, pgstore.Transactional, engine), request("key"))
	done(t, ctx, "key")
	completed(t, one, answer(201, "one"))
	_, err := other.Lease.Complete(t.Context(), answer(201, "other"), time.Hour)
	require.ErrorIs(t, err, server.ErrRestart)
	require.Equal(t, 1, effects(t, db, "key"))
	require.Equal(t, "one", string(found(t, open(t, pgstore.New, db), request("key")).Response.Body))
}

// A failure is remembered after the transaction, when the next attempt may have
// put its record in place already.
func TestFailureIsNotRememberedAtTheCostOfTheNextAttempt(t *testing.T) {
	t.Parallel()
	db := withoutLocks(t, newDB(t))
	w := newWire(t, db)
	other := open(t, pgstore.Transactional, db)
	claim := owned(t, open(t, pgstore.Transactional, w.DB), request("key"))
	next := make(chan server.Claim, 1)
	w.Intercept(onceAt("INSERT INTO", func(pgtest.Statement) pgtest.Verdict {
		begun, _ := other.Claim(t.Context(), request("key"))
		next <- begun
		return pgtest.Pass
	}))
	require.NoError(t, claim.Lease.Release(t.Context(), nil))
	begun := <-next
	require.NotNil(t, begun.Lease)
	completed(t, begun, answer(201, "done"))
	require.Equal(t, "done", string(found(t, other, request("key")).Response.Body))
}
