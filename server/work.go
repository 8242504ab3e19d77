package server

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Work does the work of an operation that a handler has accepted, and finishes
// it with what fn returns: the answer that every request with its key gets from
// then on, and [Middleware.StatusHandler] too. A definite failure is an answer
// like any other, with status 422 or 500, say. StatusCode is 200 to 599.
//
// The context of fn is ctx with the [Operation], whose DownstreamKey is the same
// as in the handler and in every attempt. While fn runs the ticket's lease is
// renewed; if it is lost all the same, the context ends with the cause
// [ErrLeaseLost].
//
// An error of fn is returned, and leaves the operation as it is: the queue
// delivers the job again, with the same ticket, or the lease ends and the next
// request with the key is executed. If fn has succeeded but the store fails,
// Work goes on trying until ctx is done.
//
// An error that is ErrLeaseLost says that the job is not needed any more: the
// operation is finished, perhaps by an earlier delivery of the same job, or
// belongs to another attempt.
func Work(ctx context.Context, store Finisher, t Ticket, fn func(ctx context.Context) (Response, error)) error {
	switch {
	case store == nil || fn == nil:
		return errors.New("idem: Work needs a store and a function")
	case t.Lease < time.Millisecond || t.TTL < time.Millisecond:
		return fmt.Errorf("idem: the ticket has a lease of %v and a TTL of %v: it was not made by Accept", t.Lease, t.TTL)
	}
	a := newAttempt(Claim{Operation: t.Operation, Lease: ticketLease{store, t}}, t.Lease, t.TTL, defaultStoreTimeout)
	if err := a.extend(ctx); err != nil {
		return fmt.Errorf("idem: the operation could not be taken up: %w", err)
	}
	r, err := a.work(ctx, fn)
	if err != nil {
		return err
	}
	if r.StatusCode < 200 || r.StatusCode > 599 {
		return fmt.Errorf("idem: an operation cannot be finished with the status %d", r.StatusCode)
	}
	_, err = a.complete(context.WithoutCancel(ctx), answer{Response: r})
	if undecided(err) {
		_, err = a.completeLate(ctx, answer{Response: r})
	}
	if err != nil {
		return fmt.Errorf("idem: the work is done, but the operation could not be finished: %w", err)
	}
	return nil
}

// work calls fn while it keeps the lease.
func (a attempt) work(ctx context.Context, fn func(ctx context.Context) (Response, error)) (Response, error) {
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer a.keep(context.WithoutCancel(ctx), func(err error) {
		if errors.Is(err, ErrLeaseLost) {
			cancel(err)
		}
	})()
	r, err := fn(a.context(working))
	if err != nil && errors.Is(context.Cause(working), ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", ErrLeaseLost, err)
	}
	return r, err
}

// ticketLease is a ticket as the lease of its worker.
type ticketLease struct {
	store  Finisher
	ticket Ticket
}

func (l ticketLease) Context(parent context.Context) context.Context { return parent }

func (l ticketLease) Extend(ctx context.Context, d time.Duration) error {
	return l.store.Renew(ctx, l.ticket, d)
}

func (l ticketLease) Complete(ctx context.Context, r Response, ttl time.Duration) (Record, error) {
	return l.store.Finish(ctx, l.ticket, r, ttl)
}

func (l ticketLease) Release(context.Context, error) error { return nil }
