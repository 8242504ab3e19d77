package storetest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/server"
)

// claimCases are the rules for [server.Store].
var claimCases = []testCase{
	{
		name: "a key without record is claimed",
		rule: "An ID without a live record is claimed: the caller gets a Lease, an Operation with a new id and attempt 1, " +
			"and a zero Record.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.isAttempt(claim, claim.Operation.ID, 1)
			c.isProcessing(c.finds(c.peer, req), req)
		},
	},
	{
		name: "one of 200 concurrent claims gets the lease",
		rule: "Of any number of concurrent claims of one ID, in any number of processes, exactly one gets the Lease.",
		run: func(c *checker) {
			req := c.request("key")
			owner := c.oneOwns(c.claimsAtOnce(200, req), req)
			c.completes(owner, answer("done"), long)
			for _, claim := range c.claimsAtOnce(50, req) {
				c.checkCompleted(claim.Record, owner.Operation.ID, answer("done"))
			}
		},
	},
	{
		name: "other ids are other operations",
		rule: "An ID is the pair of account and key, both compared byte by byte: neither case, nor trailing blanks, " +
			"nor Unicode normalisation, nor a separator between the two may make two ids one.",
		run: func(c *checker) {
			operations := make(map[uuid.UUID]server.ID)
			for _, id := range differentIDs {
				req := c.request("")
				req.ID = id
				claim := c.owns(c.store, req)
				if same, ok := operations[claim.Operation.ID]; ok {
					c.Errorf("%+v and %+v got the same operation id", id, same)
				}
				operations[claim.Operation.ID] = id
				c.completes(claim, answer(id.Account+id.Key), long)
			}
			for operation, id := range operations {
				req := c.request("")
				req.ID = id
				c.replays(req, operation, answer(id.Account+id.Key))
			}
		},
	},
	{
		name: "a completed record is replayed byte for byte",
		rule: "A completed record is reported with its response, byte for byte as it was stored: status, fields in their " +
			"order with repeated names and empty values, and body; and with the mark that it was not kept.",
		run: func(c *checker) {
			for name, r := range responses() {
				req := c.request(name)
				claim := c.owns(c.store, req)
				c.completes(claim, r, long)
				c.replays(req, claim.Operation.ID, r)
				c.replays(req, claim.Operation.ID, r)
			}
		},
	},
	{
		name:      "a running attempt is reported with what is left of its lease",
		rule:      "A record that is processing under a live lease is reported with the time left of it and its operation.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			before := req.Lease
			for _, store := range []server.Store{c.store, c.peer} {
				rec := c.finds(store, req)
				c.isProcessing(rec, req)
				if rec.Operation != claim.Operation.ID || rec.Attempt != 1 {
					c.Errorf("got attempt %d of %v, want attempt 1 of %v", rec.Attempt, rec.Operation, claim.Operation.ID)
				}
				if rec.LeaseLeft > before || rec.LeaseLeft < req.Lease-c.patience {
					c.Errorf("got %v left of a lease of %v, earlier it was %v", rec.LeaseLeft, req.Lease, before)
				}
				before = rec.LeaseLeft
			}
		},
	},
	{
		name: "a failed record is claimed again",
		rule: "A failed record is claimed again, also where lost owners are refused: same operation id, attempt one higher.",
		run: func(c *checker) {
			req := c.request("key")
			first := c.owns(c.store, req)
			c.releases(first)
			second := c.owns(c.peer, req)
			c.isAttempt(second, first.Operation.ID, 2)
			c.releases(second)
			req.Takeover = server.Refuse
			third := c.owns(c.store, req)
			c.isAttempt(third, first.Operation.ID, 3)
			c.completes(third, answer("done"), long)
			c.replays(req, first.Operation.ID, answer("done"))
		},
	},
	{
		name: "one of 50 concurrent claims takes over from a failed attempt",
		rule: "A failed record is claimed again by exactly one of any number of concurrent claims.",
		run: func(c *checker) {
			req := c.request("key")
			first := c.owns(c.store, req)
			c.releases(first)
			c.isAttempt(c.oneOwns(c.claimsAtOnce(50, req), req), first.Operation.ID, 2)
		},
	},
	{
		name: "a lost owner is taken over by one claim",
		rule: "A record that is processing while its lease is over is claimed again, by exactly one of any number of " +
			"concurrent claims: same operation id, attempt one higher. The claim says that it was taken over, and no other does.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			req.Lease = brief
			first := c.owns(c.store, req)
			c.pauses(2 * brief)
			req.Lease = long
			second := c.oneOwns(c.claimsAtOnce(50, req), req)
			c.isAttempt(second, first.Operation.ID, 2)
			c.releases(second)
			third := c.owns(c.store, req)
			if first.TakenOver || !second.TakenOver || third.TakenOver {
				c.Errorf("TakenOver is %t for a first attempt, %t after a lost owner and %t after a release, want false, true, false",
					first.TakenOver, second.TakenOver, third.TakenOver)
			}
		},
	},
	{
		name: "a lost owner is refused",
		rule: "With Refuse, a record that is processing while its lease is over is reported with LeaseLeft at or below zero " +
			"and stays as it is: a claim with Rerun still takes it over.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			req.Lease, req.Takeover = brief, server.Refuse
			first := c.owns(c.store, req)
			c.pauses(2 * brief)
			for range 2 {
				rec := c.finds(c.peer, req)
				if rec.Status != server.Processing || rec.Reused || rec.LeaseLeft > 0 || rec.Operation != first.Operation.ID {
					c.Fatalf("got the record %+v, want processing with no lease left", rec)
				}
			}
			req.Takeover = server.Rerun
			c.isAttempt(c.owns(c.peer, req), first.Operation.ID, 2)
		},
	},
	{
		name: "an owner under a live lease is not refused",
		rule: "Refuse is about lost owners: an attempt under a live lease is reported with the time left, as ever.",
		run: func(c *checker) {
			req := c.request("key")
			req.Takeover = server.Refuse
			c.owns(c.store, req)
			c.isProcessing(c.finds(c.peer, req), req)
		},
	},
	{
		name:      "a reused key is reported while an attempt runs",
		rule:      "A live record with a different fingerprint is reported with Reused set, and nothing of it changes.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.isReused(req, server.Processing)
			c.isProcessing(c.finds(c.store, req), req)
			c.completes(claim, answer("done"), long)
			c.replays(req, claim.Operation.ID, answer("done"))
		},
	},
	{
		name:      "a reused key is reported after its owner was lost",
		rule:      "A record whose owner was lost is still live: a claim with a different fingerprint does not get it.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			req.Lease = brief
			first := c.owns(c.store, req)
			c.pauses(2 * brief)
			c.isReused(req, server.Processing)
			c.isAttempt(c.owns(c.store, req), first.Operation.ID, 2)
		},
	},
	{
		name: "a reused key is reported after completion",
		rule: "A completed record with a different fingerprint is reported with Reused set, and nothing of it changes.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.completes(claim, answer("done"), long)
			c.isReused(req, server.Completed)
			c.replays(req, claim.Operation.ID, answer("done"))
		},
	},
	{
		name: "a reused key is reported after failure",
		rule: "A failed record keeps its fingerprint: a claim with a different one is reported with Reused set, and the " +
			"next attempt is still the first request's.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.releases(claim)
			c.isReused(req, server.Failed)
			c.isAttempt(c.owns(c.store, req), claim.Operation.ID, 2)
		},
	},
	{
		name: "a reused key does not prolong its record",
		rule: "A claim with a different fingerprint changes nothing of the record, its expiry included.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.completes(claim, answer("done"), 4*brief)
			c.isAnew(c.comesToOwn(c.peer, other(req)), claim.Operation.ID)
		},
	},
	{
		name: "one bit makes another fingerprint",
		rule: "Fingerprints are compared to the last bit.",
		run: func(c *checker) {
			req := c.request("key")
			req.Fingerprint = server.Fingerprint{Version: 255}
			c.completes(c.owns(c.store, req), answer("done"), long)
			for _, i := range []int{0, 15, 31} {
				changed := req
				changed.Fingerprint.Sum[i] ^= 0x80
				if rec := c.finds(c.peer, changed); !rec.Reused {
					c.Errorf("a change of byte %d of the fingerprint was not reported", i)
				}
			}
		},
	},
	{
		name: "fingerprints of different versions prove nothing",
		rule: "Only a fingerprint that is proved different (Fingerprint.Differs) makes a key reused: after a change of the " +
			"scheme old records are still replayed.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.completes(claim, answer("done"), long)
			req = other(req)
			req.Fingerprint.Version++
			c.replays(req, claim.Operation.ID, answer("done"))
		},
	},
	{
		name: "one of 50 concurrent claims gets an expired key",
		rule: "A record that has expired counts as none, whether it was cleaned up or not: of any number of concurrent " +
			"claims one owns a new operation, whatever the fingerprint.",
		run: func(c *checker) {
			req := c.request("key")
			claim := c.owns(c.store, req)
			c.completes(claim, answer("done"), brief)
			c.pauses(2 * brief)
			req = other(req)
			owner := c.oneOwns(c.claimsAtOnce(50, req), req)
			c.isAnew(owner, claim.Operation.ID)
			c.completes(owner, answer("anew"), long)
			c.replays(req, owner.Operation.ID, answer("anew"))
		},
	},
	{
		name: "a failed record expires",
		rule: "A released record lives for the TTL of its claim, from its release.",
		run: func(c *checker) {
			req := c.request("key")
			req.TTL = 4 * brief
			claim := c.owns(c.store, req)
			c.releases(claim)
			c.isAnew(c.comesToOwn(c.peer, other(req)), claim.Operation.ID)
		},
	},
	{
		name: "the record of a lost owner expires",
		rule: "A claim sets the expiry to the end of the lease plus TTL, so that the record of a dead owner ends too, also " +
			"where lost owners are refused.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			req.Lease, req.TTL, req.Takeover = brief, 2*brief, server.Refuse
			claim := c.owns(c.store, req)
			c.isAnew(c.comesToOwn(c.peer, other(req)), claim.Operation.ID)
		},
	},
	{
		name:      "a lease outlives a short TTL",
		rule:      "TTL counts from the end of the lease: a record does not expire while its attempt runs.",
		leaseOnly: true,
		run: func(c *checker) {
			req := c.request("key")
			req.TTL = time.Millisecond
			claim := c.owns(c.store, req)
			c.pauses(brief)
			c.isProcessing(c.finds(c.peer, req), req)
			c.completes(claim, answer("done"), long)
			c.replays(req, claim.Operation.ID, answer("done"))
		},
	},
	{
		name: "durations of a millisecond and of years are kept",
		rule: "Lease and TTL are a millisecond or longer; neither is rounded to nothing, and neither overflows.",
		run: func(c *checker) {
			req := c.request("brief")
			req.Lease, req.TTL = time.Millisecond, time.Millisecond
			claim := c.owns(c.store, req)
			if !c.atomic {
				c.isAnew(c.comesToOwn(c.peer, other(req)), claim.Operation.ID)
			}
			req = c.request("long")
			req.Lease, req.TTL = 10*365*24*time.Hour, 10*365*24*time.Hour
			claim = c.owns(c.store, req)
			c.isProcessing(c.finds(c.peer, req), req)
			c.completes(claim, answer("done"), req.TTL)
			c.replays(req, claim.Operation.ID, answer("done"))
		},
	},
	{
		name: "a claim ends with its context",
		rule: "Claim returns when ctx is done, with an error that is ctx's; the key is not lost by it.",
		run: func(c *checker) {
			ctx, cancel := context.WithCancel(c.ctx())
			cancel()
			req := c.request("key")
			if claim, err := c.store.Claim(ctx, req); !errors.Is(err, context.Canceled) || claim.Lease != nil {
				c.Errorf("a claim with a cancelled context got %+v and the error %v, want context.Canceled", claim, err)
			}
			c.owns(c.peer, req)
		},
	},
}

