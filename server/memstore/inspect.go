package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/idemhttp/idem/server"
)

var (
	_ server.Inspector = (*Store)(nil)
	_ server.Releaser  = (*Store)(nil)
)

// Inspect implements [server.Inspector].
func (s *Store) Inspect(ctx context.Context, id server.ID) (server.Entry, error) {
	if ctx.Err() != nil {
		return server.Entry{}, context.Cause(ctx)
	}
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	rec := sh.records[id]
	if rec == nil {
		return server.Entry{}, nil
	}
	return rec.entry(time.Now()), nil
}

// Unfinished implements [server.Inspector].
func (s *Store) Unfinished(ctx context.Context, limit int) ([]server.Entry, error) {
	return s.list(ctx, limit, func(e server.Entry) bool { return e.Status == server.Processing && !e.Expired() })
}

// Lost implements [server.Inspector].
func (s *Store) Lost(ctx context.Context, limit int) ([]server.Entry, error) {
	return s.list(ctx, limit, func(e server.Entry) bool { return e.Lost() && !e.Expired() })
}

// list returns those records that belong, the oldest first.
func (s *Store) list(ctx context.Context, limit int, belongs func(server.Entry) bool) ([]server.Entry, error) {
	var entries []server.Entry
	for i := range s.shards {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		entries = s.shards[i].list(entries, belongs)
	}
	slices.SortFunc(entries, func(a, b server.Entry) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return entries[:min(len(entries), max(0, limit))], nil
}

// list appends those records of the shard that belong.
func (sh *shard) list(entries []server.Entry, belongs func(server.Entry) bool) []server.Entry {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for _, rec := range sh.byExpiry {
		if e := rec.entry(now); belongs(e) {
			entries = append(entries, e)
		}
	}
	return entries
}

// entry is r as an operator sees it.
func (r *record) entry(now time.Time) server.Entry {
	e := server.Entry{
		Operation: server.Operation{ID: r.operation, Account: r.id.Account, Key: r.id.Key, Attempt: r.attempt},
		Status:    r.status,
		CreatedAt: r.createdAt,
		ExpiresAt: r.expiresAt,
		SeenAt:    now,
	}
	if r.response != nil {
		e.ResponseStatus, e.NotKept = r.response.StatusCode, r.response.NotKept
	}
	switch r.status {
	case server.Processing:
		e.LeaseUntil = r.leaseUntil
	case server.Completed:
		e.CompletedAt = r.completedAt
	case server.Failed:
	}
	return e
}

// ReleaseLost implements [server.Releaser].
func (s *Store) ReleaseLost(ctx context.Context, op server.Operation) (bool, error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	id := server.ID{Account: op.Account, Key: op.Key}
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	rec := sh.records[id]
	if rec == nil || rec.operation != op.ID || !rec.entry(time.Now()).Lost() {
		return false, nil
	}
	s.release(rec)
	return true, nil
}
