package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/server"
)

// acceptCases are the rules for [server.Acceptor], [server.Finisher] and
// [server.Finder]. They bind the stores whose leases are Acceptors.
var acceptCases = []testCase{
	{
		name: "an accepted operation is reported with its interim response",
		rule: "Accept ends the use of the Lease, but not the operation: it stays processing, and is reported with the interim " +
			"response, byte for byte, and the time left of the lease.",
		run: func(c *checker) {
			for name, r := range responses() {
				req := c.request(name)
				claim := c.owns(c.store, req)
				c.accepts(claim, r, long)
				c.isAccepted(req, claim.Operation, r)
			}
		},
	},
	{
		name: "a wait ends when the operation has been accepted",
		rule: "Wait returns nil when it is worth claiming again: that gives the interim response.",
		run: func(c *checker) {
			waiter, ok := c.waiter(c.peer)
			if !ok {
				return
			}
			req := c.request("key")
			claim := c.owns(c.store, req)
			waited, ctx := make(chan error, 1), c.ctx()
			go func() { waited <- waiter.Wait(ctx, req.ID) }()
			c.accepts(claim, interim, long)
			if err := <-waited; err != nil {
				c.Errorf("Wait for an operation that was accepted returned %v", err)
			}
		},
	},
	{
		name: "a reused key is reported while a worker is at it",
		rule: "An accepted record with a different fingerprint is reported with Reused set, and nothing of it changes.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.accepts(claim, interim, long)
			c.isReused(req, server.Processing)
			c.isAccepted(req, claim.Operation, interim)
		},
	},
	{
		name: "an accepted operation has a lease of its own",
		rule: "The lease of an accepted operation ends the given time after Accept, and its expiry moves with it.",
		run: func(c *checker) {
			req := c.request("key")
			req.Lease, req.TTL = brief, 4*brief
			claim := c.owns(c.store, req)
			c.accepts(claim, interim, long)
			c.pauses(8 * brief)
			c.isAccepted(req, claim.Operation, interim)
		},
	},
	{
		name:      "an acceptance does not cut a lease short",
		rule:      "The lease ends the given time after Accept unless it ends later already: the worker may have renewed it.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.accepts(claim, interim, brief)
			c.pauses(2 * brief)
			c.isAccepted(req, claim.Operation, interim)
		},
	},
	{
		name: "a ticket finishes the operation in any process",
		rule: "Finish stores the response as the final answer, whatever its status. A Ticket goes through JSON unharmed.",
		run: func(c *checker) {
			for _, status := range []int{201, 422, 500} {
				req := c.request(strconv.Itoa(status))
				claim := c.owns(c.store, req)
				ticket := c.accepts(claim, interim, long)
				r := answer("done")
				r.StatusCode = status
				c.finishes(c.peer, ticket, r, long)
				c.replays(req, claim.Operation.ID, r)
			}
		},
	},
	{
		name: "a finished operation lives for the TTL of its finish",
		rule: "Finish ends the operation; the record then lives for the ttl that Finish was given.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.finishes(c.store, c.accepts(claim, interim, long), answer("done"), brief)
			c.isAnew(c.comesToOwn(c.peer, other(req)), claim.Operation.ID)
		},
	},
	{
		name: "of concurrent finishes one wins",
		rule: "The first Finish wins. Whoever comes second changes nothing and gets the stored record.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			ticket := c.accepts(claim, interim, long)
			stores, ctx := []server.Finisher{c.finisher(c.store), c.finisher(c.peer)}, c.ctx()
			records, errs := make([]server.Record, 20), make([]error, 20)
			concurrently(20, func(i int) {
				records[i], errs[i] = stores[i%2].Finish(ctx, ticket, answer(strconv.Itoa(i)), long)
			})
			if err := errors.Join(errs...); err != nil {
				c.Fatalf("a concurrent Finish failed: %v", err)
			}
			stored := c.finds(c.store, req)
			for _, rec := range records {
				c.checkCompleted(rec, claim.Operation.ID, *stored.Response)
			}
			c.replays(req, claim.Operation.ID, *stored.Response)
		},
	},
	{
		name: "the operation of a lost worker is claimed again",
		rule: "When its lease has ended, an accepted operation is claimed again by exactly one claim: same operation id, " +
			"attempt one higher, taken over; and the interim response is gone.",
		run: func(c *checker) {
			req := c.request("key")
			first := c.owns(c.store, req)
			req.Lease = brief
			c.accepts(c.released(req, first), interim, brief)
			c.pauses(4 * brief)
			req.Lease = long
			next := c.oneOwns(c.claimsAtOnce(50, req), req)
			c.isAttempt(next, first.Operation.ID, 3)
			if !next.TakenOver {
				c.Error("the claim does not say that it was taken over")
			}
			c.isProcessing(c.finds(c.peer, req), req)
			c.completes(next, answer("done"), long)
			c.replays(req, first.Operation.ID, answer("done"))
		},
	},
	{
		name: "a lost worker is refused",
		rule: "With Refuse, an accepted operation whose lease is over is reported with LeaseLeft at or below zero.",
		run: func(c *checker) {
			req := c.request("key")
			req.Lease, req.Takeover = brief, server.Refuse
			claim := c.owns(c.store, req)
			c.accepts(claim, interim, brief)
			c.pauses(2 * brief)
			rec := c.finds(c.peer, req)
			if rec.Status != server.Processing || rec.LeaseLeft > 0 || rec.Operation != claim.Operation.ID {
				c.Errorf("got the record %+v, want processing with no lease left", rec)
			}
		},
	},
	{
		name: "a renewal moves the end of the lease and the expiry",
		rule: "Renew moves the end of the lease to d from now, and the expiry with it.",
		run: func(c *checker) {
			req := c.request("key")
			req.Lease, req.TTL = brief, 4*brief
			claim := c.owns(c.store, req)
			ticket := c.accepts(claim, interim, brief)
			c.renews(c.peer, ticket, long)
			c.pauses(8 * brief)
			c.isAccepted(req, claim.Operation, interim)
			c.renews(c.store, ticket, brief)
			c.isAnew(c.comesToOwn(c.peer, other(req)), claim.Operation.ID)
		},
	},
	{
		name: "a worker's lease that is over may be renewed until somebody takes it",
		rule: "ErrLeaseLost says that the operation has ended or belongs to another attempt, no less.",
		run: func(c *checker) {
			req := c.request("key")
			req.Lease = brief
			claim := c.owns(c.store, req)
			ticket := c.accepts(claim, interim, brief)
			c.pauses(2 * brief)
			c.renews(c.store, ticket, long)
			c.isAccepted(req, claim.Operation, interim)
		},
	},
	{
		name:      "the ticket of an operation that was taken over cannot be renewed",
		rule:      "Renew returns ErrLeaseLost if the operation belongs to another attempt, and changes nothing.",
		leaseOnly: true,
		run: func(c *checker) {
			req, first, ticket := c.lostWorker()
			next := c.comesToOwn(c.peer, req)
			c.isAttempt(next, first.Operation.ID, 2)
			c.cannotRenew(ticket)
			c.isProcessing(c.finds(c.store, req), req)
			c.finishes(c.store, c.accepts(next, interim, long), answer("done"), long)
			c.cannotRenew(ticket)
			c.replays(req, first.Operation.ID, answer("done"))
		},
	},
	{
		name: "the ticket of an operation that was accepted again cannot be renewed",
		rule: "Renew returns ErrLeaseLost if the operation belongs to another attempt, which one under an atomic lease has " +
			"done at the latest when it ends.",
		run: func(c *checker) {
			req, _, ticket := c.lostWorker()
			next := c.comesToOwn(c.peer, req)
			c.accepts(next, interim, long)
			c.cannotRenew(ticket)
			c.isAccepted(req, next.Operation, interim)
		},
	},
	{
		name:      "the finish of a lost worker wins if it is first",
		rule:      "The first completion of an operation wins, also that of a worker whose lease was taken over.",
		leaseOnly: true,
		run: func(c *checker) {
			req, first, ticket := c.lostWorker()
			next := c.comesToOwn(c.peer, req)
			c.finishes(c.store, ticket, answer("first worker"), long)
			c.getsStored(next, answer("first worker"))
			c.replays(req, first.Operation.ID, answer("first worker"))
		},
	},
	{
		name: "the finish of a lost worker loses if it is second",
		rule: "Whoever completes second changes nothing and gets the stored record, also a worker whose lease was taken over.",
		run: func(c *checker) {
			req, first, ticket := c.lostWorker()
			c.completes(c.comesToOwn(c.peer, req), answer("second owner"), long)
			rec, err := c.finisher(c.store).Finish(c.ctx(), ticket, answer("first worker"), long)
			if err != nil {
				c.Fatalf("Finish failed: %v", err)
			}
			c.checkCompleted(rec, first.Operation.ID, answer("second owner"))
			c.replays(req, first.Operation.ID, answer("second owner"))
		},
	},
	{
		name: "the ticket of an operation that has ended has no power",
		rule: "ErrLeaseLost says that the operation has ended: Renew says so of one that is finished, and both of one that has " +
			"expired and whose key was used again. Neither changes anything of the operation that has the key now.",
		run: func(c *checker) {
			req := c.request("finished")
			ticket := c.accepts(c.owns(c.store, req), interim, long)
			c.finishes(c.store, ticket, answer("done"), long)
			c.cannotRenew(ticket)
			c.replays(req, ticket.ID, answer("done"))

			req = c.request("expired")
			req.Lease, req.TTL = brief, brief
			ticket = c.accepts(c.owns(c.store, req), interim, brief)
			next := other(c.request("expired"))
			claim := c.comesToOwn(c.peer, next)
			c.completes(claim, answer("next"), long)
			c.cannotRenew(ticket)
			if _, err := c.finisher(c.store).Finish(c.ctx(), ticket, answer("done"), long); !errors.Is(err, server.ErrLeaseLost) {
				c.Errorf("Finish returned %v, want ErrLeaseLost", err)
			}
			c.replays(next, claim.Operation.ID, answer("next"))
		},
	},
	{
		name: "a worker may be faster than the acceptance",
		rule: "Renew and Finish may come before Accept, unless the Lease is atomic. Where the operation is completed, Accept " +
			"changes nothing and returns that record.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			ticket := c.ticket(claim)
			c.renews(c.peer, ticket, long)
			c.isProcessing(c.finds(c.store, req), req)
			c.finishes(c.peer, ticket, answer("done"), long)
			rec, err := c.acceptor(claim).Accept(c.ctx(), interim, long)
			if err != nil {
				c.Fatalf("Accept failed: %v", err)
			}
			c.checkCompleted(rec, claim.Operation.ID, answer("done"))
			c.replays(req, claim.Operation.ID, answer("done"))
		},
	},
	{
		name:      "an operation that was taken over cannot be accepted",
		rule:      "Accept returns ErrLeaseLost if another attempt has taken over, and changes nothing.",
		leaseOnly: true,
		run: func(c *checker) {
			req, first, second := c.takenOver()
			if _, err := c.acceptor(first).Accept(c.ctx(), interim, long); !errors.Is(err, server.ErrLeaseLost) {
				c.Errorf("Accept returned %v, want ErrLeaseLost", err)
			}
			c.isProcessing(c.finds(c.store, req), req)
			c.accepts(second, interim, long)
			c.isAccepted(req, second.Operation, interim)
		},
	},
	{
		name: "an acceptance is retried after its context ended",
		rule: "An Accept that failed may be tried again.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			ctx, cancel := context.WithCancel(c.ctx())
			cancel()
			if _, err := c.acceptor(claim).Accept(ctx, interim, long); !errors.Is(err, context.Canceled) {
				c.Errorf("Accept with a cancelled context returned %v, want context.Canceled", err)
			}
			c.accepts(claim, interim, long)
			c.isAccepted(req, claim.Operation, interim)
		},
	},
	{
		name: "an operation is found and left alone",
		rule: "Find returns the live record as a claim with the same fingerprint would be told of it, or the zero Record, and " +
			"changes nothing.",
		run: func(c *checker) {
			req := c.request("key")
			c.findsNone(req.ID)
			first := c.owns(c.store, req)
			c.releases(first)
			for range 2 {
				if rec := c.looksUp(req.ID); rec.Status != server.Failed || rec.Operation != first.Operation.ID || rec.Attempt != 1 {
					c.Fatalf("got the record %+v of an operation that has failed once", rec)
				}
			}
			second := c.owns(c.store, req)
			c.isAttempt(second, first.Operation.ID, 2)
			c.findsNone(server.ID{Account: req.ID.Account, Key: "other"})
			c.findsNone(server.ID{Account: "other", Key: req.ID.Key})
			ticket := c.accepts(second, interim, long)
			rec := c.looksUp(req.ID)
			if rec.Status != server.Processing || rec.Attempt != 2 || rec.LeaseLeft <= long/2 || rec.LeaseLeft > long || rec.Response == nil {
				c.Fatalf("got the record %+v of an operation that was accepted", rec)
			}
			c.checkResponse(*rec.Response, interim)
			c.finishes(c.store, ticket, answer("done"), long)
			c.checkCompleted(c.looksUp(req.ID), first.Operation.ID, answer("done"))
		},
	},
	{
		name: "an operation that has expired is not found",
		rule: "A record that has expired counts as none, whether it was cleaned up or not.",
		run: func(c *checker) {
			req := c.request("key")
			c.completes(c.owns(c.store, req), answer("done"), brief)
			c.pauses(2 * brief)
			c.findsNone(req.ID)
		},
	},
}

