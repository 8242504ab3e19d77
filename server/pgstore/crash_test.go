package pgstore_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// fault is what happens at one statement.
type fault struct {
	name string
	act  func(s pgtest.Statement) pgtest.Verdict
}

// interrupt makes the nth statement that passes w from now on suffer f. Its end,
// which waits for what f does, tells whether one did.
func interrupt(w *wire, n int, f fault) (end func() (struck bool)) {
	var acting sync.Mutex
	passed := 0
	w.Intercept(func(s pgtest.Statement) pgtest.Verdict {
		w.note(s)
		acting.Lock()
		defer acting.Unlock()
		if passed++; passed != n {
			return pgtest.Pass
		}
		return f.act(s)
	})
	return func() bool {
		w.Intercept(nil)
		acting.Lock()
		defer acting.Unlock()
		return passed >= n
	}
}

func terminate(t *testing.T, db *pgtest.DB, s pgtest.Statement) {
	t.Helper()
	db.Exec(t, "SELECT pg_terminate_backend($1, 5000)", int(s.Backend))
}

// TestConnectionLostAtAnyStatement lets an operation lose its connection at
// each of its statements in turn, in each way, while the process lives.
func TestConnectionLostAtAnyStatement(t *testing.T) {
	t.Parallel()
	for mode, newStore := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			w, clean := newWire(t, db), open(t, newStore, db)
			store := open(t, newStore, w.With("pool_max_conns", "2"))
			do := inTransaction
			if mode == "lease" {
				do = elsewhere(db.Pool(t))
			}
			faults := []fault{
				{"cut before it", func(pgtest.Statement) pgtest.Verdict { return pgtest.Cut }},
				{"cut after its flight", func(pgtest.Statement) pgtest.Verdict { return pgtest.CutReply }},
				{"session ended before it", func(s pgtest.Statement) pgtest.Verdict {
					terminate(t, db, s)
					return pgtest.Pass
				}},
			}
			_, err := execute(t.Context(), store, request("warm-up"), do)
			require.NoError(t, err)
			n, struck := 1, true
			for ; struck; n++ {
				for _, f := range faults {
					req := request(fmt.Sprintf("%s/%d/%s", mode, n, f.name))
					w.reset()
					end := interrupt(w, n, f)
					rec, err := execute(t.Context(), store, req, do)
					struck = end()
					checkSettled(t, db, clean, req, do, rec, err)
				}
			}
			require.Equal(t, map[string]int{"lease": 7, "transactional": 5}[mode], n-2, "statements that were struck")
		})
	}
}

// checkSettled demands that what the interrupted operation said is true, and
// that the next retry settles it with one effect.
func checkSettled(t *testing.T, db *pgtest.DB, clean *pgstore.Store, req server.ClaimRequest, do effect, said server.Record, err error) {
	t.Helper()
	if err != nil {
		require.NotErrorIs(t, err, server.ErrRolledBack)
	}
	var final server.Record
	for final.Status != server.Completed {
		require.NoError(t, t.Context().Err())
		rec, err := execute(t.Context(), clean, req, do)
		require.NoError(t, err)
		final = rec
	}
	require.Equal(t, 1, effects(t, db, req.ID.Key), "%s", req.ID.Key)
	require.Equal(t, "completed", recorded(t, db, req.ID.Key))
	if err == nil && said.Status == server.Completed {
		require.Equal(t, string(final.Response.Body), string(said.Response.Body))
		require.Equal(t, final.Operation, said.Operation)
	}
}

// flights are the statements of an operation in each mode, round trip by round
// trip. The second is the handler's.
var flights = map[string][][]string{
	"lease": {
		{"BEGIN ISOLATION", "INSERT INTO", "SELECT clock_timestamp(),", "COMMIT"},
		{"INSERT INTO"},
		{"BEGIN ISOLATION", "UPDATE idem_operations", "COMMIT"},
	},
	"transactional": {
		{"BEGIN ISOLATION", "SELECT CASE"},
		{"INSERT INTO"},
		{"INSERT INTO", "COMMIT"},
	},
}

// death is where a process is killed, and what is durable then.
type death struct {
	n       int // the statement
	verdict pgtest.Verdict
	durable string // the status of the record
}

// deaths returns all deaths of an operation: before the server has seen a
// statement, and when it has executed all of a flight and nobody has been told.
func deaths(mode string) (all []death) {
	n, commits := 0, 0
	durable := map[string][]string{"lease": {"", "processing", "completed"}, "transactional": {"", "completed"}}[mode]
	for _, flight := range flights[mode] {
		before := commits
		for _, statement := range flight {
			n++
			all = append(all, death{n: n, verdict: pgtest.Cut, durable: durable[before]})
			if statement == "COMMIT" {
				commits++
			}
		}
		all = append(all, death{n: n, verdict: pgtest.CutReply, durable: durable[commits]})
	}
	return all
}

// TestProcessKilledAtAnyStatement runs itself as a process that is killed with
// SIGKILL at each statement of its operation in turn.
func TestProcessKilledAtAnyStatement(t *testing.T) {
	t.Parallel()
	if dsn := os.Getenv("PGSTORE_VICTIM_DSN"); dsn != "" {
		victim(t, dsn, os.Getenv("PGSTORE_VICTIM_MODE"))
		return
	}
	for mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			clean := open(t, modes[mode], db)
			for _, d := range deaths(mode) {
				req := request(fmt.Sprintf("killed-%d-%d", d.n, d.verdict))
				req.Lease = victimLease
				kill(t, db, mode, req.ID.Key, d)
				require.Eventually(t, func() bool { return recorded(t, db, req.ID.Key) == d.durable }, 5*time.Second, 5*time.Millisecond)
				if mode == "transactional" {
					require.Equal(t, d.durable == "completed", effects(t, db, req.ID.Key) == 1)
				}
				checkNextRetry(t, clean, req, d)
			}
		})
	}
}

