package pgstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// Whoever has the pool too may take the prepared statements away from its
// connections, as with DISCARD ALL when they are given back.
func TestStatementsThatWereDeallocatedArePreparedAnew(t *testing.T) {
	t.Parallel()
	for name, newStore := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			pool := db.With("pool_max_conns", "1").Pool(t)
			store := newStore(pool)
			store.Logger = quiet
			do := elsewhere(db.Pool(t))
			var between atomic.Bool
			if name == "transactional" {
				do = func(ctx context.Context, op server.Operation) error {
					_, err := pgstore.Tx(ctx).Exec(ctx, insertEffect, pgx.QueryExecModeExec, op.Key, op.ID, op.Attempt)
					if op.Key == "in between" && !between.Swap(true) {
						_, err = pgstore.Tx(ctx).Exec(ctx, "DEALLOCATE ALL")
					}
					return err
				}
			}
			for _, key := range []string{"before", "after", "in between"} {
				rec, err := execute(t.Context(), store, request(key), do)
				require.NoError(t, err)
				require.Equal(t, server.Completed, rec.Status)
				require.Equal(t, 1, effects(t, db, key))
				_, err = pool.Exec(t.Context(), "DEALLOCATE ALL")
				require.NoError(t, err)
			}
			require.Equal(t, server.Completed, found(t, store, request("before")).Status)
		})
	}
}

// A pool may deallocate everything on a connection that is given back. That must
// not have handlers run twice.
func TestAPoolThatDeallocatesCostsNoAttempt(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	config, err := pgxpool.ParseConfig(db.With("pool_max_conns", "3").URL)
	require.NoError(t, err)
	config.AfterRelease = func(conn *pgx.Conn) bool { return conn.DeallocateAll(context.Background()) == nil }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	for name, newStore := range modes {
		store := newStore(pool)
		store.Logger = quiet
		for i := range 5 {
			handled, key := 0, fmt.Sprint(name, i)
			rec, err := execute(t.Context(), store, request(key), func(ctx context.Context, op server.Operation) error {
				handled++
				if name == "transactional" {
					return inTransaction(ctx, op)
				}
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, server.Completed, rec.Status)
			require.Equal(t, 1, handled)
		}
		n, err := store.Cleanup(t.Context(), 10)
		require.NoError(t, err)
		require.Zero(t, n)
	}
}

// A batch that begins a transaction would hand out one that commits the effects
// without the answer.
func TestABatchCannotBeginATransactionWithinTheOperations(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	claim, ctx := begun(t, open(t, pgstore.Transactional, w.DB), request("key"))
	tx := pgstore.Tx(ctx)
	savepoint, err := tx.Begin(ctx)
	require.NoError(t, err)
	done(t, ctx, "key")
	w.reset()
	for _, tx := range []pgx.Tx{tx, savepoint} {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		results := tx.SendBatch(ctx, b)
		require.ErrorContains(t, results.Close(), "within a transaction")
		require.ErrorIs(t, results.Tx().Commit(ctx), pgx.ErrTxClosed)
	}
	require.Empty(t, w.seen())
	require.NoError(t, savepoint.Commit(ctx))
	require.NoError(t, claim.Lease.Release(t.Context(), nil))
	require.Equal(t, 0, effects(t, db, "key"))
}

func TestATableThatWasAlteredIsReadOn(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	pool := db.With("pool_max_conns", "1").Pool(t)
	store := pgstore.New(pool)
	completed(t, owned(t, store, request("key")), answer(201, "done"))
	found(t, store, request("key"))
	_, err := db.Pool(t).Exec(t.Context(), "DROP VIEW idem_operations_text; ALTER TABLE idem_operations ALTER COLUMN status TYPE varchar(20)")
	require.NoError(t, err)
	require.Equal(t, "done", string(found(t, store, request("key")).Response.Body))
	completed(t, owned(t, store, request("other")), answer(201, "done"))
}

// batchTracer notes the statements of batches by their first word, and how
// batches end.
type batchTracer struct {
	mu   sync.Mutex
	seen []string
}

func (b *batchTracer) note(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, s)
}

