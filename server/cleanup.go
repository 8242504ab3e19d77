package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"
)

// Cleanup deletes the expired records of a store, in batches, for as long as
// Run runs. Any number of processes may clean the same store up.
type Cleanup struct {
	Store Cleaner // required

	// Interval is the pause after a round that left nothing to delete. Zero
	// means a minute.
	Interval time.Duration
	// Batch is how many records are deleted at a time. Zero means 1,000.
	Batch int
	// Logger gets the errors of the store, which do not end Run. Nil means
	// [slog.Default].
	Logger *slog.Logger
	// Observe, if not nil, is told what became of each batch.
	Observe func(context.Context, CleanupEvent)
}

// CleanupEvent is what became of one batch of a cleanup, for metrics and logs.
type CleanupEvent struct {
	Deleted int // records
	Took    time.Duration
	// Lag is for how long the oldest record to be deleted had been expired.
	// Zero also means that the store does not tell.
	Lag time.Duration
	// Err is what the store failed with, or nil.
	Err error
}

// Run cleans up until ctx is done and returns why it is, as [context.Cause]
// gives it. It returns at once if c is misconfigured, or with
// [errors.ErrUnsupported] if the store has no records to clean up.
func (c *Cleanup) Run(ctx context.Context) error {
	if c.Store == nil || c.Interval < 0 || c.Batch < 0 {
		return errors.New("idem: Cleanup needs a Store, and neither Interval nor Batch may be negative")
	}
	timer := time.NewTimer(cmp.Or(c.Interval, time.Minute))
	defer timer.Stop()
	for {
		err := c.round(ctx)
		if errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			cmp.Or(c.Logger, slog.Default()).ErrorContext(ctx, "idempotency records could not be cleaned up", "error", err)
		}
		timer.Reset(cmp.Or(c.Interval, time.Minute))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// round deletes what is expired now.
func (c *Cleanup) round(ctx context.Context) error {
	batch := cmp.Or(c.Batch, 1000)
	for ctx.Err() == nil {
		start := time.Now()
		deleted, err := c.Store.Cleanup(ctx, batch)
		if c.Observe != nil {
			c.Observe(ctx, CleanupEvent{Deleted: deleted, Took: time.Since(start), Err: err})
		}
		if err != nil || deleted < batch {
			return err
		}
	}
	return nil
}
