package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemhttp/idem/server"
)

var (
	_ server.Inspector = (*Store)(nil)
	_ server.Releaser  = (*Store)(nil)
)

// Statements for operators.
const (
	// selectEntries begins a statement that shows records.
	selectEntries = `
SELECT account_id, idempotency_key, operation_id, status, attempt, response_status, response_flags,
       created_at, lease_until, completed_at, expires_at, clock_timestamp()
FROM {table}
WHERE `

	selectEntry = selectEntries + `account_id = $1 AND idempotency_key = $2`

	selectUnfinished = selectEntries + `status = 'processing' AND expires_at > clock_timestamp()
ORDER BY created_at LIMIT $1`

	selectLost = selectEntries + `status = 'processing' AND expires_at > clock_timestamp() AND lease_until <= clock_timestamp()
ORDER BY created_at LIMIT $1`

	// releaseLost gives up the operation $3. Its expiry is the TTL after the
	// end of its lease already.
	releaseLost = `
UPDATE {table}
SET status = 'failed', lease_until = NULL,
    response_status = NULL, response_headers = NULL, response_body = NULL, response_flags = 0
WHERE account_id = $1 AND idempotency_key = $2 AND operation_id = $3::uuid
  AND status = 'processing' AND lease_until <= clock_timestamp()`
)

// Inspect implements [server.Inspector]. It does not see what runs in a
// transaction that is not committed.
func (s *Store) Inspect(ctx context.Context, id server.ID) (server.Entry, error) {
	entries, err := s.entries(ctx, selectEntry, id.Account, id.Key)
	if err != nil || len(entries) == 0 {
		return server.Entry{}, err
	}
	return entries[0], nil
}

// Unfinished implements [server.Inspector]. It reads the whole table, but not
// the answers in it, and does not see what runs in a transaction that is not
// committed.
func (s *Store) Unfinished(ctx context.Context, limit int) ([]server.Entry, error) {
	return s.entries(ctx, selectUnfinished, int64(max(0, limit)))
}

// Lost implements [server.Inspector]. It reads the whole table, but not the
// answers in it.
func (s *Store) Lost(ctx context.Context, limit int) ([]server.Entry, error) {
	return s.entries(ctx, selectLost, int64(max(0, limit)))
}

// ReleaseLost implements [server.Releaser]. It is sent once: of a second try one
// could not tell whether the first had released the operation.
func (s *Store) ReleaseLost(ctx context.Context, op server.Operation) (bool, error) {
	if _, err := s.facts(ctx); err != nil {
		return false, err
	}
	var released int64
	err := s.flight(ctx, commit, func(b *batch) {
		b.add(s.sql(releaseLost), op.Account, op.Key, op.ID).count(&released)
	})
	if err != nil {
		return false, explain(err)
	}
	return released > 0, nil
}

func (s *Store) entries(ctx context.Context, statement string, args ...any) (entries []server.Entry, err error) {
	if _, err := s.facts(ctx); err != nil {
		return nil, err
	}
	err = retry(ctx, func() error {
		return s.flight(ctx, rollback, func(b *batch) {
			b.add(s.sql(statement), args...).rows = func(rows pgx.Rows) (err error) {
				entries, err = pgx.CollectRows(rows, readEntry)
				return err
			}
		})
	})
	return entries, err
}

func readEntry(row pgx.CollectableRow) (e server.Entry, err error) {
	var (
		status                string
		attempt, flags        int32
		responseStatus        *int16
		leaseUntil, completed *time.Time
	)
	err = row.Scan(&e.Account, &e.Key, &e.ID, &status, &attempt, &responseStatus, &flags,
		&e.CreatedAt, &leaseUntil, &completed, &e.ExpiresAt, &e.SeenAt)
	if err != nil {
		return e, err
	}
	e.Status, err = parseStatus(status)
	e.Attempt, e.NotKept = int(attempt), flags&flagNotKept != 0
	if responseStatus != nil {
		e.ResponseStatus = int(*responseStatus)
	}
	if leaseUntil != nil {
		e.LeaseUntil = *leaseUntil
	}
	if completed != nil {
		e.CompletedAt = *completed
	}
	return e, err
}
