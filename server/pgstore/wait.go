package pgstore

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemhttp/idem/server"
)

// lookEvery is the pause between two looks at the operations that are waited
// for, give or take a quarter.
const lookEvery = 100 * time.Millisecond

// poller looks for all waiting calls of a Store together. It runs while
// somebody waits, and holds no connection between two looks.
type poller struct {
	mu      sync.Mutex
	waiting map[server.ID]map[chan struct{}]bool
	stop    context.CancelFunc // nil while it does not run
}

// Wait implements [server.Waiter]: it returns when no attempt of the operation
// is seen to run any more, in whichever mode, or when it has been accepted.
func (s *Store) Wait(ctx context.Context, id server.ID) error {
	ended := s.poller.join(s, id)
	defer s.poller.leave(id, ended)
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *poller) join(s *Store, id server.ID) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop == nil {
		var ctx context.Context
		ctx, p.stop = context.WithCancel(context.Background())
		p.waiting = make(map[server.ID]map[chan struct{}]bool)
		go p.run(ctx, s)
	}
	if p.waiting[id] == nil {
		p.waiting[id] = make(map[chan struct{}]bool)
	}
	ended := make(chan struct{})
	p.waiting[id][ended] = true
	return ended
}

func (p *poller) leave(id server.ID, ended chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting[id], ended)
	if len(p.waiting[id]) == 0 {
		delete(p.waiting, id)
	}
	if len(p.waiting) == 0 && p.stop != nil {
		p.stop()
		p.stop = nil
	}
}

func (p *poller) run(ctx context.Context, s *Store) {
	for {
		pause := time.NewTimer(lookEvery*3/4 + rand.N(lookEvery/2))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		ids := p.ids()
		inFlight, err := s.inFlight(ctx, ids)
		if err != nil {
			continue // who waits finds out when he claims
		}
		for _, id := range ids {
			if !inFlight[id] {
				p.wake(id)
			}
		}
	}
}

func (p *poller) ids() []server.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]server.ID, 0, len(p.waiting))
	for id := range p.waiting {
		ids = append(ids, id)
	}
	return ids
}

func (p *poller) wake(id server.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ended := range p.waiting[id] {
		close(ended)
		delete(p.waiting[id], ended)
	}
}

// inFlight returns those of ids for which an attempt runs under a lease or,
// where locks tell, in a transaction. It takes one round trip.
//
// The records are read first: an attempt whose record becomes visible after
// that still holds its lock, or has let it go after the record was there.
func (s *Store) inFlight(ctx context.Context, ids []server.ID) (map[server.ID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	accounts, idempotencyKeys, locks := make([]string, len(ids)), make([]string, len(ids)), make([]int64, len(ids))
	byLock := make(map[int64]server.ID, len(ids))
	for i, id := range ids {
		accounts[i], idempotencyKeys[i] = id.Account, id.Key
		locks[i] = keyOf("id", s.table(), id.Account, id.Key)
		byLock[locks[i]] = id
	}
	running := make(map[server.ID]bool)
	err := s.flight(ctx, rollback, func(b *batch) {
		b.add(s.sql(selectInFlight), accounts, idempotencyKeys).rows = func(rows pgx.Rows) error {
			var id server.ID
			_, err := pgx.ForEachRow(rows, []any{&id.Account, &id.Key}, func() error {
				running[id] = true
				return nil
			})
			return err
		}
		if !s.transactional || !s.hasLocks() {
			return
		}
		b.add(selectLocked, locks).rows = func(rows pgx.Rows) error {
			var lock int64
			_, err := pgx.ForEachRow(rows, []any{&lock}, func() error {
				running[byLock[lock]] = true
				return nil
			})
			return err
		}
	})
	return running, err
}

// hasLocks reports whether a check has found advisory locks to be real.
func (s *Store) hasLocks() bool {
	known := s.checking.known.Load()
	return known != nil && known.locks
}
