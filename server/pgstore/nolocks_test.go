package pgstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
