// Package memstore keeps idempotency records in memory: for tests, for
// development and for services of one process that may forget their keys when
// they stop.
//
// It gives every guarantee of [server.Store] for as long as the process lives.
// Two processes do not see each other's records.
package memstore

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/server"
)

// ErrFull is what a claim of a new key gets while the store is full of live
// records. They are never dropped to make room.
var ErrFull = errors.New("memstore: full of live records; raise MaxRecords or MaxBytes, or shorten the TTL")

// Store is a [server.Store] in memory. The zero value is ready to use. A Store
// is safe for concurrent use, must not be copied, and its fields must not be
// changed after first use.
//
// Expired records make room for new ones when the store is full; [Store.Run]
// deletes them earlier.
type Store struct {
	// MaxRecords is how many records are held. Zero means 1,000,000.
	MaxRecords int
	// MaxBytes is how many bytes of records are held before new keys are
	// refused; operations that are under way then still complete. Zero means
	// 256 MiB.
	MaxBytes int64

	records, bytes atomic.Int64
	shards         [64]shard
}

var (
	_ server.Store    = (*Store)(nil)
	_ server.Finisher = (*Store)(nil)
	_ server.Finder   = (*Store)(nil)
	_ server.Cleaner  = (*Store)(nil)
	_ server.Stater   = (*Store)(nil)
)

// roomMade is how many expired records a claim deletes if it finds the store
// full.
const roomMade = 100

// seed spreads the ids over the shards.
var seed = maphash.MakeSeed()

// shard holds the records of some ids. Nobody holds two of its locks at once.
type shard struct {
	mu       sync.Mutex
	records  map[server.ID]*record
	byExpiry expiryHeap // the same records, soonest expiry first
}

// record is one operation. It is guarded by its shard's lock, and is in the
// shard for as long as it can be claimed, extended or completed.
type record struct {
	id          server.ID
	fingerprint server.Fingerprint
	operation   uuid.UUID
	status      server.Status
	attempt     int
	owner       *lease // of the running attempt, or the one that was accepted; nil if there is none
	createdAt   time.Time
	completedAt time.Time
	leaseUntil  time.Time
	expiresAt   time.Time
	response    *server.Response // final, or interim
	size        int64
	heapIndex   int
}

func (s *Store) shard(id server.ID) *shard {
	return &s.shards[maphash.Comparable(seed, id)%uint64(len(s.shards))]
}

// Claim implements [server.Store].
func (s *Store) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	if err := s.check(req); err != nil {
		return server.Claim{}, err
	}
	if ctx.Err() != nil {
		return server.Claim{}, context.Cause(ctx)
	}
	claim, err := s.claim(req)
	if errors.Is(err, ErrFull) && s.cleanup(ctx, roomMade) > 0 {
		claim, err = s.claim(req)
	}
	return claim, err
}

func (s *Store) check(req server.ClaimRequest) error {
	if s.MaxRecords < 0 || s.MaxBytes < 0 {
		return errors.New("memstore: MaxRecords and MaxBytes must not be negative")
	}
	if req.Lease < time.Millisecond || req.TTL < time.Millisecond {
		return fmt.Errorf("memstore: lease (%v) and TTL (%v) must be at least a millisecond", req.Lease, req.TTL)
	}
	return nil
}

func (s *Store) claim(req server.ClaimRequest) (server.Claim, error) {
	sh := s.shard(req.ID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	rec := sh.records[req.ID]
	if rec != nil && !now.Before(rec.expiresAt) {
		s.remove(sh, rec)
		rec = nil
	}
	if rec == nil {
		rec = &record{id: req.ID, operation: uuid.New(), createdAt: now, size: recordSize(req.ID)}
		if !s.add(sh, rec) {
			return server.Claim{}, ErrFull
		}
	} else if !rec.claimable(req, now) {
		return server.Claim{Record: rec.report(req.Fingerprint, now)}, nil
	}
	takenOver := rec.status == server.Processing
	rec.attempt++
	l := &lease{store: s, shard: sh, record: rec, ttl: req.TTL, operation: server.Operation{
		ID: rec.operation, Account: req.ID.Account, Key: req.ID.Key, Attempt: rec.attempt,
	}}
	rec.fingerprint, rec.status, rec.owner = req.Fingerprint, server.Processing, l
	s.answer(rec, nil)
	sh.extend(rec, now.Add(req.Lease))
	return server.Claim{Lease: l, TakenOver: takenOver, Operation: l.operation}, nil
}

// claimable reports whether req may run the operation of a live record again.
func (r *record) claimable(req server.ClaimRequest, now time.Time) bool {
	if r.fingerprint.Differs(req.Fingerprint) {
		return false
	}
	ownerLost := r.status == server.Processing && !now.Before(r.leaseUntil)
	return r.status == server.Failed || ownerLost && req.Takeover == server.Rerun
}

// report is what a claim with the given fingerprint is told of r.
func (r *record) report(f server.Fingerprint, now time.Time) server.Record {
	rec := server.Record{
		Status: r.status, Reused: r.fingerprint.Differs(f), Operation: r.operation, Attempt: r.attempt, Response: r.response,
	}
	if r.status == server.Processing {
		rec.LeaseLeft = r.leaseUntil.Sub(now)
	}
	return rec
}

// Run deletes expired records every minute until ctx is done, and returns why
// it is.
func (s *Store) Run(ctx context.Context) error {
	return (&server.Cleanup{Store: s}).Run(ctx)
}

// Cleanup implements [server.Cleaner].
func (s *Store) Cleanup(ctx context.Context, limit int) (int, error) {
	deleted := s.cleanup(ctx, limit)
	if ctx.Err() != nil {
		return deleted, context.Cause(ctx)
	}
	return deleted, nil
}

func (s *Store) cleanup(ctx context.Context, limit int) (deleted int) {
	for i := range s.shards {
		if ctx.Err() != nil || deleted >= limit {
			break
		}
		deleted += s.cleanupShard(&s.shards[i], limit-deleted)
	}
	return deleted
}

func (s *Store) cleanupShard(sh *shard, limit int) (deleted int) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for deleted < limit && len(sh.byExpiry) > 0 && !now.Before(sh.byExpiry[0].expiresAt) {
		s.remove(sh, sh.byExpiry[0])
		deleted++
	}
	return deleted
}

