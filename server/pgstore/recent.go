package pgstore

import (
	"context"
	"hash/maphash"
	"sync/atomic"

	"github.com/idemhttp/idem/server"
)

// recent are ids of operations that this process has lately completed, or seen
// completed. It is a hint, and decides nothing but which query goes first: it
// forgets an id when another needs the place, and may take one for another.
type recent struct {
	seed maphash.Seed
	sums [8192]atomic.Uint64 // at most one id for each, by its hash
}

func newRecent() *recent { return &recent{seed: maphash.MakeSeed()} }

func (r *recent) add(id server.ID) {
	sum := maphash.Comparable(r.seed, id)
	r.sums[sum%uint64(len(r.sums))].Store(sum)
}

func (r *recent) has(id server.ID) bool {
	sum := maphash.Comparable(r.seed, id)
	return r.sums[sum%uint64(len(r.sums))].Load() == sum
}

// note remembers the id of rec if that is completed.
func (r *recent) note(id server.ID, rec server.Record, err error) {
	if err == nil && rec.Status == server.Completed {
		r.add(id)
	}
}

// replay returns the record of an operation if it is completed, at the price of
// one SELECT. Otherwise, and whenever it fails, it is for a claim to find out
// what to do.
func (s *Store) replay(ctx context.Context, req server.ClaimRequest) (rec server.Record, completed bool) {
	conn, err := s.pool.acquire(ctx)
	if err != nil {
		return server.Record{}, false
	}
	defer conn.Release()
	var r *record
	b := &batch{}
	s.queueSelect(b, req.ID, &r)
	if err := b.send(ctx, conn.Conn()); err != nil || r == nil || r.expired || r.status != server.Completed {
		return server.Record{}, false
	}
	return r.reported(req.Fingerprint), true
}
