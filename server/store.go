package server

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// ID names one logical operation: the account it belongs to and the key that
// its client chose. Both are 1 to 255 bytes; the account is valid UTF-8
// without NUL, the key is visible ASCII. Equal keys of different accounts are
// different operations.
type ID struct{ Account, Key string }

// Status is the state of a record.
type Status uint8

// The states of a record. The zero Status is none of them.
const (
	Processing Status = iota + 1 // claimed; an attempt runs, or its owner was lost
	Completed                    // final: the response is stored and replayed
	Failed                       // the last attempt was released; the next claim runs again
)

// String returns the name under which the state is stored and logged.
func (s Status) String() string {
	switch s {
	case Processing:
		return "processing"
	case Completed:
		return "completed"
	case Failed:
		return "failed"
	}
	return "none"
}

// Takeover says what a claim does with a record whose owner was lost: it is
// still processing, but its lease is over. Whether the lost attempt had its
// effect is not known.
type Takeover uint8

const (
	// Rerun takes the record over and runs the operation again, as the next
	// attempt. Effects elsewhere must be deduplicated there: pass them
	// [Operation.DownstreamKey].
	Rerun Takeover = iota
	// Refuse leaves the record alone. Its key is answered as indeterminate
	// until somebody resolves it or it expires.
	Refuse
)

// ClaimRequest asks for ownership of an operation. All fields but Takeover are
// required, durations are positive and at least a millisecond.
type ClaimRequest struct {
	ID          ID
	Fingerprint Fingerprint
	Lease       time.Duration // how long the claim holds unless it is extended
	TTL         time.Duration // how long a record outlives its end
	Takeover    Takeover
}

// Store keeps one record per operation and lets one caller at a time own it.
// Package storetest checks an implementation against every rule given here.
//
// Rules for Claim:
//
//   - An ID without a live record is claimed: the caller gets a Lease and an
//     Operation with a new id and attempt 1. A record that has expired counts
//     as none, whether it was cleaned up or not.
//   - Of any number of concurrent claims of one ID, in any number of
//     processes, exactly one gets the Lease.
//   - A live record with a fingerprint that is proved different
//     ([Fingerprint.Differs]) is reported with Reused set, whatever its
//     status, and nothing of the record changes: no field, no expiry.
//   - A completed record is reported with its response, byte for byte as it
//     was stored.
//   - A record that is processing under a live lease is reported with the
//     time left of it, and with the interim response if there is one.
//   - A failed record is claimed again: same operation id, attempt one higher.
//   - A record that is processing while its lease is over is claimed again in
//     the same way, and the claim says that it was taken over; or, with
//     Refuse, it is reported with LeaseLeft at or below zero.
//   - Expiry and lease are judged by one clock, the store's own. A claim sets
//     the expiry to the end of the lease plus TTL, so that the record of a
//     dead owner ends too.
//   - An error means that nothing is known, never that the key is free.
//     Claim returns when ctx is done.
//
// A Store is safe for concurrent use. Strings and byte slices that it is
// given or gives out are not changed afterwards by either side.
type Store interface {
	Claim(ctx context.Context, req ClaimRequest) (Claim, error)
}

// Claim is what a store answers to a ClaimRequest. If Lease is not nil the
// caller owns the operation and Record is zero; otherwise Record says who came
// before.
type Claim struct {
	Lease     Lease
	Operation Operation
	TakenOver bool // the attempt before was lost: its lease had ended without an answer
	Record    Record
}

// Record is the state of an operation as a store reports it.
type Record struct {
	Status    Status
	Reused    bool      // proved to belong to a request with another fingerprint
	Operation uuid.UUID // survives a takeover; new after expiry
	Attempt   int       // numbered from 1
	LeaseLeft time.Duration
	// Response is the final answer of a completed record, the interim answer
	// of a processing one that has been accepted, and otherwise nil.
	Response *Response
}

// Lease is the ownership of one attempt.
//
//   - Complete stores the response and ends the operation; the record then
//     lives for ttl. The first completion of an operation wins, even one whose
//     lease was taken over meanwhile. Whoever comes second changes nothing and
//     gets the stored record.
//   - Release gives the operation up without an answer: the record stays, as
//     failed, with fingerprint, operation id and attempt, for the TTL of the
//     claim. After a takeover, a completion or another release it changes
//     nothing and returns nil.
//   - Extend moves the end of the lease to d from now, and the expiry with it.
//     ErrLeaseLost says that the lease belongs to somebody else or that the
//     operation has ended.
//   - Context returns the context that the handler gets: parent, plus whatever
//     the store wants to hand the handler, such as its transaction.
//
// Complete and Release may return ErrRestart: nothing of this attempt is
// durable and the operation is to be run again from its claim. Any other error
// of Complete leaves open whether it was stored.
//
// Exactly one of Complete and Release ends the use of a Lease, but a Complete
// that failed may be tried again, or given up by Release. Extend may be called
// concurrently with either.
type Lease interface {
	Context(parent context.Context) context.Context
	Extend(ctx context.Context, d time.Duration) error
	Complete(ctx context.Context, r Response, ttl time.Duration) (Record, error)
	Release(ctx context.Context, cause error) error
}