// interim is an answer for the time being.
var interim = server.Response{
	StatusCode: 202,
	Fields:     []server.Field{{Name: "Location", Value: "/operations/1"}, {Name: "Retry-After", Value: "1"}},
	Body:       []byte("working"),
}

// acceptor returns the lease of claim as what accepts.
func (c *checker) acceptor(claim server.Claim) server.Acceptor {
	c.Helper()
	acceptor, ok := claim.Lease.(server.Acceptor)
	if !ok {
		c.Fatal("this lease is no Acceptor, but others of the store are")
	}
	return acceptor
}

// finisher returns store as what finishes, which stores of acceptors are.
func (c *checker) finisher(store server.Store) server.Finisher {
	c.Helper()
	finisher, ok := store.(server.Finisher)
	if !ok {
		c.Fatal("the leases are Acceptors, but the store is no Finisher")
	}
	return finisher
}

// ticket returns the ticket of claim as its worker gets it.
func (c *checker) ticket(claim server.Claim) (ticket server.Ticket) {
	c.Helper()
	made := c.acceptor(claim).Ticket()
	if made.Operation != claim.Operation || made.Token == uuid.Nil || made.TTL <= 0 {
		c.Errorf("got the ticket %+v for the operation %+v", made, claim.Operation)
	}
	text, err := json.Marshal(made)
	if err != nil {
		c.Fatalf("a ticket cannot be encoded: %v", err)
	}
	if err := json.Unmarshal(text, &ticket); err != nil || ticket != made {
		c.Errorf("a ticket became %+v by JSON (error %v), it was %+v", ticket, err, made)
	}
	return ticket
}

