package server

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
)

// room is where those requests of this process meet that have a key in common,
// so that one of them does the asking and all get to know.
type room struct {
	mu      sync.Mutex
	flights map[flightID]*flight
	running map[ID]*flight // those whose operation this process executes
	waiting int            // requests that are asleep
}

type flightID struct {
	ID

	fingerprint Fingerprint
}

// flight is what the requests with one key and one fingerprint share while any
// of them is here. Whoever has the turn claims at the store, and then executes
// the operation, or keeps asking on behalf of all.
type flight struct {
	room *room
	id   flightID
	turn chan struct{} // holds a token while nobody has the turn
	done chan struct{} // closed once verdict is set

	// Guarded by the room's lock.
	members    int
	verdict    verdict
	operation  uuid.UUID // of the attempt that runs, if it is known
	leaseUntil time.Time // its end as far as it is known
}

// verdict is what a request is told of its operation: that it owns it
// (ResultExecuted), or what came of an earlier claim.
type verdict struct {
	result Result
	claim  Claim
	record Record
	err    error
}

// decide says what a record means for a request that did not get the lease.
func decide(rec Record, takeover Takeover) Result {
	switch {
	case rec.Reused:
		return ResultReused
	case rec.Status == Completed && rec.Response != nil && rec.Response.NotKept:
		return ResultNotKept
	case rec.Status == Completed && rec.Response != nil:
		return ResultReplayed
	case rec.Status == Processing && rec.LeaseLeft <= 0 && takeover == Refuse:
		return ResultIndeterminate
	case rec.Status == Processing && rec.LeaseLeft > 0 && rec.Response != nil:
		return ResultAccepted
	case rec.Status == Processing || rec.Status == Failed:
		return ResultInFlight
	}
	return ResultStoreError
}

// join returns the flight of id, which is to be left again.
func (ro *room) join(id flightID) *flight {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	f := ro.flights[id]
	if f == nil {
		if ro.flights == nil {
			ro.flights, ro.running = make(map[flightID]*flight), make(map[ID]*flight)
		}
		f = &flight{room: ro, id: id, turn: make(chan struct{}, 1), done: make(chan struct{})}
		f.turn <- struct{}{}
		ro.flights[id] = f
	}
	f.members++
	return f
}

// reused reports whether this process executes another request under the key.
func (ro *room) reused(id flightID) bool {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	f := ro.running[id.ID]
	return f != nil && f.id.fingerprint.Differs(id.fingerprint)
}

// fallAsleep reports whether another request may wait. It then has to wake up.
func (ro *room) fallAsleep(limit int) bool {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	if ro.waiting >= limit {
		return false
	}
	ro.waiting++
	return true
}

func (ro *room) wakeUp() {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	ro.waiting--
}

func (f *flight) leave() {
	f.room.mu.Lock()
	defer f.room.mu.Unlock()
	f.members--
	if f.members == 0 {
		f.forget()
	}
}

// forget makes the next request start a flight of its own. The room is locked.
func (f *flight) forget() {
	if f.room.flights[f.id] == f {
		delete(f.room.flights, f.id)
	}
}

// finish tells v to all who wait, now or in this flight later.
func (f *flight) finish(v verdict) {
	f.room.mu.Lock()
	defer f.room.mu.Unlock()
	select {
	case <-f.done:
	default:
		f.verdict = v
		close(f.done)
		f.forget()
	}
}

// own notes that this process executes the operation.
func (f *flight) own(operation uuid.UUID, leaseUntil time.Time) {
	f.room.mu.Lock()
	defer f.room.mu.Unlock()
	f.room.running[f.id.ID] = f
	f.operation, f.leaseUntil = operation, leaseUntil
}

func (f *flight) disown() {
	f.room.mu.Lock()
	defer f.room.mu.Unlock()
	if f.room.running[f.id.ID] == f {
		delete(f.room.running, f.id.ID)
	}
}

// note keeps what is known of the attempt that runs.
func (f *flight) note(operation uuid.UUID, leaseUntil time.Time) {
	f.room.mu.Lock()
	defer f.room.mu.Unlock()
	f.operation, f.leaseUntil = operation, leaseUntil
}

