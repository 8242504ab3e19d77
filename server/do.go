package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/keyfield"
)

// Done is the outcome of an operation that is not HTTP.
type Done struct {
	Value []byte // what the function returned when it succeeded
	// Replayed says that it did so earlier, and was not called this time.
	Replayed bool
}

// InFlightError says that somebody else executes the operation just now.
type InFlightError struct {
	Operation uuid.UUID     // zero if it is not known
	LeaseLeft time.Duration // after this it is worth trying again, if not before
}

// Error implements error.
func (e *InFlightError) Error() string {
	return fmt.Sprintf("idem: the operation is in flight, under a lease of another %v", max(0, e.LeaseLeft))
}

var (
	// ErrReused says that the key belongs to something else: the fingerprints
	// differ.
	ErrReused = errors.New("idem: the key was used for something else")
	// ErrIndeterminate says that the owner of the operation was lost, and that
	// Takeover is Refuse.
	ErrIndeterminate = errors.New("idem: the owner was lost, it is not known whether the operation was done")
)

// Do calls fn unless an earlier call with the same ID has succeeded, whose
// value it then returns. It is the guarantee of [Middleware] for work that is
// not HTTP, such as a message that a queue may deliver twice.
//
// Of req, ID is required. The Fingerprint, for instance
// {Version: 1, Sum: sha256.Sum256(message)}, is what tells a repetition from a
// different message under the same key; the zero value takes every message for
// a repetition. Lease and TTL may be zero, which means 30 s and 48 h.
//
// The context of fn is ctx with the [Operation], under an atomic lease also
// with whatever the store adds. While fn runs its lease is extended. An error of
// fn is returned as it is; the next call then calls fn again. So does a panic,
// which is passed on.
//
// Do does not wait for others: it returns an [*InFlightError] if somebody else
// is at it, [ErrReused] or [ErrIndeterminate] if fn may not be called at all,
// and the store's error if that is unavailable. If fn has succeeded but that
// cannot be stored, Do tries until ctx is done, and returns the value with an
// error; under an atomic lease nothing is done then, and Do returns the error
// at once.
func Do(ctx context.Context, store Store, req ClaimRequest, fn func(ctx context.Context) ([]byte, error)) (Done, error) {
	req.Lease, req.TTL = cmp.Or(req.Lease, defaultLease), cmp.Or(req.TTL, defaultTTL)
	if err := checkDo(store, req, fn != nil); err != nil {
		return Done{}, err
	}
	for range 1 + maxRestarts {
		claimCtx, cancel := context.WithTimeout(ctx, defaultStoreTimeout)
		claim, err := store.Claim(claimCtx, req)
		cancel()
		if err != nil {
			return Done{}, fmt.Errorf("idem: the store failed: %w", err)
		}
		if claim.Lease == nil {
			return found(claim.Record, req.Takeover)
		}
		a := newAttempt(claim, req.Lease, req.TTL, defaultStoreTimeout)
		done, err := a.do(ctx, fn)
		if !errors.Is(err, ErrRestart) {
			return done, err
		}
	}
	return Done{}, ErrRestart
}

func checkDo(store Store, req ClaimRequest, haveFunc bool) error {
	switch {
	case store == nil:
		return errors.New("idem: Do needs a store")
	case !haveFunc:
		return errors.New("idem: Do needs a function")
	case !validAccount(req.ID.Account):
		return errors.New("idem: the account must be 1 to 255 bytes of UTF-8 without NUL")
	case req.Lease < time.Millisecond || req.TTL < time.Millisecond:
		return fmt.Errorf("idem: Lease (%v) and TTL (%v) must be at least 1ms, or 0 for the default", req.Lease, req.TTL)
	}
	if err := keyfield.Check(req.ID.Key); err != nil {
		return fmt.Errorf("idem: %w", err)
	}
	return nil
}

// found is the outcome of an operation that somebody else has claimed.
func found(rec Record, takeover Takeover) (Done, error) {
	switch decide(rec, takeover) {
	case ResultReplayed:
		return Done{Value: rec.Response.Body, Replayed: true}, nil
	case ResultReused:
		return Done{}, ErrReused
	case ResultIndeterminate:
		return Done{}, ErrIndeterminate
	case ResultInFlight, ResultAccepted:
		return Done{}, &InFlightError{Operation: rec.Operation, LeaseLeft: rec.LeaseLeft}
	default:
		return Done{}, fmt.Errorf("idem: the store returned a record that cannot be used: %v", rec.Status)
	}
}

// do is one attempt at fn.
func (a attempt) do(ctx context.Context, fn func(ctx context.Context) ([]byte, error)) (Done, error) {
	detached := context.WithoutCancel(ctx)
	value, err := a.call(ctx, fn)
	if err != nil {
		if releaseErr := a.release(detached, err); errors.Is(releaseErr, ErrRestart) {
			return Done{}, releaseErr
		}
		return Done{}, err
	}
	r := answer{Response: Response{StatusCode: 200, Body: value}}
	rec, err := a.complete(detached, r)
	if undecided(err) && !a.atomic {
		rec, err = a.completeLate(ctx, r)
	}
	switch {
	case err != nil && (a.atomic || errors.Is(err, ErrRestart)): // nothing is done
		return Done{}, err
	case err != nil:
		return Done{Value: value}, fmt.Errorf("idem: done, but not recorded: %w", err)
	case rec.Reused:
		return Done{}, ErrReused
	}
	return Done{Value: rec.Response.Body}, nil
}

// call calls fn and keeps the lease meanwhile. It releases if fn does not
// return.
func (a attempt) call(ctx context.Context, fn func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	returned := false
	stop := a.keep(context.WithoutCancel(ctx), func(error) {})
	defer func() {
		stop()
		if !returned {
			_ = a.release(context.WithoutCancel(ctx), errHandlerLeft)
		}
	}()
	value, err := fn(a.claim.Lease.Context(a.context(ctx)))
	returned = true
	return value, err
}