// Stats implements [server.Stater]. Its bytes are those that MaxBytes bounds.
func (s *Store) Stats(context.Context) (server.Stats, error) {
	stats := server.Stats{Bytes: s.bytes.Load()}
	for i := range s.shards {
		s.shards[i].count(&stats)
	}
	return stats, nil
}

func (sh *shard) count(stats *server.Stats) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	for _, rec := range sh.byExpiry {
		switch rec.status {
		case server.Processing:
			stats.Processing++
			stats.OldestProcessing = max(stats.OldestProcessing, now.Sub(rec.createdAt))
		case server.Completed:
			stats.Completed++
		case server.Failed:
			stats.Failed++
		}
		stats.CleanupLag = max(stats.CleanupLag, now.Sub(rec.expiresAt))
	}
}

// Find implements [server.Finder].
func (s *Store) Find(ctx context.Context, id server.ID) (server.Record, error) {
	if ctx.Err() != nil {
		return server.Record{}, context.Cause(ctx)
	}
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Now()
	rec := sh.records[id]
	if rec == nil || !now.Before(rec.expiresAt) {
		return server.Record{}, nil
	}
	return rec.report(rec.fingerprint, now), nil
}

// Finish implements [server.Finisher].
func (s *Store) Finish(ctx context.Context, t server.Ticket, r server.Response, ttl time.Duration) (server.Record, error) {
	if ctx.Err() != nil {
		return server.Record{}, context.Cause(ctx)
	}
	sh := s.shard(server.ID{Account: t.Account, Key: t.Key})
	sh.mu.Lock()
	defer sh.mu.Unlock()
	rec := sh.ticketed(t)
	if rec == nil {
		return server.Record{}, server.ErrLeaseLost
	}
	return s.complete(sh, rec, r, ttl), nil
}

// Renew implements [server.Finisher].
func (s *Store) Renew(ctx context.Context, t server.Ticket, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	sh := s.shard(server.ID{Account: t.Account, Key: t.Key})
	sh.mu.Lock()
	defer sh.mu.Unlock()
	rec := sh.ticketed(t)
	if rec == nil || rec.owner == nil || rec.owner.token != t.Token {
		return server.ErrLeaseLost
	}
	sh.extend(rec, time.Now().Add(d))
	return nil
}

// ticketed returns the record of the operation that t is for, or nil.
func (sh *shard) ticketed(t server.Ticket) *record {
	rec := sh.records[server.ID{Account: t.Account, Key: t.Key}]
	if rec == nil || rec.operation != t.ID {
		return nil
	}
	return rec
}

// complete ends an operation that has not ended, and reports it.
func (s *Store) complete(sh *shard, rec *record, r server.Response, ttl time.Duration) server.Record {
	now := time.Now()
	if rec.status != server.Completed {
		rec.status, rec.owner, rec.completedAt = server.Completed, nil, now
		s.answer(rec, &r)
		sh.expireAt(rec, now.Add(ttl))
	}
	return rec.report(rec.fingerprint, now)
}

// lease is the ownership of one attempt. The record knows its latest owner.
type lease struct {
	store     *Store
	shard     *shard
	record    *record
	operation server.Operation
	ttl       time.Duration // of the claim
	token     uuid.UUID     // of the ticket, once there is one; guarded by the shard's lock
}

var _ server.Acceptor = (*lease)(nil)

// Context implements [server.Lease].
func (l *lease) Context(parent context.Context) context.Context { return parent }

