package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/server"
)

const (
	// brief is a lease or TTL that a case waits for the end of.
	brief = 50 * time.Millisecond
	// long is one that does not end while a case runs.
	long = time.Minute
)

var errHandler = errors.New("storetest: the handler failed")

// checker is what a case works with: a store, and a peer that holds the same
// data, perhaps in another process.
type checker struct {
	testing.TB

	store, peer server.Store
	atomic      bool          // the store's leases are
	patience    time.Duration // how long the case waits for what has to happen
}

// ctx returns a context that ends when the case's patience does.
func (c *checker) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	c.Cleanup(cancel)
	return ctx
}

// request returns a claim of key that neither ends nor expires during a case.
func (c *checker) request(key string) server.ClaimRequest {
	return server.ClaimRequest{
		ID:          server.ID{Account: "acme", Key: key},
		Fingerprint: fingerprint("this"),
		Lease:       long,
		TTL:         long,
	}
}

func fingerprint(of string) server.Fingerprint {
	return server.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte(of))}
}

// other returns req as a request for something else under the same key.
func other(req server.ClaimRequest) server.ClaimRequest {
	req.Fingerprint = fingerprint("something else")
	return req
}

func answer(body string) server.Response {
	return server.Response{
		StatusCode: 201,
		Fields:     []server.Field{{Name: "Content-Type", Value: "text/plain"}},
		Body:       []byte(body),
	}
}

func (c *checker) claim(store server.Store, req server.ClaimRequest) server.Claim {
	c.Helper()
	claim, err := store.Claim(c.ctx(), req)
	if err != nil {
		c.Fatalf("Claim failed: %v", err)
	}
	return claim
}

// owns claims req and demands the lease.
func (c *checker) owns(store server.Store, req server.ClaimRequest) server.Claim {
	c.Helper()
	claim := c.claim(store, req)
	if claim.Lease == nil {
		c.Fatalf("Claim gave no lease but the record %+v", claim.Record)
	}
	c.checkOwner(req, claim)
	return claim
}

// checkOwner checks what the owner of a lease got, and sees to it that the
// lease does not outlive the case.
func (c *checker) checkOwner(req server.ClaimRequest, claim server.Claim) {
	c.Helper()
	c.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), c.patience)
		defer cancel()
		_ = claim.Lease.Release(ctx, errHandler) // most have ended long ago
	})
	if claim.Record != (server.Record{}) {
		c.Errorf("an owner got the record %+v, want the zero record", claim.Record)
	}
	op := claim.Operation
	if op.ID == uuid.Nil || op.Account != req.ID.Account || op.Key != req.ID.Key || op.Attempt < 1 {
		c.Errorf("an owner of %+v got the operation %+v", req.ID, op)
	}
}

// finds claims req and demands a record.
func (c *checker) finds(store server.Store, req server.ClaimRequest) server.Record {
	c.Helper()
	claim := c.claim(store, req)
	if claim.Lease != nil {
		c.Fatalf("Claim gave a lease for %+v, want a record", claim.Operation)
	}
	return claim.Record
}

// comesToOwn claims req again and again until it gets the lease.
func (c *checker) comesToOwn(store server.Store, req server.ClaimRequest) server.Claim {
	c.Helper()
	for deadline := time.Now().Add(c.patience); time.Now().Before(deadline); c.pauses(5 * time.Millisecond) {
		if claim := c.claim(store, req); claim.Lease != nil {
			c.checkOwner(req, claim)
			return claim
		}
	}
	c.Fatalf("Claim gave no lease within %v", c.patience)
	return server.Claim{}
}

// completes demands that r ends the operation of claim.
func (c *checker) completes(claim server.Claim, r server.Response, ttl time.Duration) {
	c.Helper()
	rec, err := claim.Lease.Complete(c.ctx(), r, ttl)
	if err != nil {
		c.Fatalf("Complete failed: %v", err)
	}
	c.checkCompleted(rec, claim.Operation.ID, r)
}

func (c *checker) releases(claim server.Claim) {
	c.Helper()
	if err := claim.Lease.Release(c.ctx(), errHandler); err != nil {
		c.Fatalf("Release failed: %v", err)
	}
}

