package storetest

import (
	"context"
	"errors"

	"github.com/idemhttp/idem/server"
)

// leaseCases are the rules for [server.Lease].
var leaseCases = []testCase{
	{
		name: "a completed operation lives for the TTL of its completion",
		rule: "Complete ends the operation; the record then lives for the ttl that Complete was given, not that of the claim.",
		run: func(c *checker) {
			longer := c.request("longer")
			longer.TTL = brief
			claim := c.owns(c.store, longer)
			c.completes(claim, answer("longer"), long)
			c.pauses(2 * brief)
			c.replays(longer, claim.Operation.ID, answer("longer"))

			shorter := c.request("shorter")
			claim = c.owns(c.store, shorter)
			c.completes(claim, answer("shorter"), brief)
			c.isAnew(c.comesToOwn(c.peer, shorter), claim.Operation.ID)
		},
	},
	{
		name: "a second completion changes nothing",
		rule: "The first completion of an operation wins. Whoever comes second changes nothing and gets the stored record.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.completes(claim, answer("first"), long)
			rec, err := claim.Lease.Complete(c.ctx(), answer("second"), long)
			if err != nil {
				c.Fatalf("the second Complete failed: %v", err)
			}
			c.checkCompleted(rec, claim.Operation.ID, answer("first"))
			c.replays(req, claim.Operation.ID, answer("first"))
		},
	},
	{
		name: "the completion of a lost owner wins if it is first",
		rule: "The first completion of an operation wins, even one whose lease was taken over meanwhile: otherwise an " +
			"operation that takes longer than its lease would never end.",
		leaseOnly: true,
		run: func(c *checker) {
			req, first, second := c.takenOver()
			c.completes(first, answer("first owner"), long)
			c.getsStored(second, answer("first owner"))
			c.replays(req, first.Operation.ID, answer("first owner"))
		},
	},
	{
		name:      "the completion of a lost owner loses if it is second",
		rule:      "Whoever completes second changes nothing and gets the stored record, also one whose lease was taken over.",
		leaseOnly: true,
		run: func(c *checker) {
			req, first, second := c.takenOver()
			c.completes(second, answer("second owner"), long)
			c.getsStored(first, answer("second owner"))
			c.replays(req, first.Operation.ID, answer("second owner"))
		},
	},
	{
		name: "the completion of a lost owner wins over the failure of its successor",
		rule: "The first completion of an operation wins; an attempt that failed meanwhile has completed nothing. Otherwise " +
			"the next claim would run again what is done.",
		leaseOnly: true,
		run: func(c *checker) {
			req, first, second := c.takenOver()
			c.releases(second)
			c.completes(first, answer("first owner"), long)
			c.replays(req, first.Operation.ID, answer("first owner"))
		},
	},
	{
		name:      "of concurrent completions one wins",
		rule:      "Of concurrent completions of one operation the first wins, and all get the record that it stored.",
		leaseOnly: true,
		run: func(c *checker) {
			req, first, second := c.takenOver()
			answers := []server.Response{answer("first owner"), answer("second owner")}
			leases := []server.Lease{first.Lease, second.Lease}
			records, errs := make([]server.Record, 20), make([]error, 20)
			ctx := c.ctx()
			concurrently(20, func(i int) { records[i], errs[i] = leases[i%2].Complete(ctx, answers[i%2], long) })
			if err := errors.Join(errs...); err != nil {
				c.Fatalf("a concurrent Complete failed: %v", err)
			}
			stored := c.finds(c.store, req)
			for _, rec := range records {
				c.checkCompleted(rec, first.Operation.ID, *stored.Response)
			}
			c.replays(req, first.Operation.ID, *stored.Response)
		},
	},
	{
		name: "an owner from before the expiry has no power",
		rule: "Expiry ends an operation: its owners change nothing of the operation that uses the key next, and get no " +
			"record that says they completed it.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			req.Lease, req.TTL = brief, brief
			before := c.owns(c.store, req)
			next := other(c.request("key"))
			claim := c.comesToOwn(c.peer, next)
			if rec, err := before.Lease.Complete(c.ctx(), answer("before"), long); err == nil && rec.Status == server.Completed {
				c.Errorf("Complete reported %+v, but the operation had expired", rec)
			}
			if err := before.Lease.Extend(c.ctx(), long); !errors.Is(err, server.ErrLeaseLost) {
				c.Errorf("Extend returned %v, want ErrLeaseLost", err)
			}
			c.releases(before)
			c.isProcessing(c.finds(c.store, next), next)
			c.completes(claim, answer("next"), long)
			c.replays(next, claim.Operation.ID, answer("next"))
		},
	},
	{
		name: "a completion is retried after its context ended",
		rule: "A Complete that failed may be tried again.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			ctx, cancel := context.WithCancel(c.ctx())
			cancel()
			if _, err := claim.Lease.Complete(ctx, answer("done"), long); !errors.Is(err, context.Canceled) {
				c.Errorf("Complete with a cancelled context returned %v, want context.Canceled", err)
			}
			c.completes(claim, answer("done"), long)
			c.replays(req, claim.Operation.ID, answer("done"))
		},
	},
	{
		name: "no claim sees anything between processing and completed",
		rule: "A completion becomes visible as a whole: a concurrent claim is told that the operation is processing or gets " +
			"the response, and never owns it.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			claims, errs, ctx := make([]server.Claim, 100), make([]error, 101), c.ctx()
			concurrently(101, func(i int) {
				if i == 100 {
					_, errs[i] = claim.Lease.Complete(ctx, answer("done"), long)
					return
				}
				claims[i], errs[i] = c.peer.Claim(ctx, req)
			})
			if err := errors.Join(errs...); err != nil {
				c.Fatalf("a concurrent call failed: %v", err)
			}
			for _, other := range claims {
				if other.Lease == nil && other.Record.Status == server.Processing {
					c.isProcessing(other.Record, req)
					continue
				}
				c.checkCompleted(other.Record, claim.Operation.ID, answer("done"))
			}
		},
	},
	{
		name: "a release after completion changes nothing",
		rule: "After a completion Release changes nothing and returns nil.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.completes(claim, answer("done"), long)
			c.releases(claim)
			c.replays(req, claim.Operation.ID, answer("done"))
		},
	},
	{
		name: "a second release changes nothing",
		rule: "After another release Release changes nothing and returns nil, also when the next attempt runs.",
		run: func(c *checker) {
			req := c.request("key")
			first := c.owns(c.store, req)
			c.releases(first)
			c.releases(first)
			second := c.owns(c.peer, req)
			c.isAttempt(second, first.Operation.ID, 2)
			c.releases(first)
			c.isProcessing(c.finds(c.store, req), req)
			c.completes(second, answer("done"), long)
			c.replays(req, second.Operation.ID, answer("done"))
		},
	},
	{
		name:      "the release of a lost owner changes nothing",
		rule:      "After a takeover Release changes nothing and returns nil.",
		leaseOnly: true,
		run: func(c *checker) {
			req, first, second := c.takenOver()
			c.releases(first)
			c.isProcessing(c.finds(c.store, req), req)
			c.completes(second, answer("second owner"), long)
			c.releases(first)
			c.replays(req, first.Operation.ID, answer("second owner"))
		},
	},
	{
		name:      "an extension moves the end of the lease and the expiry",
		rule:      "Extend moves the end of the lease to d from now, and the expiry with it.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			req.Lease, req.TTL = brief, brief
			claim := c.owns(c.store, req)
			c.extends(claim)
			c.pauses(4 * brief)
			req.Lease = long
			c.isProcessing(c.finds(c.peer, req), req)
			c.isReused(req, server.Processing)
			if err := claim.Lease.Extend(c.ctx(), brief); err != nil {
				c.Fatalf("Extend failed: %v", err)
			}
			c.isAnew(c.comesToOwn(c.peer, other(req)), claim.Operation.ID)
		},
	},
	{
		name:      "a lease that is over may be extended until somebody takes it",
		rule:      "ErrLeaseLost says that the lease belongs to somebody else or that the operation has ended, no less.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			req.Lease = brief
			claim := c.owns(c.store, req)
			c.pauses(2 * brief)
			c.extends(claim)
			req.Lease = long
			c.isProcessing(c.finds(c.peer, req), req)
		},
	},
	{
		name:      "a lease that was taken over cannot be extended",
		rule:      "Extend returns ErrLeaseLost if the lease belongs to somebody else.",
		leaseOnly: true,
		run: func(c *checker) {
			_, first, second := c.takenOver()
			c.cannotExtend(first)
			c.extends(second)
		},
	},
	{
		name:      "the lease of an operation that has ended cannot be extended",
		rule:      "Extend returns ErrLeaseLost if the operation has ended, and brings nothing back to life.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("completed")
			claim := c.owns(c.store, req)
			c.completes(claim, answer("done"), long)
			c.cannotExtend(claim)
			c.replays(req, claim.Operation.ID, answer("done"))

			req = c.request("released")
			claim = c.owns(c.store, req)
			c.releases(claim)
			c.cannotExtend(claim)
			c.isAttempt(c.owns(c.peer, req), claim.Operation.ID, 2)
		},
	},
	{
		name: "the handler's context is derived from its parent",
		rule: "Context returns parent plus what the store adds: values, deadline and cancellation are the parent's.",
		run: func(c *checker) {
			type key struct{}
			claim := c.owns(c.store, c.request("key"))
			parent, cancel := context.WithCancel(context.WithValue(c.ctx(), key{}, "value"))
			ctx := claim.Lease.Context(parent)
			if ctx.Value(key{}) != "value" || ctx.Err() != nil {
				c.Errorf("the context has the value %v and the error %v, want the parent's", ctx.Value(key{}), ctx.Err())
			}
			cancel()
			if !errors.Is(ctx.Err(), context.Canceled) {
				c.Error("the context did not end with its parent")
			}
			c.releases(claim)
		},
	},
}

