package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

// The kinds of work. Each but the last three is compared with bare, those with
// read.
const (
	bare             = "the bare transaction"
	transactional    = "transactional mode"
	lease            = "lease mode"
	read             = "a SELECT by primary key"
	replay           = "replay"
	replayInTx       = "replay, transactional route"
	rememberedReplay = "replay of a key completed lately"
)

// operation does one piece of work.
type operation func(ctx context.Context) error

// kind is a kind of work and what it is compared with.
type kind struct {
	name, base string
	do         operation
}

// lab is a database with what the work needs, and one table of records in it.
type lab struct {
	pool     *pgxpool.Pool
	leases   *pgstore.Store
	inTx     *pgstore.Store
	finished []string // keys completed by somebody else, more than a store remembers
	lately   []string // keys completed by leases
}

const (
	schema = `
CREATE TABLE orders (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	account text NOT NULL, amount bigint NOT NULL, note text NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE documents (account text COLLATE "C", id text COLLATE "C", body bytea NOT NULL, PRIMARY KEY (account, id))`

	insertOrder = "INSERT INTO orders (account, amount, note) VALUES ($1, $2, $3)"

	// insertDocuments makes rows as wide as records.
	insertDocuments = "INSERT INTO documents SELECT $1, id, $3 FROM unnest($2::text[]) AS id"

	// copyRecord makes records in the order of both indexes, which takes a
	// fraction of the time.
	copyRecord = `
INSERT INTO %[1]s (account_id, idempotency_key, operation_id, fingerprint, fingerprint_version, status, attempt, claim_token,
       response_status, response_headers, response_body, response_flags, created_at, completed_at, expires_at)
SELECT account_id, id::text, id, fingerprint, fingerprint_version, status, attempt, claim_token,
       response_status, response_headers, response_body, response_flags, created_at, completed_at, expires_at + $4::interval + nth * interval '1 ms'
FROM %[1]s, (SELECT id, row_number() OVER () AS nth FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $3::integer) ORDER BY id) AS ids) AS new
WHERE account_id = $1 AND idempotency_key = $2`

	selectKeys = "SELECT idempotency_key FROM %[1]s ORDER BY random() LIMIT $1"

	selectDocument = "SELECT body FROM documents WHERE account = $1 AND id = $2"

	account    = "acct_1042"
	replayed   = 50_000 // keys, at most, to read and replay
	widthOfRow = 800    // of a record with the answer below, its key left out
)

var (
	note   = string(bytes.Repeat([]byte("-"), 100))
	answer = server.Response{
		StatusCode: http.StatusCreated,
		Fields:     []server.Field{{Name: "Content-Type", Value: "application/json"}, {Name: "Location", Value: "/orders/4711"}},
		Body:       bytes.Repeat([]byte("x"), 500),
	}
)

// newLab makes the table in a database. Its pool has as many connections as
// there are workers.
func newLab(ctx context.Context, dsn string, adjust func(*pgx.ConnConfig), table string, workers int) (*lab, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	if adjust != nil {
		adjust(config.ConnConfig)
	}
	config.MaxConns, config.MinConns = int32(max(2, workers)), int32(workers)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	l := labOn(pool, table)
	return l, l.leases.Migrate(ctx)
}

// labOn returns a lab with stores of its own, which remember nothing.
func labOn(pool *pgxpool.Pool, table string) *lab {
	l := &lab{pool: pool, leases: pgstore.New(pool), inTx: pgstore.Transactional(pool)}
	for _, store := range []*pgstore.Store{l.leases, l.inTx} {
		store.Table, store.Logger = table, slog.New(slog.DiscardHandler) // it warns of settings that are as they should be here
	}
	return l
}

func (l *lab) table() string { return l.leases.Table }

// fill makes n records, and documents, to read and replay.
func (l *lab) fill(ctx context.Context, n int) error {
	if err := l.fillRecords(ctx, n); err != nil {
		return err
	}
	if _, err := l.pool.Exec(ctx, schema); err != nil {
		return err
	}
	_, err := l.pool.Exec(ctx, insertDocuments, account, l.finished, bytes.Repeat([]byte{1}, widthOfRow))
	return err
}

