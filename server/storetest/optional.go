package storetest

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/idemhttp/idem/server"
)

// optionalCases are the rules for [server.Waiter], [server.Cleaner] and
// [server.Stater]. They bind the stores that implement them, and do not answer
// [errors.ErrUnsupported].
var optionalCases = []testCase{
	{
		name: "a wait ends when a claim is worth it",
		rule: "Wait returns nil when it is worth claiming again: at the latest soon after the operation has ended.",
		run: func(c *checker) {
			waiter, ok := c.waiter(c.peer)
			if !ok {
				return
			}
			for name, end := range map[string]func(server.Claim){
				"completed": func(claim server.Claim) { c.completes(claim, answer("done"), long) },
				"released":  c.releases,
			} {
				req := c.request(name)
				claim := c.owns(c.store, req)
				waited, ctx := make(chan error, 1), c.ctx()
				go func() { waited <- waiter.Wait(ctx, req.ID) }()
				end(claim)
				if err := <-waited; err != nil {
					c.Errorf("Wait for a %s operation returned %v", name, err)
				}
			}
			if err := waiter.Wait(c.ctx(), c.request("nobody").ID); err != nil {
				c.Errorf("Wait for a key without record returned %v", err)
			}
		},
	},
	{
		name: "a wait ends with its context",
		rule: "Wait returns ctx's error when it ends, and may return earlier.",
		run: func(c *checker) {
			waiter, ok := c.waiter(c.peer)
			if !ok {
				return
			}
			req := c.request("key")
			c.owns(c.store, req)
			ctx, cancel := context.WithTimeout(c.ctx(), brief)
			defer cancel()
			began := time.Now()
			for ctx.Err() == nil {
				if err := waiter.Wait(ctx, req.ID); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					c.Fatalf("Wait returned %v, want nil or context.DeadlineExceeded", err)
				}
			}
			if took := time.Since(began); took > c.patience/2 {
				c.Errorf("Wait took %v of a context that ended after %v", took, brief)
			}
		},
	},
	{
		name: "a cleanup deletes what has expired and nothing else",
		rule: "Cleanup deletes at most limit expired records and returns how many; fewer than limit says that none is left. " +
			"Live records, completed, failed and running, stay.",
		run: func(c *checker) {
			cleaner, ok := c.cleaner(c.store)
			if !ok {
				return
			}
			live := c.request("live")
			liveClaim := c.owns(c.store, live)
			c.completes(liveClaim, answer("live"), long)
			failed := c.request("failed")
			failedClaim := c.owns(c.store, failed)
			c.releases(failedClaim)
			running := c.request("running")
			running.TTL = time.Millisecond // its lease is what keeps it
			runningClaim := c.owns(c.store, running)
			c.expires(10)

			for _, want := range []int{4, 4, 2, 0} {
				if n, err := cleaner.Cleanup(c.ctx(), 4); err != nil || n != want {
					c.Fatalf("Cleanup of at most 4 returned %d and the error %v, want %d", n, err, want)
				}
			}
			c.replays(live, liveClaim.Operation.ID, answer("live"))
			c.isAttempt(c.owns(c.peer, failed), failedClaim.Operation.ID, 2)
			c.isProcessing(c.finds(c.peer, running), running)
			c.completes(runningClaim, answer("done"), long)
			c.replays(running, runningClaim.Operation.ID, answer("done"))
		},
	},
	{
		name:      "a cleanup deletes the record of a lost owner",
		rule:      "A record that is processing expires TTL after its lease, and is then deleted like any other.",
		leaseOnly: true,
		run: func(c *checker) {
			cleaner, ok := c.cleaner(c.store)
			if !ok {
				return
			}
			req := c.request("key")
			req.Lease, req.TTL = time.Millisecond, time.Millisecond
			lost := c.owns(c.store, req)
			c.pauses(brief)
			if n, err := cleaner.Cleanup(c.ctx(), 10); err != nil || n != 1 {
				c.Fatalf("Cleanup returned %d and the error %v, want 1", n, err)
			}
			next := c.owns(c.peer, other(c.request("key")))
			c.isAnew(next, lost.Operation.ID)
			c.cannotExtend(lost)
			c.releases(lost)
			c.isProcessing(c.finds(c.store, other(c.request("key"))), other(c.request("key")))
		},
	},
	{
		name: "concurrent cleanups share the work",
		rule: "Concurrent cleanups do not disturb one another: no record is counted twice, none is left, and no error.",
		run: func(c *checker) {
			const records = 60
			c.expires(records)
			var deleted atomic.Int64
			errs, ctx := make([]error, 4), c.ctx()
			concurrently(4, func(i int) {
				cleaner, ok := c.cleaner([]server.Store{c.store, c.peer}[i%2])
				if !ok {
					deleted.Store(records)
					return
				}
				for deleted.Load() < records && errs[i] == nil && ctx.Err() == nil {
					var n int
					n, errs[i] = cleaner.Cleanup(ctx, 7)
					deleted.Add(int64(n))
				}
			})
			if err := errors.Join(errs...); err != nil || deleted.Load() != records {
				c.Errorf("the cleanups deleted %d of %d records, with the error %v", deleted.Load(), records, err)
			}
		},
	},
	{
		name: "a claim gets along with cleanups",
		rule: "A record may be deleted at any moment after its expiry; a claim that meets it then owns a new operation or " +
			"finds a live record, and never fails.",
		run: func(c *checker) {
			cleaner, ok := c.cleaner(c.peer)
			if !ok {
				return
			}
			ctx, cancel := context.WithCancel(c.ctx())
			cleaned := make(chan error, 1)
			go func() {
				for {
					if _, err := cleaner.Cleanup(ctx, 10); err != nil || ctx.Err() != nil {
						cleaned <- err
						return
					}
				}
			}()
			req := c.request("key")
			for range 50 {
				c.completes(c.comesToOwn(c.store, req), answer("done"), time.Millisecond)
			}
			cancel()
			if err := <-cleaned; err != nil && !errors.Is(err, context.Canceled) {
				c.Errorf("Cleanup failed: %v", err)
			}
		},
	},
	{
		name: "a store counts what it holds",
		rule: "Stats counts the records by status. Only large stores estimate.",
		run: func(c *checker) {
			stater, ok := c.stater(c.store)
			if !ok {
				return
			}
			c.completes(c.owns(c.store, c.request("completed-1")), answer("done"), long)
			c.completes(c.owns(c.store, c.request("completed-2")), answer("done"), long)
			c.releases(c.owns(c.store, c.request("failed")))
			want := server.Stats{Completed: 2, Failed: 1}
			if !c.atomic {
				c.owns(c.store, c.request("processing"))
				want.Processing = 1
			}
			got, err := stater.Stats(c.ctx())
			if err != nil || got.Completed != want.Completed || got.Failed != want.Failed || got.Processing != want.Processing {
				c.Errorf("Stats returned %+v and the error %v, want %+v", got, err, want)
			}
		},
	},
}