// takenOver returns a request whose operation has two owners: one that
// outlived its lease, and the one that took it over.
func (c *checker) takenOver() (req server.ClaimRequest, first, second server.Claim) {
	c.Helper()
	req = c.request("key")
	req.Lease = brief
	first = c.owns(c.store, req)
	req.Lease = long
	second = c.comesToOwn(c.peer, req)
	c.isAttempt(second, first.Operation.ID, 2)
	return req, first, second
}

// getsStored demands that an owner who completes late gets what is stored.
func (c *checker) getsStored(claim server.Claim, stored server.Response) {
	c.Helper()
	rec, err := claim.Lease.Complete(c.ctx(), answer("too late"), long)
	if err != nil {
		c.Fatalf("the second Complete failed: %v", err)
	}
	c.checkCompleted(rec, claim.Operation.ID, stored)
}

func (c *checker) extends(claim server.Claim) {
	c.Helper()
	if err := claim.Lease.Extend(c.ctx(), long); err != nil {
		c.Fatalf("Extend failed: %v", err)
	}
}

func (c *checker) cannotExtend(claim server.Claim) {
	c.Helper()
	if err := claim.Lease.Extend(c.ctx(), long); !errors.Is(err, server.ErrLeaseLost) {
		c.Errorf("Extend returned %v, want ErrLeaseLost", err)
	}
}