// fillRecords makes n records, all but some of them as copies of one.
func (l *lab) fillRecords(ctx context.Context, n int) (err error) {
	lately := min(1000, n/2)
	if l.lately, err = completeMany(ctx, l.leases, lately); err != nil {
		return err
	}
	if err := l.copyRecord(ctx, l.lately[0], n-lately, 0); err != nil {
		return err
	}
	if _, err := l.pool.Exec(ctx, "VACUUM ANALYZE "+l.table()); err != nil {
		return err
	}
	rows, _ := l.pool.Query(ctx, fmt.Sprintf(selectKeys, l.table()), replayed)
	l.finished, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}

// copyRecord makes n records with the answer of key, under random keys, that
// expire a while later than that one.
func (l *lab) copyRecord(ctx context.Context, key string, n int, later time.Duration) error {
	_, err := l.pool.Exec(ctx, fmt.Sprintf(copyRecord, l.table()), account, key, n, later)
	return err
}

// completeMany completes n operations and returns their keys.
func completeMany(ctx context.Context, store server.Store, n int) ([]string, error) {
	const workers = 16
	var (
		running sync.WaitGroup
		errs    [workers]error
		keys    = make([]string, n)
	)
	for w := range workers {
		running.Go(func() {
			for i := w; i < n && errs[w] == nil; i += workers {
				keys[i] = uuid.NewString()
				errs[w] = complete(ctx, store, keys[i])
			}
		})
	}
	running.Wait()
	return keys, errors.Join(errs[:]...)
}

func (l *lab) kinds() []kind {
	return []kind{
		{bare, bare, l.bare},
		{transactional, bare, l.transactional},
		{lease, bare, l.lease},
		{read, read, l.read},
		{replay, read, l.replay(l.leases, l.finished)},
		{replayInTx, read, l.replay(l.inTx, l.finished)},
		{rememberedReplay, read, l.replay(l.leases, l.lately)},
	}
}

// insert is the business of a transaction.
func insert(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, insertOrder, account, int64(1999), note)
	return err
}

// bare is what an application does without any of this.
func (l *lab) bare(ctx context.Context) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error { return insert(ctx, tx) })
}

// transactional is the same with a stored answer.
func (l *lab) transactional(ctx context.Context) error {
	claim, err := l.inTx.Claim(ctx, request(uuid.NewString()))
	if err != nil {
		return err
	}
	if err := insert(ctx, pgstore.Tx(claim.Lease.Context(ctx))); err != nil {
		return err
	}
	_, err = claim.Lease.Complete(ctx, answer, ttl)
	return err
}

// lease is an effect elsewhere that takes no time.
func (l *lab) lease(ctx context.Context) error { return complete(ctx, l.leases, uuid.NewString()) }

func complete(ctx context.Context, store server.Store, key string) error {
	claim, err := store.Claim(ctx, request(key))
	if err != nil {
		return err
	}
	_, err = claim.Lease.Complete(ctx, answer, ttl)
	return err
}

func (l *lab) read(ctx context.Context) error {
	var body []byte
	return l.pool.QueryRow(ctx, selectDocument, account, l.finished[rand.N(len(l.finished))]).Scan(&body)
}

// replay claims completed keys in turn, so that of many none is remembered when
// its turn comes again.
func (l *lab) replay(store server.Store, keys []string) operation {
	var turn atomic.Uint64
	return func(ctx context.Context) error {
		claim, err := store.Claim(ctx, request(keys[turn.Add(1)%uint64(len(keys))]))
		if err != nil {
			return err
		}
		if claim.Record.Response == nil || len(claim.Record.Response.Body) != len(answer.Body) {
			return fmt.Errorf("not replayed: %+v", claim.Record)
		}
		return nil
	}
}

const ttl = 48 * time.Hour

var fingerprint = server.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte("order"))}

func request(key string) server.ClaimRequest {
	return server.ClaimRequest{
		ID: server.ID{Account: account, Key: key}, Fingerprint: fingerprint, Lease: 30 * time.Second, TTL: ttl,
	}
}
