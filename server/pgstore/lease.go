package pgstore

import (
	"context"
	"time"

	"github.com/google/uuid"

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
// try, and extended, because that commit is acknowledged only if the claim lasts.
func (c *claiming) underLease(ctx context.Context) (claim server.Claim, err error) {
	operation := uuid.New()
	tries := 0
	err = retry(ctx, func() error {
		var r *record
		tries++
		err := c.store.flight(ctx, commit, func(b *batch) {
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
			if tries > 1 {
				return c.store.extend(ctx, c.req.ID, c.token, c.req.Lease, c.req.TTL)
			}
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
func (c *claiming) queueInsert(b *batch, operation uuid.UUID, lease time.Duration) {
	b.add(c.store.sql(insertClaim), c.req.ID.Account, c.req.ID.Key, operation,
		c.req.Fingerprint.Sum[:], int16(c.req.Fingerprint.Version), c.token,
		lease, lease+c.req.TTL)
}

// queueSelect queues a look at the record of the claim.
func (c *claiming) queueSelect(b *batch, r **record) { c.store.queueSelect(b, c.req.ID, r) }

// queueSelect queues a look at the record of id, which *r will be.
func (s *Store) queueSelect(b *batch, id server.ID, r **record) {
	b.add(s.sql(selectRecord), id.Account, id.Key).record(r)
}

// takeOver claims the dead record r, unless somebody changed it first.
func (c *claiming) takeOver(ctx context.Context, r *record, operation uuid.UUID, attempt int) (server.Claim, error) {
	var claimed int64
	err := c.store.flight(ctx, commit, func(b *batch) {
		b.add(c.store.sql(takeOver), c.req.ID.Account, c.req.ID.Key, operation,
			c.req.Fingerprint.Sum[:], int16(c.req.Fingerprint.Version), c.token,
			c.req.Lease, c.req.Lease+c.req.TTL,
			int32(attempt), r.token).count(&claimed)
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
	_ = c.store.flight(ctx, commit, func(b *batch) {
		c.queueInsert(b, operation, c.req.Lease)
		b.add(c.store.sql(release), c.req.ID.Account, c.req.ID.Key, c.token, c.req.TTL)
	})
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
	return l.store.extend(ctx, l.req.ID, l.token, d, l.req.TTL)
}

// Complete implements [server.Lease].
func (l *lease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	rec, err := l.store.complete(ctx, l.operation, r, ttl)
	l.store.recent.note(l.req.ID, rec, err)
	return rec, err
}

// Release implements [server.Lease].
func (l *lease) Release(ctx context.Context, _ error) error {
	_, err := l.store.update(ctx, l.req.ID, release, l.token, l.req.TTL)
	return err
}

// extend moves the end of the lease with the token, and the expiry, which is the
// TTL later.
func (s *Store) extend(ctx context.Context, id server.ID, token uuid.UUID, d, ttl time.Duration) error {
	extended, err := s.update(ctx, id, extend, token, d, d+ttl)
	if err == nil && extended == 0 {
		return server.ErrLeaseLost
	}
	return err
}

// complete stores the answer of an operation that has none. It demands the
// operation's id and not the claim's token: an owner that outlived its lease has
// done the work all the same.
func (s *Store) complete(ctx context.Context, op server.Operation, r server.Response, ttl time.Duration) (server.Record, error) {
	completed, err := s.update(ctx, idOf(op), complete, completion(op, r, ttl)[2:]...)
	if err != nil {
		return server.Record{}, err
	}
	if completed == 0 {
		return s.stored(ctx, op)
	}
	return server.Record{Status: server.Completed, Operation: op.ID, Attempt: op.Attempt, Response: &r}, nil
}

// completion returns the arguments of the statement complete.
func completion(op server.Operation, r server.Response, ttl time.Duration) []any {
	return []any{
		op.Account, op.Key, op.ID, ttl,
		int16(r.StatusCode), encodeHeaders(r.Fields), r.Body, responseFlags(r),
	}
}

// stored returns the record by which somebody else completed the operation.
func (s *Store) stored(ctx context.Context, op server.Operation) (server.Record, error) {
	r, err := s.confirmed(ctx, idOf(op))
	if err != nil {
		return server.Record{}, err
	}
	if r == nil || r.operation != op.ID || r.status != server.Completed {
		return server.Record{}, server.ErrLeaseLost
	}
	return r.reported(r.fingerprint), nil
}

// look returns the record of id, live or dead, or nil.
func (s *Store) look(ctx context.Context, id server.ID) (r *record, err error) {
	err = retry(ctx, func() error {
		return s.flight(ctx, rollback, func(b *batch) { s.queueSelect(b, id, &r) })
	})
	return r, err
}

// update runs a statement that changes at most the record of id. It may be sent
// twice: the second time it finds nothing left to change.
func (s *Store) update(ctx context.Context, id server.ID, statement string, args ...any) (int64, error) {
	args = append([]any{id.Account, id.Key}, args...)
	var rows int64
	err := retry(ctx, func() error {
		return s.flight(ctx, commit, func(b *batch) {
			b.add(s.sql(statement), args...).count(&rows)
		})
	})
	if err != nil {
		return 0, err
	}
	return rows, nil
}