// replays demands that claims by both handles get r.
func (c *checker) replays(req server.ClaimRequest, operation uuid.UUID, r server.Response) {
	c.Helper()
	for _, store := range []server.Store{c.store, c.peer} {
		c.checkCompleted(c.finds(store, req), operation, r)
	}
}

func (c *checker) checkCompleted(rec server.Record, operation uuid.UUID, r server.Response) {
	c.Helper()
	if rec.Status != server.Completed || rec.Reused || rec.Operation != operation {
		c.Fatalf("got the record %+v, want operation %v completed and not reused", rec, operation)
	}
	if rec.Response == nil {
		c.Fatal("got a completed record without a response")
	}
	c.checkResponse(*rec.Response, r)
}

func (c *checker) checkResponse(got, want server.Response) {
	c.Helper()
	if got.StatusCode != want.StatusCode || got.NotKept != want.NotKept {
		c.Errorf("got status %d (not kept: %t), want %d (%t)", got.StatusCode, got.NotKept, want.StatusCode, want.NotKept)
	}
	if !slices.Equal(got.Fields, want.Fields) {
		c.Errorf("got the fields %q, want %q", got.Fields, want.Fields)
	}
	if !bytes.Equal(got.Body, want.Body) {
		c.Errorf("got a body of %d bytes that is not the one of %d bytes that was stored", len(got.Body), len(want.Body))
	}
}

// isProcessing demands a record of a running attempt.
func (c *checker) isProcessing(rec server.Record, req server.ClaimRequest) {
	c.Helper()
	if rec.Status != server.Processing || rec.Reused || rec.Response != nil {
		c.Fatalf("got the record %+v, want processing, not reused, no response", rec)
	}
	if rec.LeaseLeft <= 0 || rec.LeaseLeft > req.Lease {
		c.Errorf("got %v left of a lease of %v", rec.LeaseLeft, req.Lease)
	}
}

// claimsAtOnce makes n claims of req at the same time, half of them by the peer.
func (c *checker) claimsAtOnce(n int, req server.ClaimRequest) []server.Claim {
	c.Helper()
	claims, errs := make([]server.Claim, n), make([]error, n)
	stores, ctx := []server.Store{c.store, c.peer}, c.ctx()
	concurrently(n, func(i int) { claims[i], errs[i] = stores[i%2].Claim(ctx, req) })
	if err := errors.Join(errs...); err != nil {
		c.Fatalf("a concurrent Claim failed: %v", err)
	}
	return claims
}

// oneOwns demands that exactly one of the claims has the lease, and that the
// others were told that it is processing.
func (c *checker) oneOwns(claims []server.Claim, req server.ClaimRequest) server.Claim {
	c.Helper()
	var owners []server.Claim
	for _, claim := range claims {
		if claim.Lease != nil {
			owners = append(owners, claim)
			continue
		}
		c.isProcessing(claim.Record, req)
	}
	if len(owners) != 1 {
		c.Fatalf("%d of %d concurrent claims got the lease, want 1", len(owners), len(claims))
	}
	c.checkOwner(req, owners[0])
	return owners[0]
}

// isAttempt demands that claim runs the operation again, for the nth time.
func (c *checker) isAttempt(claim server.Claim, operation uuid.UUID, n int) {
	c.Helper()
	if claim.Operation.ID != operation || claim.Operation.Attempt != n {
		c.Errorf("got attempt %d of operation %v, want attempt %d of %v",
			claim.Operation.Attempt, claim.Operation.ID, n, operation)
	}
}

// isAnew demands that claim runs another operation than the one before.
func (c *checker) isAnew(claim server.Claim, before uuid.UUID) {
	c.Helper()
	if claim.Operation.ID == before || claim.Operation.Attempt != 1 {
		c.Errorf("got attempt %d of operation %v after the end of %v, want attempt 1 of a new one",
			claim.Operation.Attempt, claim.Operation.ID, before)
	}
}

// pauses waits for d.
func (c *checker) pauses(d time.Duration) {
	<-time.After(d)
}

// concurrently runs f for 0 to n-1, all started together, and waits for them.
func concurrently(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}