const victimLease = time.Second

// victim executes one operation.
func victim(t *testing.T, dsn, mode string) {
	t.Helper()
	pool, err := pgstore.Open(t.Context(), dsn)
	require.NoError(t, err)
	defer pool.Close()
	store, do := modes[mode](pool), inTransaction
	store.Logger = quiet
	if mode == "lease" {
		do = elsewhere(pool)
	}
	require.NoError(t, store.Check(t.Context()))
	req := request(os.Getenv("PGSTORE_VICTIM_KEY"))
	req.Lease = victimLease
	_, err = pool.Exec(t.Context(), "SELECT 'begin'")
	require.NoError(t, err)
	_, err = execute(t.Context(), store, req, do)
	require.NoError(t, err)
}

// kill runs a victim and lets it die.
func kill(t *testing.T, db *pgtest.DB, mode, key string, d death) {
	t.Helper()
	w := newWire(t, db)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcessKilledAtAnyStatement$")
	cmd.Env = append(os.Environ(), "PGSTORE_VICTIM_DSN="+w.URL, "PGSTORE_VICTIM_MODE="+mode, "PGSTORE_VICTIM_KEY="+key)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	var passed atomic.Int64
	var began, struck atomic.Bool
	started := make(chan struct{})
	w.Intercept(func(s pgtest.Statement) pgtest.Verdict {
		<-started
		if !began.Load() {
			began.Store(s.SQL == "SELECT 'begin'")
			return pgtest.Pass
		}
		if passed.Add(1) != int64(d.n) {
			return pgtest.Pass
		}
		struck.Store(true)
		_ = cmd.Process.Kill() // which shows in the end of the process
		return d.verdict
	})
	require.NoError(t, cmd.Start())
	close(started)
	err := cmd.Wait()
	require.True(t, struck.Load(), said.String())
	require.EqualError(t, err, "signal: killed")
}

// checkNextRetry demands what the tables of the package documentation say.
func checkNextRetry(t *testing.T, clean *pgstore.Store, req server.ClaimRequest, d death) {
	t.Helper()
	switch d.durable {
	case "completed":
		rec := found(t, clean, req)
		require.Equal(t, server.Completed, rec.Status)
		require.Equal(t, "attempt 1", string(rec.Response.Body))
	case "processing":
		rec := found(t, clean, req)
		require.Equal(t, server.Processing, rec.Status)
		require.LessOrEqual(t, rec.LeaseLeft, victimLease)
		next, waited := comesToOwn(t, clean, req)
		require.GreaterOrEqual(t, waited, rec.LeaseLeft-10*time.Millisecond)
		require.Equal(t, rec.Operation, next.Operation.ID)
		require.Equal(t, 2, next.Operation.Attempt)
		require.True(t, next.TakenOver)
		completed(t, next, answer(201, "next"))
	default:
		next, waited := comesToOwn(t, clean, req)
		require.Less(t, waited, victimLease/2, "nothing keeps the next retry waiting")
		require.Equal(t, 1, next.Operation.Attempt)
		completed(t, next, answer(201, "next"))
	}
}

// comesToOwn claims until it owns.
func comesToOwn(t *testing.T, store server.Store, req server.ClaimRequest) (claim server.Claim, waited time.Duration) {
	t.Helper()
	began := time.Now()
	require.Eventually(t, func() bool {
		var err error
		claim, err = store.Claim(context.WithoutCancel(t.Context()), req)
		return err == nil && claim.Lease != nil
	}, 10*time.Second, 2*time.Millisecond)
	releaseLater(t, claim)
	return claim, time.Since(began)
}

func TestProcessThatHangsInItsTransactionLosesIt(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	hung := open(t, pgstore.Transactional, db.With("idle_in_transaction_session_timeout", "500"))
	clean := open(t, pgstore.Transactional, db)
	claim, ctx := begun(t, hung, request("key"))
	done(t, ctx, "key")
	rec := found(t, clean, request("key"))
	require.Equal(t, server.Processing, rec.Status)
	require.Equal(t, claim.Operation.ID, rec.Operation)
	next, _ := comesToOwn(t, clean, request("key"))
	require.Equal(t, claim.Operation, next.Operation)
	done(t, next.Lease.Context(t.Context()), "key")
	completed(t, next, answer(201, "next"))

	_, err := claim.Lease.Complete(t.Context(), answer(201, "too late"), time.Hour)
	if err != nil { // it depends on the moment at which the loss of the session is noticed
		require.ErrorIs(t, err, server.ErrRestart)
	}
	require.Equal(t, "next", string(found(t, hung, request("key")).Response.Body))
	require.Equal(t, 1, effects(t, db, "key"))
}

// The new primary is a copy from before the operation, as an asynchronous
// standby is that had not received it.
func TestFailoverBeforeReplicationLosesEffectAndAnswerTogether(t *testing.T) {
	t.Parallel()
	for mode, newStore := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			primary, standby := newDB(t), newDB(t) // copies of one template
			run := func(db *pgtest.DB) server.Record {
				do := effect(inTransaction)
				if mode == "lease" {
					do = elsewhere(db.Pool(t))
				}
				rec, err := execute(t.Context(), open(t, newStore, db), request("key"), do)
				require.NoError(t, err)
				return rec
			}
			before := run(primary)
			require.Empty(t, recorded(t, standby, "key"))
			after := run(standby)
			require.Equal(t, 1, effects(t, standby, "key"))
			require.Equal(t, "completed", recorded(t, standby, "key"))
			if mode == "transactional" {
				require.Equal(t, before.Operation, after.Operation, "the downstream keys stay the same")
			}
		})
	}
}
