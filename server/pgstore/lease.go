package pgstore

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemhttp/idem/server"
)

// claiming is one call of Claim.
type claiming struct {
	store *Store
	facts facts
	req   server.ClaimRequest
	token uuid.UUID // by which the claim is known; never used before or again
	keys  keys
	sent  bool // something reached the database, perhaps
}

// underLease claims in lease mode: the claim is durable before it returns.
//
// A claim whose commit was not acknowledged is found by its token on the next
// try.
func (c *claiming) underLease(ctx context.Context) (claim server.Claim, err error) {
	operation := uuid.New()
	err = retry(ctx, func() error {
		var r *record
		err := c.store.flight(ctx, commit, func(b *pgx.Batch) {
			c.sent = true
			c.queueInsert(b, operation, c.req.Lease)
			c.queueSelect(b, &r)
		})
		if err != nil {
			return err
		}
		if r == nil { // it was there when we inserted, and is deleted now
			return errRetry
		}
		if r.token == c.token {
			claim = c.owned(r.operation, r.attempt)
			return nil
		}
		switch judge(r, c.req) {
		case begin:
			claim, err = c.takeOver(ctx, r, operation, 1)
		case again:
			claim, err = c.takeOver(ctx, r, r.operation, r.attempt+1)
			claim.TakenOver = r.status == server.Processing
		case report:
			claim = server.Claim{Record: r.reported(c.req.Fingerprint)}
		}
		return err
	})
	if err != nil {
		if c.sent {
			go c.withdraw(context.WithoutCancel(ctx), operation)
		}
		return server.Claim{}, err
	}
	return claim, nil
}

// queueInsert queues the claim of a key without record.
func (c *claiming) queueInsert(b *pgx.Batch, operation uuid.UUID, lease time.Duration) {
	b.Queue(c.store.sql(insertClaim), c.req.ID.Account, c.req.ID.Key, operation,
		c.req.Fingerprint.Sum[:], int16(c.req.Fingerprint.Version), c.token,
		lease.Microseconds(), lease.Microseconds()+c.req.TTL.Microseconds())
}

// queueSelect queues a look at the record, which *r will be.
func (c *claiming) queueSelect(b *pgx.Batch, r **record) {
	b.Queue(c.store.sql(selectRecord), c.req.ID.Account, c.req.ID.Key).QueryRow(func(row pgx.Row) error {
		return read(row, r)
	})
}

// takeOver claims the dead record r, unless somebody changed it first.
func (c *claiming) takeOver(ctx context.Context, r *record, operation uuid.UUID, attempt int) (server.Claim, error) {
	var claimed int64
	err := c.store.flight(ctx, commit, func(b *pgx.Batch) {
		b.Queue(c.store.sql(takeOver), c.req.ID.Account, c.req.ID.Key, operation,
			c.req.Fingerprint.Sum[:], int16(c.req.Fingerprint.Version), c.token,
			c.req.Lease.Microseconds(), c.req.Lease.Microseconds()+c.req.TTL.Microseconds(),
			int32(attempt), r.token).Exec(count(&claimed))
	})
	if err != nil {
		return server.Claim{}, err
	}
	if claimed == 0 {
		return server.Claim{}, errRetry
	}
	return c.owned(operation, attempt), nil
}

func (c *claiming) owned(operation uuid.UUID, attempt int) server.Claim {
	op := server.Operation{ID: operation, Account: c.req.ID.Account, Key: c.req.ID.Key, Attempt: attempt}
	return server.Claim{Operation: op, Lease: &lease{claiming: c, operation: op}}
}

// withdraw releases, as well as can be, what a claim that failed may have
// claimed nevertheless, or may still be about to: the insert waits for one that
// is under way, and keeps out one that arrives late.
func (c *claiming) withdraw(ctx context.Context, operation uuid.UUID) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_ = c.store.flight(ctx, commit, func(b *pgx.Batch) {
		c.queueInsert(b, operation, c.req.Lease)
		b.Queue(c.store.sql(release), c.req.ID.Account, c.req.ID.Key, c.token, c.req.TTL.Microseconds())
	})
}

// count notes how many rows a statement touched.
func count(rows *int64) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		*rows = tag.RowsAffected()
		return nil
	}
}

// lease is the ownership of an attempt in lease mode. Its record is committed,
// and holds the claim's token for as long as nobody takes it over.
type lease struct {
	*claiming

	operation server.Operation
}

// Context implements [server.Lease].
func (l *lease) Context(parent context.Context) context.Context { return parent }

// Extend implements [server.Lease].
func (l *lease) Extend(ctx context.Context, d time.Duration) error {
	extended, err := l.update(ctx, extend, l.token, d.Microseconds(), d.Microseconds()+l.req.TTL.Microseconds())
	if err == nil && extended == 0 {
		return server.ErrLeaseLost
	}
	return err
}

// Complete implements [server.Lease]. It demands the operation's id and not the
// claim's token: an owner that outlived its lease has done the work all the
// same.
func (l *lease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	completed, err := l.update(ctx, complete, l.operation.ID, ttl.Microseconds(),
		int16(r.StatusCode), encodeHeaders(r.Fields), r.Body, responseFlags(r))
	if err != nil {
		return server.Record{}, err
	}
	if completed > 0 {
		return server.Record{
			Status: server.Completed, Operation: l.operation.ID, Attempt: l.operation.Attempt, Response: &r,
		}, nil
	}
	return l.stored(ctx)
}

// stored returns the record by which somebody else completed the operation.
func (l *lease) stored(ctx context.Context) (server.Record, error) {
	var r *record
	err := retry(ctx, func() error {
		return l.store.flight(ctx, commit, func(b *pgx.Batch) { l.queueSelect(b, &r) })
	})
	if err != nil {
		return server.Record{}, err
	}
	if r == nil || r.operation != l.operation.ID || r.status != server.Completed {
		return server.Record{}, server.ErrLeaseLost
	}
	return r.reported(l.req.Fingerprint), nil
}

// Release implements [server.Lease].
func (l *lease) Release(ctx context.Context, _ error) error {
	_, err := l.update(ctx, release, l.token, l.req.TTL.Microseconds())
	return err
}

// update runs a statement that changes at most the lease's own record. It may
// be sent twice: the second time it finds nothing left to change.
func (l *lease) update(ctx context.Context, statement string, args ...any) (rows int64, err error) {
	args = append([]any{l.req.ID.Account, l.req.ID.Key}, args...)
	err = retry(ctx, func() error {
		return l.store.flight(ctx, commit, func(b *pgx.Batch) {
			b.Queue(l.store.sql(statement), args...).Exec(count(&rows))
		})
	})
	return rows, err
}
