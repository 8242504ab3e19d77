package pgstore_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// modes are the two kinds of store.
var modes = map[string]func(*pgxpool.Pool) *pgstore.Store{
	"lease":         pgstore.New,
	"transactional": pgstore.Transactional,
}

// quiet is the logger of tests that expect nothing to be logged.
var quiet = slog.New(slog.DiscardHandler)

const effectsTable = "CREATE TABLE effects (key text NOT NULL, operation_id uuid NOT NULL, attempt integer NOT NULL)"

// newDB returns a database with the default table and one for effects.
func newDB(t *testing.T) *pgtest.DB {
	t.Helper()
	return newDBIn(t, pgtest.Fast)
}

// newDBIn is newDB on the cluster with the settings of mode.
func newDBIn(t *testing.T, mode pgtest.Mode) *pgtest.DB {
	t.Helper()
	steps, err := pgstore.Migrations("")
	require.NoError(t, err)
	return pgtest.NewIn(t, mode, append(steps, effectsTable)...)
}

// open returns a store with a pool of its own on db that has been checked.
func open(t *testing.T, newStore func(*pgxpool.Pool) *pgstore.Store, db *pgtest.DB) *pgstore.Store {
	t.Helper()
	store := newStore(db.Pool(t))
	store.Logger = quiet
	require.NoError(t, store.Check(t.Context()))
	return store
}

func request(key string) server.ClaimRequest {
	return server.ClaimRequest{
		ID:          server.ID{Account: "acme", Key: key},
		Fingerprint: server.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte("this"))},
		Lease:       time.Minute,
		TTL:         48 * time.Hour,
	}
}

func somethingElse(req server.ClaimRequest) server.ClaimRequest {
	req.Fingerprint.Sum = sha256.Sum256([]byte("something else"))
	return req
}

func answer(status int, body string) server.Response {
	return server.Response{StatusCode: status, Fields: []server.Field{{Name: "Content-Type", Value: "text/plain"}}, Body: []byte(body)}
}

func owned(t *testing.T, store server.Store, req server.ClaimRequest) server.Claim {
	t.Helper()
	claim, err := store.Claim(t.Context(), req)
	require.NoError(t, err)
	require.NotNil(t, claim.Lease, "got the record %+v", claim.Record)
	releaseLater(t, claim)
	return claim
}

// releaseLater sees to it that a claim does not outlive its test.
func releaseLater(t *testing.T, claim server.Claim) {
	t.Helper()
	t.Cleanup(func() { _ = claim.Lease.Release(context.Background(), nil) })
}

func found(t *testing.T, store server.Store, req server.ClaimRequest) server.Record {
	t.Helper()
	claim, err := store.Claim(t.Context(), req)
	require.NoError(t, err)
	require.Nil(t, claim.Lease)
	return claim.Record
}

func completed(t *testing.T, claim server.Claim, r server.Response) {
	t.Helper()
	rec, err := claim.Lease.Complete(t.Context(), r, 48*time.Hour)
	require.NoError(t, err)
	require.Equal(t, server.Record{Status: server.Completed, Operation: claim.Operation.ID, Attempt: claim.Operation.Attempt, Response: &r}, rec)
}

// effect is what a handler does: one row for each time it did it.
type effect func(ctx context.Context, op server.Operation) error

const insertEffect = "INSERT INTO effects (key, operation_id, attempt) VALUES ($1, $2, $3)"

// inTransaction is an effect in the operation's transaction.
func inTransaction(ctx context.Context, op server.Operation) error {
	_, err := pgstore.Tx(ctx).Exec(ctx, insertEffect, op.Key, op.ID, op.Attempt)
	return err
}

// elsewhere is an effect that does not go through the store's connections.
func elsewhere(pool *pgxpool.Pool) effect {
	return func(ctx context.Context, op server.Operation) error {
		_, err := pool.Exec(ctx, insertEffect, op.Key, op.ID, op.Attempt)
		return err
	}
}

// execute does what a server does with a request, and returns the record that
// it would answer with.
func execute(ctx context.Context, store server.Store, req server.ClaimRequest, do effect) (server.Record, error) {
	for range 4 {
		claim, err := store.Claim(ctx, req)
		if err != nil || claim.Lease == nil {
			return claim.Record, err
		}
		if err := do(claim.Lease.Context(ctx), claim.Operation); err != nil {
			if errors.Is(claim.Lease.Release(ctx, err), server.ErrRestart) {
				continue
			}
			return server.Record{}, err
		}
		rec, err := claim.Lease.Complete(ctx, answer(201, "attempt "+strconv.Itoa(claim.Operation.Attempt)), req.TTL)
		if errors.Is(err, server.ErrRestart) {
			continue
		}
		return rec, err
	}
	return server.Record{}, server.ErrRestart
}

// effects returns how often the operation's effect is durable.
func effects(t *testing.T, db *pgtest.DB, key string) int {
	t.Helper()
	return pgtest.Value[int](t, db, "SELECT count(*) FROM effects WHERE key = $1", key)
}

// recorded returns the status of the key's record, "" if there is none.
func recorded(t *testing.T, db *pgtest.DB, key string) string {
	t.Helper()
	return pgtest.Value[string](t, db, "SELECT coalesce(max(status), '') FROM idem_operations WHERE idempotency_key = $1", key)
}

func isVersion8(t *testing.T, id uuid.UUID) {
	t.Helper()
	require.Equal(t, uuid.Version(8), id.Version())
	require.Equal(t, uuid.RFC4122, id.Variant())
}
