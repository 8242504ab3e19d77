package redisstore

import (
	"context"
	"errors"

	"github.com/idemhttp/idem/server"
)

var (
	_ server.Inspector = (*Store)(nil)
	_ server.Releaser  = (*Store)(nil)
	_ server.Inspector = (*Locked)(nil)
	_ server.Releaser  = (*Locked)(nil)
)

// Inspect implements [server.Inspector]. Redis has no records that have expired.
func (s *Store) Inspect(ctx context.Context, id server.ID) (server.Entry, error) {
	h := holder{store: s, ticket: server.Ticket{Operation: server.Operation{Account: id.Account, Key: id.Key}}}
	r, err := h.run(ctx, inspectScript)
	if err != nil {
		return server.Entry{}, err
	}
	if exists := r.flag(); !exists {
		return server.Entry{}, r.err
	}
	e := server.Entry{SeenAt: r.time(), ExpiresAt: r.time(), CreatedAt: r.time(), CompletedAt: r.time(), LeaseUntil: r.time()}
	rec := r.record()
	if r.err != nil {
		return server.Entry{}, r.err
	}
	e.Operation = server.Operation{ID: rec.Operation, Account: id.Account, Key: id.Key, Attempt: rec.Attempt}
	e.Status = rec.Status
	if rec.Response != nil {
		e.ResponseStatus, e.NotKept = rec.Response.StatusCode, rec.Response.NotKept
	}
	return e, nil
}

// Unfinished implements [server.Inspector]. It returns [errors.ErrUnsupported]:
// Redis would have to walk through all of its keys.
func (s *Store) Unfinished(context.Context, int) ([]server.Entry, error) {
	return nil, errors.ErrUnsupported
}

// Lost implements [server.Inspector] as Unfinished does.
func (s *Store) Lost(context.Context, int) ([]server.Entry, error) {
	return nil, errors.ErrUnsupported
}

// ReleaseLost implements [server.Releaser].
func (s *Store) ReleaseLost(ctx context.Context, op server.Operation) (bool, error) {
	r, err := holder{store: s, ticket: server.Ticket{Operation: op}}.run(ctx, releaseLostScript)
	if err != nil {
		return false, err
	}
	return r.flag(), r.err
}

// Inspect implements [server.Inspector].
func (l *Locked) Inspect(ctx context.Context, id server.ID) (server.Entry, error) {
	if durable, ok := l.durable.(server.Inspector); ok {
		return durable.Inspect(ctx, id)
	}
	return server.Entry{}, errors.ErrUnsupported
}

// Unfinished implements [server.Inspector].
func (l *Locked) Unfinished(ctx context.Context, limit int) ([]server.Entry, error) {
	if durable, ok := l.durable.(server.Inspector); ok {
		return durable.Unfinished(ctx, limit)
	}
	return nil, errors.ErrUnsupported
}

// Lost implements [server.Inspector].
func (l *Locked) Lost(ctx context.Context, limit int) ([]server.Entry, error) {
	if durable, ok := l.durable.(server.Inspector); ok {
		return durable.Lost(ctx, limit)
	}
	return nil, errors.ErrUnsupported
}

// ReleaseLost implements [server.Releaser].
func (l *Locked) ReleaseLost(ctx context.Context, op server.Operation) (bool, error) {
	if durable, ok := l.durable.(server.Releaser); ok {
		return durable.ReleaseLost(ctx, op)
	}
	return false, errors.ErrUnsupported
}
