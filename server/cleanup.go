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
	// Observe, if not nil, is told after each batch how many records it
	// deleted.
	Observe func(deleted int)
}

// Run cleans up until ctx is done and returns why it is, as [context.Cause]
// gives it. It returns at once if c is misconfigured.
func (c *Cleanup) Run(ctx context.Context) error {
	if c.Store == nil || c.Interval < 0 || c.Batch < 0 {
		return errors.New("idem: Cleanup needs a Store, and neither Interval nor Batch may be negative")
	}
	timer := time.NewTimer(cmp.Or(c.Interval, time.Minute))
	defer timer.Stop()
	for {
		if err := c.round(ctx); err != nil && ctx.Err() == nil {
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
		deleted, err := c.Store.Cleanup(ctx, batch)
		if err != nil {
			return err
		}
		if c.Observe != nil {
			c.Observe(deleted)
		}
		if deleted < batch {
			return nil
		}
	}
	return nil
}