// Extend implements [server.Lease].
func (l *lease) Extend(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	if !l.owns() {
		return server.ErrLeaseLost
	}
	l.shard.extend(l.record, time.Now().Add(d))
	return nil
}

// Complete implements [server.Lease].
func (l *lease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	if ctx.Err() != nil {
		return server.Record{}, context.Cause(ctx)
	}
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	if !l.shard.holds(l.record) {
		return server.Record{}, server.ErrLeaseLost
	}
	return l.store.complete(l.shard, l.record, r, ttl), nil
}

// Ticket implements [server.Acceptor].
func (l *lease) Ticket() server.Ticket {
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	if l.token == uuid.Nil {
		l.token = uuid.New()
	}
	return server.Ticket{Operation: l.operation, Token: l.token, TTL: l.ttl}
}

// Accept implements [server.Acceptor].
func (l *lease) Accept(ctx context.Context, interim server.Response, d time.Duration) (server.Record, error) {
	if ctx.Err() != nil {
		return server.Record{}, context.Cause(ctx)
	}
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	now, completed := time.Now(), l.shard.holds(l.record) && l.record.status == server.Completed
	if !completed && !l.owns() {
		return server.Record{}, server.ErrLeaseLost
	}
	if !completed {
		l.store.answer(l.record, &interim)
		if end := now.Add(d); end.After(l.record.leaseUntil) {
			l.shard.extend(l.record, end)
		}
	}
	return l.record.report(l.record.fingerprint, now), nil
}

// Release implements [server.Lease].
func (l *lease) Release(ctx context.Context, _ error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.shard.mu.Lock()
	defer l.shard.mu.Unlock()
	if l.owns() {
		l.store.release(l.record)
		l.shard.expireAt(l.record, time.Now().Add(l.ttl))
	}
	return nil
}

// release ends an attempt without an answer.
func (s *Store) release(rec *record) {
	rec.status, rec.owner = server.Failed, nil
	s.answer(rec, nil)
}

// owns reports whether l is still the lease of a running attempt.
func (l *lease) owns() bool { return l.shard.holds(l.record) && l.record.owner == l }

func (sh *shard) holds(rec *record) bool { return sh.records[rec.id] == rec }

// extend moves the end of the lease of a record that has an owner.
func (sh *shard) extend(rec *record, leaseUntil time.Time) {
	rec.leaseUntil = leaseUntil
	sh.expireAt(rec, leaseUntil.Add(rec.owner.ttl))
}

func (sh *shard) expireAt(rec *record, t time.Time) {
	rec.expiresAt = t
	heap.Fix(&sh.byExpiry, rec.heapIndex)
}

// add puts rec into its shard unless the store is full.
func (s *Store) add(sh *shard, rec *record) bool {
	records, bytes := s.records.Add(1), s.bytes.Add(rec.size)
	if records > int64(cmp.Or(s.MaxRecords, 1_000_000)) || bytes > cmp.Or(s.MaxBytes, 256<<20) {
		s.records.Add(-1)
		s.bytes.Add(-rec.size)
		return false
	}
	if sh.records == nil {
		sh.records = make(map[server.ID]*record)
	}
	sh.records[rec.id] = rec
	heap.Push(&sh.byExpiry, rec)
	return true
}

// answer makes r, which may be nil, the response of rec.
func (s *Store) answer(rec *record, r *server.Response) {
	more := responseSize(r) - responseSize(rec.response)
	rec.response = r
	rec.size += more
	s.bytes.Add(more)
}

func (s *Store) remove(sh *shard, rec *record) {
	delete(sh.records, rec.id)
	heap.Remove(&sh.byExpiry, rec.heapIndex)
	s.records.Add(-1)
	s.bytes.Add(-rec.size)
}

// recordSize estimates the memory of a record without response.
func recordSize(id server.ID) int64 {
	const record, mapEntry = 256, 96
	return int64(record + mapEntry + len(id.Account) + len(id.Key))
}

func responseSize(r *server.Response) int64 {
	if r == nil {
		return 0
	}
	const response, field = 80, 32
	n := response + cap(r.Body)
	for _, f := range r.Fields {
		n += field + len(f.Name) + len(f.Value)
	}
	return int64(n)
}

// expiryHeap is a [heap.Interface] whose first record expires first. Each
// record knows its place.
type expiryHeap []*record

func (h *expiryHeap) Len() int           { return len(*h) }
func (h *expiryHeap) Less(i, j int) bool { return (*h)[i].expiresAt.Before((*h)[j].expiresAt) }

func (h *expiryHeap) Swap(i, j int) {
	(*h)[i], (*h)[j] = (*h)[j], (*h)[i]
	(*h)[i].heapIndex, (*h)[j].heapIndex = i, j
}

func (h *expiryHeap) Push(x any) {
	rec, _ := x.(*record) // never anything else
	rec.heapIndex = len(*h)
	*h = append(*h, rec)
}

func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	rec := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return rec
}