// AtomicLease marks a Lease whose handler's effects commit together with the
// response, in Complete, or not at all. Nothing of the response may reach the
// client before Complete has returned: such a route can neither flush nor
// hijack, and a Complete that failed is never followed by the handler's answer.
type AtomicLease interface {
	Lease
	Atomic()
}

// Acceptor is a Lease whose operation can go on after its handler has returned,
// in the hands of a worker: the handler answers for the time being, and the
// worker finishes. Every Lease of a store is one, or none is, and the Store then
// is a [Finisher] and a [Finder].
//
//   - Ticket returns what the worker needs. It costs nothing and promises
//     nothing: what the ticket is for is there once Accept has succeeded.
//   - Accept ends the use of the Lease as Complete does, but not the operation.
//     The record stays as it is, processing, with interim as its response, and
//     its lease ends the given time from now, unless it ends later already.
//     Under an [AtomicLease] the handler's effects commit together with that.
//   - Where the worker was faster, and the operation is completed, Accept
//     changes nothing and returns that record. ErrLeaseLost says that another
//     attempt has taken over. Otherwise its errors are those of Complete.
//   - From then on there are no owners but the ticket's: when its lease has
//     ended, the operation is claimed again like any other whose owner was lost,
//     and the interim response is gone.
type Acceptor interface {
	Lease
	Ticket() Ticket
	Accept(ctx context.Context, interim Response, lease time.Duration) (Record, error)
}

// Finisher is implemented by a Store whose leases are Acceptors.
//
//   - Finish is to a ticket what Complete is to a Lease: it stores the response
//     as the final answer, whatever its status, and the record then lives for
//     ttl. The first completion of an operation wins, also that of a worker
//     whose lease was taken over. Whoever comes second changes nothing and gets
//     the stored record. ErrLeaseLost says that there is no such operation any
//     more: it has expired, and its key may have been used again.
//   - Renew is to a ticket what Extend is to a Lease: it moves the end of the
//     lease to d from now. ErrLeaseLost says that the operation has ended or
//     belongs to another attempt, and that the worker can stop. An attempt under
//     an [AtomicLease] that has not ended may lose to the renewal instead.
//
// Both may be called in any process, as often as is useful, and, unless the
// Lease was atomic, before Accept.
type Finisher interface {
	Finish(ctx context.Context, t Ticket, r Response, ttl time.Duration) (Record, error)
	Renew(ctx context.Context, t Ticket, d time.Duration) error
}

// Finder is implemented by a Store that can tell what became of an operation
// without claiming it. Find returns the live record of id as a claim with the
// same fingerprint would be told of it, or the zero Record if there is none,
// and changes nothing. An attempt whose effects are not committed need not be
// found.
type Finder interface {
	Find(ctx context.Context, id ID) (Record, error)
}

// Waiter is implemented by a Store that can tell when a record of another
// process may have changed. Wait returns nil when it is worth claiming id
// again, which may be at any time, or ctx's error. Without it the middleware
// claims again after a pause.
//
// A Store in front of another implements this and the interfaces below, and
// returns [errors.ErrUnsupported] where the other one does not.
type Waiter interface {
	Wait(ctx context.Context, id ID) error
}

// Cleaner is implemented by a Store whose expired records have to be deleted.
// Cleanup deletes at most limit of them and returns how many it deleted; fewer
// than limit says that none is left. A record that is processing under a live
// lease is never deleted. Concurrent cleanups do not disturb one another.
type Cleaner interface {
	Cleanup(ctx context.Context, limit int) (int, error)
}

// Stater is implemented by a Store that can count what it holds.
type Stater interface {
	Stats(ctx context.Context) (Stats, error)
}

// Stats counts what a store holds. Large stores may estimate.
type Stats struct {
	Processing, Completed, Failed int64
	Bytes                         int64         // of everything stored, indexes included
	OldestProcessing              time.Duration // age of the oldest record still processing
	CleanupLag                    time.Duration // how long the oldest expired record has been so
}

var (
	// ErrLeaseLost says that a lease is no longer its holder's: it was taken
	// over, or the operation has ended.
	ErrLeaseLost = errors.New("idem: lease lost")
	// ErrRestart says that nothing of the attempt is durable and that the
	// operation is to be run again from its claim.
	ErrRestart = errors.New("idem: nothing was committed, run again")
	// ErrRolledBack says that a Complete was refused because of what the
	// handler did, for instance go on after an error of its transaction:
	// nothing of the attempt is durable, and running it again at once would
	// not help. The client gets 500 instead of the handler's answer.
	ErrRolledBack = errors.New("idem: the handler's transaction had failed and was rolled back")
)
