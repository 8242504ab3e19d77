package redisstore

import (
	"cmp"
	"context"
	"time"

	"github.com/idemhttp/idem/server"
)

// lockedLease is a lease of the durable store whose note is on the door.
type lockedLease struct {
	server.Lease

	store *Locked
	id    server.ID
	began time.Time // before the durable store was asked
	note  note
}

// able returns l with the abilities of the durable store's lease.
func (l *lockedLease) able() server.Lease {
	_, atomic := l.Lease.(server.AtomicLease)
	acceptor, accepts := l.Lease.(server.Acceptor)
	switch {
	case atomic && accepts:
		return atomicAcceptingLease{acceptingLease{l, acceptor}}
	case atomic:
		return atomicLease{l}
	case accepts:
		return acceptingLease{l, acceptor}
	default:
		return l
	}
}

type atomicLease struct{ *lockedLease }

// Atomic implements [server.AtomicLease].
func (atomicLease) Atomic() {}

type atomicAcceptingLease struct{ acceptingLease }

// Atomic implements [server.AtomicLease].
func (atomicAcceptingLease) Atomic() {}

type acceptingLease struct {
	*lockedLease

	acceptor server.Acceptor
}

// Ticket implements [server.Acceptor].
func (l acceptingLease) Ticket() server.Ticket { return l.acceptor.Ticket() }

// Accept implements [server.Acceptor]. It leaves the door open: a worker that
// finishes the operation need not know that there is one.
func (l acceptingLease) Accept(ctx context.Context, interim server.Response, d time.Duration) (server.Record, error) {
	rec, err := l.acceptor.Accept(ctx, interim, d)
	l.leave(ctx)
	return rec, err
}

// Extend implements [server.Lease].
func (l *lockedLease) Extend(ctx context.Context, d time.Duration) error {
	err := l.Lease.Extend(ctx, d)
	if err == nil {
		l.store.replace(ctx, l.id, l.note, l.note, d)
	}
	return err
}

// Complete implements [server.Lease]. The door is changed when the durable
// store has decided, and not before.
func (l *lockedLease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	rec, err := l.Lease.Complete(ctx, r, ttl)
	if err != nil {
		l.leave(ctx)
		return rec, err
	}
	l.publish(ctx, rec, ttl)
	return rec, nil
}

// Release implements [server.Lease].
func (l *lockedLease) Release(ctx context.Context, cause error) error {
	err := l.Lease.Release(ctx, cause)
	l.leave(ctx)
	return err
}

func (l *lockedLease) leave(ctx context.Context) { l.store.replace(ctx, l.id, l.note, nothing, 0) }

// publish puts a finished answer on the door, or leaves it.
func (l *lockedLease) publish(ctx context.Context, rec server.Record, ttl time.Duration) {
	finished := l.note
	finished.state = completed
	if rec.Response != nil {
		finished.response = encodeResponse(*rec.Response)
	}
	lifetime := min(cmp.Or(l.store.Fresh, 10*time.Minute), l.recordLives(rec, ttl))
	if lifetime < time.Millisecond || len(finished.response) > cmp.Or(l.store.MaxAnswer, 64<<10) {
		l.leave(ctx)
		return
	}
	l.store.replaceOrPut(ctx, l.id, l.note, finished, lifetime)
}

// recordLives returns for how long a completed record lives at least once
// Redis has been told. That is known of this attempt's own: its life began when
// it was completed, which was after the claim.
func (l *lockedLease) recordLives(rec server.Record, ttl time.Duration) time.Duration {
	if rec.Reused || rec.Operation != l.note.operation || rec.Attempt != l.note.attempt {
		return 0
	}
	return ttl - time.Since(l.began) - l.store.timeout()
}