// waiter returns store as what waits, if it can. The key is one that no case
// uses.
func (c *checker) waiter(store server.Store) (server.Waiter, bool) {
	waiter, ok := store.(server.Waiter)
	return waiter, ok && !errors.Is(waiter.Wait(c.ctx(), server.ID{Account: "acme", Key: "unused"}), errors.ErrUnsupported)
}

// cleaner returns store as what cleans up, if it can.
func (c *checker) cleaner(store server.Store) (server.Cleaner, bool) {
	cleaner, ok := store.(server.Cleaner)
	if !ok {
		return nil, false
	}
	_, err := cleaner.Cleanup(c.ctx(), 0)
	return cleaner, !errors.Is(err, errors.ErrUnsupported)
}

// stater returns store as what counts, if it can.
func (c *checker) stater(store server.Store) (server.Stater, bool) {
	stater, ok := store.(server.Stater)
	if !ok {
		return nil, false
	}
	_, err := stater.Stats(c.ctx())
	return stater, !errors.Is(err, errors.ErrUnsupported)
}

// expires stores n completed records that have expired when it returns.
func (c *checker) expires(n int) {
	c.Helper()
	for i := range n {
		c.completes(c.owns(c.store, c.request("expired-"+strconv.Itoa(i))), answer("expired"), time.Millisecond)
	}
	c.pauses(10 * time.Millisecond)
}