func (f *flight) noted() (operation uuid.UUID, leaseUntil time.Time) {
	f.room.mu.Lock()
	defer f.room.mu.Unlock()
	return f.operation, f.leaseUntil
}

// settle returns what becomes of the request. It waits until deadline, or for
// as long as the client does, if another attempt is in flight.
func (x *exchange) settle(deadline time.Time) verdict {
	if x.room.reused(x.flight.id) {
		return verdict{result: ResultReused}
	}
	if !x.hasTurn.Load() {
		if v := x.awaitTurn(deadline); v.result != "" {
			return v
		}
	}
	v := x.ask(deadline)
	switch v.result {
	case ResultExecuted: // the turn goes on with the attempt
	case ResultInFlight:
		x.giveTurn()
	default:
		x.flight.finish(v)
	}
	return v
}

// awaitTurn returns the zero verdict if the turn has come to x, and otherwise
// what somebody else found out, or that the wait is over.
func (x *exchange) awaitTurn(deadline time.Time) verdict {
	f, inFlight := x.flight, verdict{result: ResultInFlight}
	select {
	case <-f.done:
		return f.verdict
	case <-f.turn:
		x.hasTurn.Store(true)
		return verdict{}
	default:
	}
	if !x.room.fallAsleep(x.maxWaiters) {
		return inFlight
	}
	defer x.wakeUp(time.Now())
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-f.done:
		return f.verdict
	case <-timer.C:
		return inFlight
	case <-x.r.Context().Done():
		return inFlight
	case <-f.turn:
		x.hasTurn.Store(true)
	}
	if !time.Now().Before(deadline) || x.r.Context().Err() != nil {
		x.giveTurn() // to one who can still use it
		return inFlight
	}
	return verdict{}
}

// ask claims until the answer is another than that an attempt is in flight.
func (x *exchange) ask(deadline time.Time) verdict {
	v := x.claim()
	if v.result != ResultInFlight || !x.room.fallAsleep(x.maxWaiters) {
		return v
	}
	defer x.wakeUp(time.Now())
	ctx, cancel := context.WithDeadline(x.r.Context(), deadline)
	defer cancel()
	for v.result == ResultInFlight && x.pause(ctx) {
		v = x.claim()
	}
	return v
}

func (x *exchange) claim() verdict {
	ctx, cancel := context.WithTimeout(x.detached(), x.storeTimeout)
	defer cancel()
	claim, err := x.Store.Claim(ctx, ClaimRequest{
		ID: x.flight.id.ID, Fingerprint: x.flight.id.fingerprint, Lease: x.lease, TTL: x.ttl, Takeover: x.Takeover,
	})
	if err != nil {
		x.logError("an idempotency key could not be claimed", err)
		return verdict{result: ResultStoreError, err: err}
	}
	if claim.Lease != nil {
		return verdict{result: ResultExecuted, claim: claim}
	}
	v := verdict{result: decide(claim.Record, x.Takeover), record: claim.Record}
	if v.result == ResultInFlight {
		x.flight.note(claim.Record.Operation, time.Now().Add(claim.Record.LeaseLeft))
		if x.room.reused(x.flight.id) {
			v.result = ResultReused
		}
	}
	return v
}

// pause waits until it is worth claiming again. It reports false when ctx is
// done.
func (x *exchange) pause(ctx context.Context) bool {
	if waiter, ok := x.Store.(Waiter); ok && waiter.Wait(ctx, x.flight.id.ID) == nil {
		return ctx.Err() == nil
	}
	const shortest, longest = 75 * time.Millisecond, 125 * time.Millisecond
	timer := time.NewTimer(shortest + rand.N(longest-shortest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (x *exchange) giveTurn() {
	if x.hasTurn.Swap(false) {
		x.flight.turn <- struct{}{}
	}
}

func (x *exchange) wakeUp(asleepSince time.Time) {
	x.room.wakeUp()
	x.event.Waited += time.Since(asleepSince)
}
