package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemhttp/idem/server"
)

// Statements around an insert that may meet another session's.
const (
	waitBriefly  = "SET LOCAL lock_timeout = '100ms'"
	waitAsBefore = "SET LOCAL lock_timeout TO DEFAULT"
)

// enterByIndex is enter where advisory locks are not real. There the handler's
// transaction puts a record in place at its beginning, which nobody else sees
// but the unique index, and replaces it at its end. Duplicates that run into it
// give up waiting and report the attempt as in flight.
func (c *claiming) enterByIndex(ctx context.Context, conn connection) (server.Claim, error) {
	var seen *record
	r, err := c.place(ctx, conn, nil)
	if err == nil && r != nil && r.token != c.token && judge(r, c.req) != report {
		seen = r
		abort(ctx, conn.Conn())
		r, err = c.place(ctx, conn, seen)
	}
	switch {
	case isLockTimeout(err):
		leave(ctx, conn)
		return server.Claim{Record: c.running(seen, false)}, nil
	case err != nil:
		return server.Claim{}, err
	case r != nil && r.token == c.token:
		return c.placed(conn, seen)
	case r != nil && judge(r, c.req) == report:
		go leave(context.WithoutCancel(ctx), conn)
		return server.Claim{Record: r.reported(c.req.Fingerprint)}, nil
	default:
		return server.Claim{}, errRetry
	}
}

// place begins a transaction that replaces the dead record r, or none, by one
// of its own, and returns what is in place then. The record's lease is over
// from the start, so that it counts as dead in the transaction's last flight.
func (c *claiming) place(ctx context.Context, conn connection, r *record) (now *record, err error) {
	b := &batch{}
	b.begin()
	b.add(waitBriefly)
	if r != nil {
		b.add(c.store.sql(deleteDead), c.req.ID.Account, c.req.ID.Key, r.token)
	}
	c.queueInsert(b, c.next(r).ID, 0)
	b.add(waitAsBefore)
	c.queueSelect(b, &now)
	err = b.send(ctx, conn.Conn())
	return now, err
}

func (c *claiming) placed(conn connection, seen *record) (server.Claim, error) {
	claim, err := c.entered(conn, seen)
	if l, ok := claim.Lease.(*txLease); ok {
		l.placed = true
	}
	return claim, err
}

func isLockTimeout(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55P03"
}