// accepts demands that the operation of claim can be accepted.
func (c *checker) accepts(claim server.Claim, r server.Response, lease time.Duration) server.Ticket {
	c.Helper()
	ticket := c.ticket(claim)
	rec, err := c.acceptor(claim).Accept(c.ctx(), r, lease)
	if err != nil {
		c.Fatalf("Accept failed: %v", err)
	}
	if rec.Status != server.Processing || rec.Reused || rec.Operation != claim.Operation.ID || rec.LeaseLeft <= 0 || rec.Response == nil {
		c.Fatalf("Accept returned the record %+v, want operation %v processing, not reused, with a response", rec, claim.Operation.ID)
	}
	c.checkResponse(*rec.Response, r)
	return ticket
}

// isAccepted demands that claims by both handles are told of the acceptance.
func (c *checker) isAccepted(req server.ClaimRequest, op server.Operation, r server.Response) {
	c.Helper()
	for _, store := range []server.Store{c.store, c.peer} {
		rec := c.finds(store, req)
		if rec.Status != server.Processing || rec.Reused || rec.Operation != op.ID || rec.Attempt != op.Attempt || rec.Response == nil {
			c.Fatalf("got the record %+v, want attempt %d of %v processing, not reused, with a response", rec, op.Attempt, op.ID)
		}
		if rec.LeaseLeft <= long/2 || rec.LeaseLeft > long {
			c.Errorf("got %v left of a lease of %v", rec.LeaseLeft, long)
		}
		c.checkResponse(*rec.Response, r)
	}
}

