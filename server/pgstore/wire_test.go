package pgstore_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// wire is a proxy that keeps the statements it saw, by their first two words.
type wire struct {
	*pgtest.Proxy

	mu         sync.Mutex
	statements []string
}

func newWire(t *testing.T, db *pgtest.DB) *wire {
	t.Helper()
	w := &wire{Proxy: db.Proxy(t)}
	w.Intercept(func(s pgtest.Statement) pgtest.Verdict {
		w.note(s)
		return pgtest.Pass
	})
	return w
}

func (w *wire) note(s pgtest.Statement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statements = append(w.statements, words(s))
}

func words(s pgtest.Statement) string {
	fields := strings.Fields(s.SQL)
	return strings.Join(fields[:min(2, len(fields))], " ")
}

func (w *wire) reset() (flights int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statements = nil
	return w.Flights()
}

func (w *wire) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.statements...)
}

func TestTransactionalModeCostsNoRoundTripMoreThanATransaction(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	store := open(t, pgstore.Transactional, w.With("pool_max_conns", "2"))
	_, err := execute(t.Context(), store, request("warm-up"), inTransaction)
	require.NoError(t, err)

	before := w.reset()
	_, err = execute(t.Context(), store, request("key"), inTransaction)
	require.NoError(t, err)
	require.Equal(t, 3, w.Flights()-before, "BEGIN, the handler's own statement, COMMIT")
	require.Equal(t, []string{
		"BEGIN ISOLATION", "SELECT CASE",
		"INSERT INTO",
		"INSERT INTO", "COMMIT",
	}, w.seen())
}

func TestLeaseModeCostsTwoRoundTrips(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	store, do := open(t, pgstore.New, w.With("pool_max_conns", "2")), elsewhere(db.Pool(t))
	_, err := execute(t.Context(), store, request("warm-up"), do)
	require.NoError(t, err)

	before := w.reset()
	_, err = execute(t.Context(), store, request("key"), do)
	require.NoError(t, err)
	require.Equal(t, 2, w.Flights()-before)
	require.Equal(t, []string{
		"BEGIN ISOLATION", "INSERT INTO", "SELECT clock_timestamp(),", "COMMIT",
		"BEGIN ISOLATION", "UPDATE idem_operations", "COMMIT",
	}, w.seen())
}

func TestTuplesWritten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ inserted, updated, hot, deleted int }{
		"lease":         {inserted: 10, updated: 10, hot: 10},
		"transactional": {inserted: 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			pool := db.Pool(t)
			store := modes[name](pool)
			store.Logger = quiet
			do := inTransaction
			if name == "lease" {
				do = elsewhere(pool)
			}
			for i := range 10 {
				_, err := execute(t.Context(), store, request(string(rune('a'+i))), do)
				require.NoError(t, err)
			}
			pool.Close() // sessions report their counts when they end
			var got [4]int
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				for i, column := range []string{"n_tup_ins", "n_tup_upd", "n_tup_hot_upd", "n_tup_del"} {
					got[i] = pgtest.Value[int](t, db, "SELECT "+column+" FROM pg_stat_user_tables WHERE relname = 'idem_operations'")
				}
				assert.Equal(collect, c.inserted, got[0])
			}, 10*time.Second, 20*time.Millisecond)
			require.Equal(t, [4]int{c.inserted, c.updated, c.hot, c.deleted}, got)
		})
	}
}

func TestReplayTakesOneRoundTripAndNoTransactionID(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			w := newWire(t, db)
			store := open(t, newStore, w.With("pool_max_conns", "2"))
			other := open(t, newStore, db)
			for _, key := range []string{"warm-up", "key"} {
				completed(t, owned(t, other, request(key)), answer(201, "done"))
			}
			w.reset()
			found(t, store, request("warm-up"))
			require.Eventually(t, func() bool {
				return slices.ContainsFunc(w.seen(), func(s string) bool { return s == "COMMIT" || s == "ROLLBACK" })
			}, 10*time.Second, time.Millisecond)

			ends, goOn := make(chan pgtest.Statement, 1), make(chan struct{})
			w.Intercept(func(s pgtest.Statement) pgtest.Verdict {
				if end := words(s); end == "COMMIT" || end == "ROLLBACK" {
					ends <- s
					<-goOn
				}
				return pgtest.Pass
			})
			before, claimed := w.Flights(), make(chan server.Claim, 1)
			go func() {
				claim, _ := store.Claim(t.Context(), request("key"))
				claimed <- claim
			}()
			session := (<-ends).Backend
			transactionID := pgtest.Value[string](t, db,
				"SELECT coalesce(backend_xid::text, '') FROM pg_stat_activity WHERE pid = $1", session)
			close(goOn)
			rec := (<-claimed).Record
			require.Empty(t, transactionID)
			require.Equal(t, server.Completed, rec.Status)
			require.Equal(t, "done", string(rec.Response.Body))
			if name == "lease" {
				require.Equal(t, 1, w.Flights()-before)
			}
		})
	}
}

func TestReplayInTransactionalModeIsAnsweredBeforeItsTransactionEnds(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	store := open(t, pgstore.Transactional, w.DB)
	completed(t, owned(t, open(t, pgstore.New, db), request("key")), answer(201, "done"))

	goOn := make(chan struct{})
	w.Intercept(func(s pgtest.Statement) pgtest.Verdict {
		if strings.EqualFold(s.SQL, "ROLLBACK") {
			<-goOn
		}
		return pgtest.Pass
	})
	require.Equal(t, server.Completed, found(t, store, request("key")).Status)
	close(goOn)
}
