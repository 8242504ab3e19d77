package server

import (
	"context"
	"time"
)

// Entry is a record as an operator sees it: all that is kept of an operation,
// but for its fingerprint and the fields and body of its answer.
type Entry struct {
	Operation

	// Status is zero if there is no record. It says nothing of whether the
	// record has expired.
	Status Status
	// ResponseStatus is the status code of the answer, of an interim one while
	// the operation is processing, or 0 if there is none.
	ResponseStatus int
	// NotKept says that the answer was not kept, see [Response].
	NotKept bool

	CreatedAt   time.Time // when the first attempt was claimed
	LeaseUntil  time.Time // zero unless the operation is processing
	CompletedAt time.Time // zero unless the operation is completed
	ExpiresAt   time.Time
	// SeenAt is when the record was read. As all the others it is a time of
	// the store's own clock.
	SeenAt time.Time
}

// Age returns how long ago the operation began.
func (e Entry) Age() time.Duration { return e.SeenAt.Sub(e.CreatedAt) }

// LeaseLeft returns how long the running attempt still holds its lease, zero or
// less if its owner was lost. It means nothing unless the operation is
// processing.
func (e Entry) LeaseLeft() time.Duration { return e.LeaseUntil.Sub(e.SeenAt) }

// Lost reports whether the operation is processing without an owner: its lease
// is over.
func (e Entry) Lost() bool { return e.Status == Processing && e.LeaseLeft() <= 0 }

// Expired reports whether the record counts as none, although it has not been
// cleaned up.
func (e Entry) Expired() bool { return !e.SeenAt.Before(e.ExpiresAt) }

// Inspector is implemented by a Store that can show its records to an operator.
// That changes nothing. An attempt whose effects are not committed need not be
// shown.
//
//   - Inspect returns the record of id, expired or not, or the zero Entry if
//     there is none.
//   - Unfinished returns the records that are processing and have not expired,
//     at most limit, those first that began first. It may have to read all
//     records.
//   - Lost returns those of them whose owner was lost.
//
// A store that cannot list returns [errors.ErrUnsupported] from the last two.
type Inspector interface {
	Inspect(ctx context.Context, id ID) (Entry, error)
	Unfinished(ctx context.Context, limit int) ([]Entry, error)
	Lost(ctx context.Context, limit int) ([]Entry, error)
}

// Releaser is implemented by a Store in which an operator can give up an
// operation whose owner was lost, once he has found out that it has not
// happened. ReleaseLost does what Release of the lost lease would have done: the
// next request with the key executes the operation. It reports false, and
// changes nothing, if the operation is not lost or not there; op is known by its
// account, key and id. What has happened is completed with [Finisher].
type Releaser interface {
	ReleaseLost(ctx context.Context, op Operation) (bool, error)
}