func (c *checker) finishes(store server.Store, t server.Ticket, r server.Response, ttl time.Duration) {
	c.Helper()
	rec, err := c.finisher(store).Finish(c.ctx(), t, r, ttl)
	if err != nil {
		c.Fatalf("Finish failed: %v", err)
	}
	c.checkCompleted(rec, t.ID, r)
}

func (c *checker) renews(store server.Store, t server.Ticket, d time.Duration) {
	c.Helper()
	if err := c.finisher(store).Renew(c.ctx(), t, d); err != nil {
		c.Fatalf("Renew failed: %v", err)
	}
}

func (c *checker) cannotRenew(t server.Ticket) {
	c.Helper()
	if err := c.finisher(c.store).Renew(c.ctx(), t, long); !errors.Is(err, server.ErrLeaseLost) {
		c.Errorf("Renew returned %v, want ErrLeaseLost", err)
	}
}

// lostWorker returns a request whose operation was accepted, and whose worker
// was lost.
func (c *checker) lostWorker() (req server.ClaimRequest, claim server.Claim, ticket server.Ticket) {
	c.Helper()
	req = c.request("key")
	req.Lease = brief
	claim = c.owns(c.store, req)
	ticket = c.accepts(claim, interim, brief)
	c.pauses(2 * brief)
	req.Lease = long
	return req, claim, ticket
}

// released gives claim up and returns the next.
func (c *checker) released(req server.ClaimRequest, claim server.Claim) server.Claim {
	c.Helper()
	c.releases(claim)
	next := c.owns(c.store, req)
	c.isAttempt(next, claim.Operation.ID, claim.Operation.Attempt+1)
	return next
}

// looksUp returns what both handles find of id.
func (c *checker) looksUp(id server.ID) (rec server.Record) {
	c.Helper()
	for _, store := range []server.Store{c.peer, c.store} {
		finder, ok := store.(server.Finder)
		if !ok {
			c.Fatal("the leases are Acceptors, but the store is no Finder")
		}
		var err error
		if rec, err = finder.Find(c.ctx(), id); err != nil {
			c.Fatalf("Find failed: %v", err)
		}
	}
	return rec
}

func (c *checker) findsNone(id server.ID) {
	c.Helper()
	if rec := c.looksUp(id); rec != (server.Record{}) {
		c.Fatalf("found the record %+v of %+v, want none", rec, id)
	}
}