func (*batchTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (*batchTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (b *batchTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, b, data.Batch.Len())
}

func (b *batchTracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	seen := strings.Fields(data.SQL)[0]
	if data.Err != nil {
		seen += " failed"
	}
	if time.Since(data.ReadStartTime) > time.Minute {
		seen += " for an age"
	}
	b.note(seen)
}

func (b *batchTracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	ended := "end"
	if ctx.Value(b) == 0 {
		ended = "end of nothing"
	}
	if data.Err != nil {
		ended = "failed: " + data.Err.Error()
	}
	b.note(ended)
}

func TestTracersOfThePoolSeeTheStatements(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	config, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	tracer := &batchTracer{}
	config.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()
	store := pgstore.New(pool)
	store.Logger = quiet
	require.NoError(t, store.Check(t.Context()))
	tracer.seen = nil
	completed(t, owned(t, store, request("key")), answer(201, "done"))
	require.Equal(t, []string{"BEGIN", "INSERT", "SELECT", "COMMIT", "end", "BEGIN", "UPDATE", "COMMIT", "end"}, tracer.seen)

	tracer.seen = nil
	_, err = pool.Exec(t.Context(), "DROP TABLE idem_operations CASCADE")
	require.NoError(t, err)
	_, err = store.Claim(t.Context(), request("another key"))
	require.Error(t, err)
	require.Contains(t, tracer.seen, "INSERT failed")
	require.Contains(t, tracer.seen, "failed: "+`ERROR: relation "idem_operations" does not exist (SQLSTATE 42P01)`)
}

func TestLargeObjectsCommitWithTheAnswer(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	store := open(t, pgstore.Transactional, w.DB)
	claim, ctx := begun(t, store, request("key"))
	w.reset()
	objects := pgstore.Tx(ctx).LargeObjects()
	oid, err := objects.Create(ctx, 0)
	require.NoError(t, err)
	object, err := objects.Open(ctx, oid, pgx.LargeObjectModeWrite)
	require.NoError(t, err)
	_, err = object.Write([]byte("invoice"))
	require.NoError(t, err)
	require.NoError(t, object.Close())
	require.Equal(t, []string{"select lo_create($1)", "select lo_open($1,", "select lowrite($1,", "select lo_close($1)"}, w.seen())
	tx := pgstore.Tx(ctx)
	completed(t, claim, answer(201, "done"))
	late := tx.LargeObjects()
	_, err = late.Create(t.Context(), 0)
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	require.Equal(t, "invoice", pgtest.Value[string](t, db, "SELECT convert_from(lo_get($1), 'UTF8')", oid))
}

func TestASavepointIsOverOnce(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	claim, ctx := begun(t, open(t, pgstore.Transactional, db), request("key"))
	tx := pgstore.Tx(ctx)
	one, err := tx.Begin(ctx)
	require.NoError(t, err)
	done(t, ctx, "kept")
	require.NoError(t, one.Commit(ctx))
	isOver(t, ctx, one, pgx.ErrTxClosed)
	two, err := tx.Begin(ctx)
	require.NoError(t, err)
	done(t, ctx, "undone")
	require.NoError(t, two.Rollback(ctx))
	isOver(t, ctx, two, pgx.ErrTxClosed)
	completed(t, claim, answer(201, "done"))
	require.Equal(t, 1, effects(t, db, "kept"))
	require.Equal(t, 0, effects(t, db, "undone"))
}

func TestAClaimGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.New, db)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	holder := db.Pool(t)
	tx, err := holder.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE idem_operations")
	require.NoError(t, err)
	_, err = store.Claim(ctx, request("key"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, tx.Rollback(t.Context()))
}
