package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/server"
)

// inspectCases are the rules for [server.Inspector] and [server.Releaser]. They
// bind the stores that implement them.
var inspectCases = []testCase{
	{
		name: "an operator sees what is kept of an operation",
		rule: "Inspect returns operation, status, the status of the answer and the times of a record, judged by one clock, or " +
			"the zero Entry if there is none.",
		run: func(c *checker) {
			inspector, ok := c.peer.(server.Inspector)
			if !ok {
				return
			}
			if e := c.inspects(inspector, c.request("unused")); e != (server.Entry{}) {
				c.Errorf("Inspect of an unused key returned %+v, want the zero entry", e)
			}
			failed := c.request("failed")
			first := c.owns(c.store, failed)
			c.releases(first)
			c.isEntry(c.inspects(inspector, failed), first.Operation, server.Failed, 0)

			second := c.owns(c.store, failed)
			c.completes(second, answer("done"), long)
			e := c.inspects(inspector, failed)
			c.isEntry(e, second.Operation, server.Completed, 201)
			if ttl := e.ExpiresAt.Sub(e.CompletedAt); ttl < long || ttl > long*102/100 {
				c.Errorf("a record that was completed for %v lives for %v", long, ttl)
			}

			lost := c.request("not kept")
			notKept := c.owns(c.store, lost)
			c.completes(notKept, server.Response{StatusCode: 200, NotKept: true}, long)
			if e := c.inspects(inspector, lost); !e.NotKept || e.ResponseStatus != 200 {
				c.Errorf("an answer that was not kept is shown as %+v", e)
			}
		},
	},
	{
		name:      "an operator sees who is at it",
		rule:      "An entry of an operation that is processing has the end of its lease; Lost reports whether that is over.",
		leaseOnly: true,
		run: func(c *checker) {
			inspector, ok := c.peer.(server.Inspector)
			if !ok {
				return
			}
			running, lost := c.request("running"), c.request("lost")
			lost.Lease = brief
			first, second := c.owns(c.store, running), c.owns(c.store, lost)
			c.pauses(2 * brief)
			e := c.inspects(inspector, running)
			c.isEntry(e, first.Operation, server.Processing, 0)
			if e.LeaseLeft() > long || e.LeaseLeft() < long/2 || e.Lost() {
				c.Errorf("a lease of %v is shown with %v left, lost %t", long, e.LeaseLeft(), e.Lost())
			}
			e = c.inspects(inspector, lost)
			c.isEntry(e, second.Operation, server.Processing, 0)
			if !e.Lost() || e.Age() < brief {
				c.Errorf("an operation that is lost for %v is shown with %v left, aged %v", brief, e.LeaseLeft(), e.Age())
			}
		},
	},
	{
		name: "unfinished and lost operations are listed, the oldest first",
		rule: "Unfinished returns the records that are processing, at most limit, those first that began first; Lost those of " +
			"them whose owner was lost; both errors.ErrUnsupported where the store cannot list.",
		leaseOnly: true,
		run: func(c *checker) {
			inspector, ok := c.peer.(server.Inspector)
			if !ok {
				return
			}
			c.completes(c.owns(c.store, c.request("completed")), answer("done"), long)
			c.releases(c.owns(c.store, c.request("failed")))
			var ids []uuid.UUID
			for _, name := range []string{"lost 1", "running 1", "lost 2", "running 2"} {
				req := c.request(name)
				if name[0] == 'l' {
					req.Lease = time.Millisecond
				}
				ids = append(ids, c.owns(c.store, req).Operation.ID)
				c.pauses(5 * time.Millisecond)
			}
			for _, tt := range []struct {
				limit            int
				unfinished, lost []uuid.UUID
			}{
				{10, ids, []uuid.UUID{ids[0], ids[2]}},
				{1, ids[:1], ids[:1]},
				{0, nil, nil},
			} {
				c.lists(tt.unfinished)(inspector.Unfinished(c.ctx(), tt.limit))
				c.lists(tt.lost)(inspector.Lost(c.ctx(), tt.limit))
			}
		},
	},
	{
		name: "a lost operation is given up by an operator",
		rule: "ReleaseLost makes the record failed, as Release would have done. It reports false and changes nothing if the " +
			"operation is not lost, or not there.",
		leaseOnly: true,
		run: func(c *checker) {
			releaser, ok := c.peer.(server.Releaser)
			if !ok {
				return
			}
			running, completed, lost := c.request("running"), c.request("completed"), c.request("lost")
			lost.Lease, lost.Takeover = time.Millisecond, server.Refuse
			runs, done, owner := c.owns(c.store, running), c.owns(c.store, completed), c.owns(c.store, lost)
			c.completes(done, answer("done"), long)
			c.pauses(brief)

			other := owner.Operation
			other.ID = uuid.New()
			unused := server.Operation{ID: uuid.New(), Account: "acme", Key: "unused"}
			for _, op := range []server.Operation{runs.Operation, done.Operation, other, unused} {
				c.givesUp(releaser, op, false)
			}
			c.isProcessing(c.finds(c.store, running), running)
			c.replays(completed, done.Operation.ID, answer("done"))

			c.givesUp(releaser, owner.Operation, true)
			c.givesUp(releaser, owner.Operation, false)
			c.cannotExtend(owner)
			c.isReused(lost, server.Failed)
			c.isAttempt(c.owns(c.store, lost), owner.Operation.ID, 2)
		},
	},
}

func (c *checker) inspects(inspector server.Inspector, req server.ClaimRequest) server.Entry {
	c.Helper()
	e, err := inspector.Inspect(c.ctx(), req.ID)
	if err != nil {
		c.Fatalf("Inspect failed: %v", err)
	}
	return e
}

// isEntry demands what an entry has to say of op, whose record lives.
func (c *checker) isEntry(e server.Entry, op server.Operation, status server.Status, response int) {
	c.Helper()
	if e.Operation != op || e.Status != status || e.ResponseStatus != response || e.NotKept {
		c.Fatalf("got the entry %+v, want attempt %d of operation %v, %v, answered %d", e, op.Attempt, op.ID, status, response)
	}
	if e.CreatedAt.IsZero() || e.Age() < 0 || e.Age() > c.patience || e.Expired() {
		c.Errorf("an operation that has just begun was created at %v, seen at %v, expires at %v", e.CreatedAt, e.SeenAt, e.ExpiresAt)
	}
	if e.LeaseUntil.IsZero() != (status != server.Processing) {
		c.Errorf("the lease of an operation that is %v ends at %v", status, e.LeaseUntil)
	}
	if e.CompletedAt.IsZero() != (status != server.Completed) {
		c.Errorf("an operation that is %v was completed at %v", status, e.CompletedAt)
	}
}

// lists returns a function that demands the entries of the operations want, in
// that order.
func (c *checker) lists(want []uuid.UUID) func([]server.Entry, error) {
	return func(entries []server.Entry, err error) {
		c.Helper()
		if errors.Is(err, errors.ErrUnsupported) {
			return
		}
		var got []uuid.UUID
		for _, e := range entries {
			got = append(got, e.ID)
		}
		if err != nil || !slices.Equal(got, want) {
			c.Errorf("got the operations %v and the error %v, want %v", got, err, want)
		}
	}
}

func (c *checker) givesUp(releaser server.Releaser, op server.Operation, want bool) {
	c.Helper()
	if got, err := releaser.ReleaseLost(c.ctx(), op); err != nil || got != want {
		c.Errorf("ReleaseLost of %+v returned %t and the error %v, want %t", op, got, err, want)
	}
}
