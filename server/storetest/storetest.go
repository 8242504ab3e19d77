// Package storetest checks implementations of [server.Store].
//
// Each rule of the comments on [server.Store], [server.Lease] and the optional
// interfaces beside them is a test case of its own, which prints the rule when
// it fails:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) server.Store { return mystore.Open(t.TempDir()) })
//	}
//
// A store whose leases are [server.AtomicLease] need not show that a claim is
// in flight to be a good store: its claims hold until they are completed,
// released or dropped with the connection. The rules about leases that end are
// left out for it. So are, for a store whose leases are no [server.Acceptor], the
// rules about operations that are accepted; the test's log then says so.
package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/idemhttp/idem/server"
)

// patience is how long a case waits for what has to happen.
const patience = 30 * time.Second

// Run checks the store that newStore returns. It is called once beforehand and
// once for each case, with the case's own t and concurrently with others, and
// must return an empty store that nobody else uses; what has to be closed goes
// to t.Cleanup. No case holds more than four leases at once.
//
// The cases run in parallel and on the real clock, with leases of some
// milliseconds where one has to end and of a minute where it must not.
func Run(t *testing.T, newStore func(t *testing.T) server.Store) {
	t.Helper()
	RunShared(t, func(t *testing.T) (server.Store, server.Store) {
		t.Helper()
		store := newStore(t)
		return store, store
	})
}

// RunShared is Run for a store that several processes share: newStores returns
// two handles on the same, empty data that have nothing else in common.
// Whatever the rules say of one store then has to hold across the two.
func RunShared(t *testing.T, newStores func(t *testing.T) (server.Store, server.Store)) {
	t.Helper()
	store, peer := newStores(t)
	atomic, accepts := abilities(&checker{TB: t, store: store, peer: peer, patience: patience})
	if !accepts {
		t.Log("the leases of this store are no Acceptors: the rules about operations that are accepted are left out")
	}
	for _, tc := range casesFor(atomic, accepts) {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			store, peer := newStores(t)
			tc.check(&checker{TB: t, store: store, peer: peer, atomic: atomic, patience: patience})
		})
	}
}

// casesFor returns the rules that bind a store with certain leases.
func casesFor(atomic, accepts bool) []testCase {
	cases := slices.Concat(claimCases, leaseCases, optionalCases, inspectCases)
	if accepts {
		cases = append(cases, acceptCases...)
	}
	return slices.DeleteFunc(cases, func(tc testCase) bool { return tc.leaseOnly && atomic })
}

// abilities finds out by a claim what kind of leases the store gives.
func abilities(c *checker) (atomic, accepts bool) {
	c.Helper()
	claim := c.owns(c.store, c.request("probe"))
	c.releases(claim)
	_, atomic = claim.Lease.(server.AtomicLease)
	_, accepts = claim.Lease.(server.Acceptor)
	return atomic, accepts
}

// testCase is one rule.
type testCase struct {
	name string
	// rule is printed when the case fails.
	rule string
	// leaseOnly: the rule is about leases that end, and does not bind stores
	// whose leases are atomic.
	leaseOnly bool
	run       func(c *checker)
}

func (tc testCase) check(c *checker) {
	c.Helper()
	defer func() {
		if c.Failed() {
			c.Logf("the rule: %s", tc.rule)
		}
	}()
	tc.run(c)
}