// isReused demands that a claim of the same key for something else, by
// whomever, is told so.
func (c *checker) isReused(req server.ClaimRequest, status server.Status) {
	c.Helper()
	for _, store := range []server.Store{c.store, c.peer} {
		if rec := c.finds(store, other(req)); !rec.Reused || rec.Status != status {
			c.Fatalf("got the record %+v, want reused and %v", rec, status)
		}
	}
}

// differentIDs are pairs that careless stores take for equal, or cannot hold.
var differentIDs = []server.ID{
	{Account: "a", Key: "key"},
	{Account: "A", Key: "key"},
	{Account: "a ", Key: "key"},
	{Account: " a", Key: "key"},
	{Account: "a", Key: "KEY"},
	{Account: "ak", Key: "ey"},
	{Account: "a:k", Key: "ey"},
	{Account: "a", Key: "k:ey"},
	{Account: "a", Key: "{key}"},
	{Account: "{a}", Key: "key"},
	{Account: "a\nb", Key: "key"},
	{Account: "a\tb", Key: "key"},
	{Account: `a\b`, Key: `k\ey`},
	{Account: "'; DROP TABLE accounts; --", Key: "';--"},
	{Account: "%", Key: "%"},
	{Account: "_", Key: "_"},
	{Account: "caf\u00e9", Key: "key"},
	{Account: "cafe\u0301", Key: "key"},
	{Account: "\u043a\u043b\u044e\u0447", Key: "key"},
	{Account: "\U0001F511", Key: "key"},
	{Account: "a", Key: visibleASCII()},
	{Account: strings.Repeat("a", 255), Key: strings.Repeat("k", 255)},
	{Account: strings.Repeat("a", 255), Key: strings.Repeat("k", 254) + "K"},
}

