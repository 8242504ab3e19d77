package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemhttp/idem/server"
)

var (
	_ server.Finisher = (*Store)(nil)
	_ server.Finder   = (*Store)(nil)
	_ server.Acceptor = (*lease)(nil)
	_ server.Acceptor = (*txLease)(nil)
)

// Ticket implements [server.Acceptor].
func (l *lease) Ticket() server.Ticket { return l.ticket(l.operation) }

// Ticket implements [server.Acceptor]. Nobody else can use it before the
// transaction is committed.
func (l *txLease) Ticket() server.Ticket { return l.ticket(l.operation) }

func (c *claiming) ticket(op server.Operation) server.Ticket {
	return server.Ticket{Operation: op, Token: c.token, TTL: c.req.TTL}
}

// Accept implements [server.Acceptor].
func (l *lease) Accept(ctx context.Context, interim server.Response, d time.Duration) (server.Record, error) {
	accepted, err := l.store.update(ctx, l.req.ID, accept, l.token, d, d+l.req.TTL,
		int16(interim.StatusCode), encodeHeaders(interim.Fields), interim.Body, responseFlags(interim))
	if err != nil {
		return server.Record{}, err
	}
	if accepted == 0 {
		return l.store.stored(ctx, l.operation)
	}
	return server.Record{
		Status: server.Processing, Operation: l.operation.ID, Attempt: l.operation.Attempt, LeaseLeft: d, Response: &interim,
	}, nil
}

// Accept implements [server.Acceptor]: the record of the acceptance and the
// handler's effects, such as the row of a job, are one commit.
func (l *txLease) Accept(ctx context.Context, interim server.Response, d time.Duration) (server.Record, error) {
	return l.end(ctx, ended{status: server.Processing, response: &interim, lease: d, ttl: d + l.req.TTL})
}

// Finish implements [server.Finisher].
func (s *Store) Finish(ctx context.Context, t server.Ticket, r server.Response, ttl time.Duration) (server.Record, error) {
	if _, err := s.facts(ctx); err != nil {
		return server.Record{}, err
	}
	return s.complete(ctx, t.Operation, r, ttl)
}

// FinishTx is Finish in a transaction of the worker's own, so that the effects
// of the work commit together with its answer or not at all. Unless it returns
// nil the transaction has to be rolled back: with [server.ErrLeaseLost] the
// operation has ended, perhaps by an earlier delivery of the same job, and its
// effects are there already.
func (s *Store) FinishTx(ctx context.Context, tx pgx.Tx, t server.Ticket, r server.Response, ttl time.Duration) error {
	tag, err := tx.Exec(ctx, s.sql(complete), completion(t.Operation, r, ttl)...)
	if err == nil && tag.RowsAffected() == 0 {
		return server.ErrLeaseLost
	}
	return err
}

// Renew implements [server.Finisher].
func (s *Store) Renew(ctx context.Context, t server.Ticket, d time.Duration) error {
	if _, err := s.facts(ctx); err != nil {
		return err
	}
	return s.extend(ctx, idOf(t.Operation), t.Token, d, t.TTL)
}

// Find implements [server.Finder].
func (s *Store) Find(ctx context.Context, id server.ID) (server.Record, error) {
	if _, err := s.facts(ctx); err != nil {
		return server.Record{}, err
	}
	r, err := s.look(ctx, id)
	if err != nil || r == nil || r.expired {
		return server.Record{}, err
	}
	return r.reported(r.fingerprint), nil
}

func idOf(op server.Operation) server.ID { return server.ID{Account: op.Account, Key: op.Key} }
