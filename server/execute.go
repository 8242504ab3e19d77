package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

var (
	errHandlerTimeout = errors.New("idem: the handler's time is up")
	errHandlerLeft    = errors.New("idem: the handler panicked or exited")
)

// execute runs the handler as the owner of claim, and answers. It reports true
// if it has not answered, because nothing of the attempt is durable and the
// operation is to be run again.
func (x *exchange) execute(claim Claim) (again bool) {
	x.event.Operation, x.event.TakenOver = claim.Operation, claim.TakenOver
	x.flight.own(claim.Operation.ID, time.Now().Add(x.lease))
	defer x.disown()
	ctx, cancel := context.WithTimeoutCause(x.detached(), x.handlerTimeout, errHandlerTimeout)
	defer cancel()

	a := newAttempt(claim, x.lease, x.ttl, x.storeTimeout)
	a.acceptor, _ = claim.Lease.(Acceptor)
	rec := newRecorder(x.w, x.r, x.recorderConfig(a.atomic))
	x.run(claim.Lease.Context(a.context(ctx)), a, rec)

	worker := a.end()
	if worker > 0 {
		rec.beInterim(interim(claim.Operation))
	}
	response, final, err := rec.finish()
	switch {
	case !final || err != nil || a.abandoned.Load():
		return x.giveUp(a, rec, err)
	case worker > 0 && response.StatusCode == http.StatusAccepted:
		if response.NotKept {
			response = interim(claim.Operation)
		}
		return x.complete(a, rec, answer{response, worker})
	default:
		return x.complete(a, rec, answer{Response: response})
	}
}

// interim is the answer of a handler that has accepted its operation and says
// no more.
func interim(op Operation) Response {
	r := ResultInFlight.refusal()
	r.Operation, r.RetryAfter = op.ID, "1"
	return Standard(r)
}

func (x *exchange) recorderConfig(atomic bool) recorderConfig {
	return recorderConfig{
		maxStored: x.maxStored, maxBuffered: x.maxBuffered, atomic: atomic, own: []Field{x.echo}, logger: x.logger,
	}
}

// run calls the handler and keeps its lease meanwhile. If the handler panics or
// exits, the attempt has failed, and what it did goes on from here as it came.
func (x *exchange) run(ctx context.Context, a attempt, rec *recorder) {
	began, returned := time.Now(), false
	stop := a.keep(x.detached(), x.extended)
	defer func() {
		stop()
		took := time.Since(began)
		x.handled.add(took)
		x.event.Handled += took
		if !returned {
			x.event.Result = a.failure()
			_ = x.release(a, errHandlerLeft)
		}
	}()
	x.next.ServeHTTP(rec.writer(), x.request(ctx))
	returned = true
}

// extended notes what came of an extension of the lease.
func (x *exchange) extended(err error) {
	switch {
	case err == nil:
		x.event.Extensions++
		x.flight.note(x.event.Operation.ID, time.Now().Add(x.lease))
	case errors.Is(err, ErrLeaseLost):
		x.event.LeaseLost = true
		x.logError("an idempotency lease was lost while its handler runs", err)
		x.giveTurn() // the requests that wait should ask who has it
	default:
		x.logError("an idempotency lease could not be extended", err)
	}
}

// complete stores the handler's answer and sends it, or the one that was
// stored before it.
func (x *exchange) complete(a attempt, rec *recorder, r answer) (again bool) {
	stored, err := a.complete(x.detached(), r)
	switch {
	case err == nil:
		v := verdict{result: decide(stored, x.Takeover), record: stored}
		x.flight.finish(v)
		if own := !stored.Reused && same(*stored.Response, r.Response); !own && !rec.gone() {
			x.answer(v)
			return false
		}
	case errors.Is(err, ErrRestart) && !rec.gone():
		return true
	case errors.Is(err, ErrRolledBack):
		x.fail(a, rec, err)
		return false
	case a.atomic:
		x.yield()
		x.unavailable("an operation could not be committed", err)
		return false
	case undecided(err):
		x.completeLate(a, r)
		fallthrough
	default:
		x.event.Err = err
		x.logError("the answer of an operation could not be recorded", err)
	}
	x.event.Result = ResultExecuted
	if r.lease > 0 {
		x.event.Result = ResultAccepted
	}
	x.send(rec)
	return false
}

// completeLate goes on completing in the background. The flight stays with it.
func (x *exchange) completeLate(a attempt, r answer) {
	x.event.Pending = true
	x.backlog.begin()
	ctx, e := x.detached(), Event{Method: x.event.Method, Pattern: x.event.Pattern, Operation: x.event.Operation}
	go func() {
		defer x.backlog.end()
		defer x.leave()
		defer x.flight.disown()
		stored, err := a.completeLate(ctx, r)
		if err == nil {
			x.flight.finish(verdict{result: decide(stored, x.Takeover), record: stored})
			e.Result = ResultRecorded
		} else {
			e.Result, e.Err = ResultUnrecorded, err
			x.logError("the answer of an operation was never recorded", err)
		}
		x.observe(ctx, e)
	}()
}

// giveUp ends an attempt whose answer is not final, or, if broken is not nil,
// no answer at all.
func (x *exchange) giveUp(a attempt, rec *recorder, broken error) (again bool) {
	cause := broken
	if cause == nil {
		cause = fmt.Errorf("idem: the handler answered %d", rec.status)
	}
	if err := x.release(a, cause); errors.Is(err, ErrRestart) && !rec.gone() {
		return true
	}
	x.fail(a, rec, broken)
	return false
}

func (x *exchange) release(a attempt, cause error) error {
	err := a.release(x.detached(), cause)
	if err != nil && !errors.Is(err, ErrRestart) {
		x.logError("an idempotency lease could not be released, retries have to wait for its end", err)
	}
	return err
}

// fail answers for an attempt that was given up or abandoned: with the handler's answer, or
// with 500 if it broke that off.
func (x *exchange) fail(a attempt, rec *recorder, broken error) {
	x.yield()
	if broken != nil {
		x.logError("an operation failed", broken)
		x.event.Err = broken
	}
	x.event.Result = a.failure()
	if broken != nil && !rec.gone() {
		refused := ResultFailed.refusal().with("No answer was kept. " + retryDetail)
		refused.Result, refused.RetryAfter = x.event.Result, retryAfterOutage
		x.refuse(refused)
		return
	}
	x.send(rec)
}

func (x *exchange) send(rec *recorder) {
	x.event.StatusCode = rec.status
	_ = rec.send() // who has lost the client has the answer kept for the retry
}

// yield lets another request execute the operation.
func (x *exchange) yield() {
	x.flight.disown()
	x.giveTurn()
}

func (x *exchange) disown() {
	if !x.event.Pending {
		x.flight.disown()
	}
}

// gone reports whether the answer is on its way to the client, so that no other
// can take its place.
func (rec *recorder) gone() bool { return rec.passing || rec.hijacked }

// maxBacklog is how many completions may be late before the middleware
// executes nothing any more.
const maxBacklog = 1000

// backlog counts the completions that are being written late.
type backlog struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed when n falls to 0
}

func (b *backlog) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n == 0 {
		b.empty = make(chan struct{})
	}
	b.n++
}

func (b *backlog) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n--
	if b.n == 0 {
		close(b.empty)
	}
}

func (b *backlog) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n >= maxBacklog
}

func (b *backlog) wait(ctx context.Context) error {
	b.mu.Lock()
	n, empty := b.n, b.empty
	b.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("idem: of %d completions not all are written: %w", n, context.Cause(ctx))
	}
}