func visibleASCII() string {
	var b strings.Builder
	for c := byte(0x21); c <= 0x7E; c++ {
		b.WriteByte(c)
	}
	return b.String()
}

// responses are answers that careless stores do not keep as they are.
func responses() map[string]server.Response {
	allBytes := make([]byte, 256)
	for i := range allBytes {
		allBytes[i] = byte(i)
	}
	large := make([]byte, 1<<20)
	for i := range large {
		large[i] = allBytes[i*7%251]
	}
	return map[string]server.Response{
		"every-byte":  {StatusCode: 200, Body: allBytes},
		"large-body":  {StatusCode: 200, Body: large},
		"no-body":     {StatusCode: 204},
		"empty-body":  {StatusCode: 201, Body: []byte{}},
		"not-kept":    {StatusCode: 201, NotKept: true},
		"odd-status":  {StatusCode: 999, Body: []byte("x")},
		"json":        {StatusCode: 422, Body: []byte("{ \"b\":1, \"a\":1.0, \"a\":\"\\u0000\" }\n")},
		"fields-only": {StatusCode: 303, Fields: []server.Field{{Name: "Location", Value: "/payments/1?a=b&c=%20"}}},
		"fields": {StatusCode: 200, Body: []byte("x"), Fields: []server.Field{
			{Name: "Link", Value: "</b>; rel=next"},
			{Name: "Content-Disposition", Value: `attachment; filename="a,b.txt"`},
			{Name: "Link", Value: "</a>; rel=prev"},
			{Name: "Empty", Value: ""},
			{Name: "Empty", Value: ""},
			{Name: "x-lower-case", Value: " blanks\tkept "},
			{Name: "Latin-1", Value: "caf\xe9 \xff\x80"},
			{Name: "Long", Value: strings.Repeat("v", 10_000)},
		}},
	}
}
