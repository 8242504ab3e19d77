package server

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// attempt is one execution of an operation, by the owner of claim.
type attempt struct {
	*execution

	claim      Claim
	lease, ttl time.Duration
	timeout    time.Duration // of each call of the store
}

// newAttempt returns the attempt that claim entitles to.
func newAttempt(claim Claim, lease, ttl, timeout time.Duration) attempt {
	_, atomic := claim.Lease.(AtomicLease)
	e := &execution{Operation: claim.Operation, atomic: atomic}
	return attempt{execution: e, claim: claim, lease: lease, ttl: ttl, timeout: timeout}
}

// answer is what an attempt ends with: its final response or, if lease is not
// zero, an interim one, and the lease of the worker that goes on.
type answer struct {
	Response
	lease time.Duration
}

// errEnded says that the record had expired before the attempt was completed:
// the key has been used again, or could be.
var errEnded = errors.New("idem: the record had expired before the operation was completed")

// complete returns the record that decided, whoever completed it. Unless the
// attempt is atomic, and nothing of it remains, that is a record of the same
// operation. It is completed, or as r has made it.
func (a attempt) complete(ctx context.Context, r answer) (Record, error) {
	rec, err := a.store(ctx, r)
	if a.atomic && undecided(err) {
		_ = a.release(ctx, err) // it is not tried again, and may still hold its transaction
	}
	if err != nil {
		return Record{}, err
	}
	foreign := rec.Reused || rec.Operation != a.claim.Operation.ID
	ended := rec.Status == Completed || rec.Status == Processing && r.lease > 0
	if !ended || rec.Response == nil || foreign && !a.atomic {
		return Record{}, errEnded
	}
	return rec, nil
}

func (a attempt) store(ctx context.Context, r answer) (Record, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if r.lease > 0 {
		return a.acceptor.Accept(ctx, r.Response, r.lease)
	}
	return a.claim.Lease.Complete(ctx, r.Response, a.ttl)
}

// undecided reports whether an error of complete leaves open whether the
// response was stored.
func undecided(err error) bool {
	for _, decided := range []error{errEnded, ErrLeaseLost, ErrRestart, ErrRolledBack} {
		if errors.Is(err, decided) {
			return false
		}
	}
	return err != nil
}

// completeLate goes on completing until that is decided, ctx is done or the
// record must have expired. It keeps the lease if the store lets it.
func (a attempt) completeLate(ctx context.Context, r answer) (Record, error) {
	expiry := time.Now().Add(a.lease + a.ttl)
	longest := min(5*time.Second, a.lease/3)
	for pause := min(100*time.Millisecond, longest); ; pause = min(2*pause, longest) {
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return Record{}, context.Cause(ctx)
		}
		rec, err := a.complete(ctx, r)
		if !undecided(err) {
			return rec, err
		}
		switch extendErr := a.extend(ctx); {
		case extendErr == nil:
			expiry = time.Now().Add(a.lease + a.ttl)
		case time.Now().After(expiry):
			return Record{}, err
		}
	}
}

// release gives the operation up, unless its lease has to end by itself.
func (a attempt) release(ctx context.Context, cause error) error {
	if a.abandoned.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.claim.Lease.Release(ctx, cause)
}

// failure is the result of an attempt without a final answer.
func (a attempt) failure() Result {
	if a.abandoned.Load() {
		return ResultAbandoned
	}
	return ResultFailed
}

// extend moves the end of the lease. That of a worker who may be at it already
// is not cut short.
func (a attempt) extend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.claim.Lease.Extend(ctx, max(a.lease, a.accepted()))
}

// keep extends the lease whenever a third of it is over, until it is lost or
// stop is called. report is told what came of each extension, and nothing any
// more once stop has returned.
func (a attempt) keep(ctx context.Context, report func(error)) (stop func()) {
	var (
		mu      sync.Mutex
		stopped bool
		timer   *time.Timer
	)
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(a.lease/3, func() {
		err := a.extend(ctx)
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		report(err)
		if !errors.Is(err, ErrLeaseLost) {
			timer.Reset(a.lease / 3)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// same reports whether two responses read the same.
func same(a, b Response) bool {
	return a.StatusCode == b.StatusCode && a.NotKept == b.NotKept &&
		slices.Equal(a.Fields, b.Fields) && bytes.Equal(a.Body, b.Body)
}
