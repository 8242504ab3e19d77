// Package pgledger keeps the books of the reference server in PostgreSQL: the
// orders, the stock that they are taken from, the payments, and the book of the
// provider that is charged for them. [Migrate] makes the tables.
//
// Orders are for a route whose store is transactional. An order and what it
// takes from the stock are written in the transaction of its operation, and
// commit together with the answer. Payments are for a route under leases: the
// charge is made elsewhere, where no transaction of ours reaches, and is
// recognised there by its downstream key when the operation runs again.
package pgledger

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemhttp/idem/server/pgstore"
	"github.com/idemhttp/idem/server/refserver"
)

//go:embed schema.sql
var schema string

const (
	// migrating makes processes that start at once do it one after another.
	migrating = `SELECT pg_advisory_xact_lock(hashtext('refserver migration'))`

	addStock = `INSERT INTO refserver.stock (sku, qty) VALUES ($1, $2) ON CONFLICT (sku) DO NOTHING`

	// takeFromStock fails if there is not enough, and leaves alone what is
	// not listed.
	takeFromStock = `UPDATE refserver.stock SET qty = qty - $2 WHERE sku = $1`

	insertOrder = `
INSERT INTO refserver.orders (account_id, order_id, amount, currency, items, status)
VALUES ($1, $2, $3, $4, $5::jsonb, $6)`

	insertPayment = `
INSERT INTO refserver.payments (account_id, payment_id, amount, currency, items, status)
VALUES ($1, $2, $3, $4, $5::jsonb, $6)
ON CONFLICT (account_id, payment_id) DO NOTHING`

	selectEntry = `SELECT order_id, payment_id, account_id, amount, currency, items, status FROM refserver.ledger `
	selectAll   = selectEntry + `WHERE account_id = $1 ORDER BY booked_at, id`
	selectOne   = selectEntry + `WHERE account_id = $1 AND id = $2`

	charge = `
INSERT INTO refserver.provider_charges AS c (charge_key, payment_id, amount, currency)
VALUES ($1, gen_random_uuid()::text, $2, $3)
ON CONFLICT (charge_key) DO UPDATE SET requests = c.requests + 1
RETURNING payment_id`
)

// Migrate makes the tables, in a schema called refserver, and lays in
// [refserver.DemoStock]. What is there already stays as it is. Any number of
// processes may do so at the same time.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, sql := range []string{migrating, schema} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		b := &pgx.Batch{}
		for sku, qty := range refserver.DemoStock() {
			b.Queue(addStock, sku, qty)
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

// Ledger is a [refserver.Ledger].
type Ledger struct{ pool *pgxpool.Pool }

// New returns the ledger in the database of pool.
func New(pool *pgxpool.Pool) *Ledger { return &Ledger{pool} }

// Add implements [refserver.Ledger]. An order is booked in the transaction of
// its operation; without one, it is refused with [pgstore.ErrNoTx].
func (l *Ledger) Add(ctx context.Context, e refserver.Entry) error {
	items, err := json.Marshal(e.Items)
	if err != nil {
		return err
	}
	if e.OrderID == "" {
		_, err := l.pool.Exec(ctx, insertPayment, e.AccountID, e.PaymentID, e.Amount, e.Currency, string(items), e.Status)
		return err
	}
	b := &pgx.Batch{}
	b.Queue(insertOrder, e.AccountID, e.OrderID, e.Amount, e.Currency, string(items), e.Status)
	for _, item := range slices.SortedFunc(slices.Values(e.Items), bySKU) { // in one order, so that no two orders wait for each other
		b.Queue(takeFromStock, item.SKU, item.Qty)
	}
	return explain(pgstore.Tx(ctx).SendBatch(ctx, b).Close())
}

func bySKU(a, b refserver.Item) int { return cmp.Compare(a.SKU, b.SKU) }

// explain gives the business rule that the database enforces its name.
func explain(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "23514" && pgErr.TableName == "stock" { // check violation
		return refserver.ErrOutOfStock
	}
	return err
}

// List implements [refserver.Ledger].
func (l *Ledger) List(ctx context.Context, account string) ([]refserver.Entry, error) {
	rows, _ := l.pool.Query(ctx, selectAll, account)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[refserver.Entry])
}

// Find implements [refserver.Ledger].
func (l *Ledger) Find(ctx context.Context, account, id string) (refserver.Entry, bool, error) {
	rows, _ := l.pool.Query(ctx, selectOne, account, id)
	e, err := pgx.CollectOneRow(rows, pgx.RowToStructByPos[refserver.Entry])
	if errors.Is(err, pgx.ErrNoRows) {
		return e, false, nil
	}
	return e, err == nil, err
}

// Provider is a [refserver.Provider] whose book is a table. It stands for a
// service elsewhere: each charge is a statement and a commit of its own, which
// nothing that becomes of the operation takes back.
type Provider struct{ pool *pgxpool.Pool }

// NewProvider returns the provider whose book is in the database of pool.
func NewProvider(pool *pgxpool.Pool) *Provider { return &Provider{pool} }

// Charge implements [refserver.Provider].
func (p *Provider) Charge(ctx context.Context, key string, e refserver.Entry) (id string, err error) {
	err = p.pool.QueryRow(ctx, charge, key, e.Amount, e.Currency).Scan(&id)
	return id, err
}
