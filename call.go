package idem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/idemhttp/idem/internal/redact"
	"github.com/idemhttp/idem/internal/rfc9110"
)

// call is one operation on its way to a final answer. It belongs to one
// goroutine.
type call struct {
	client       *Client
	dialect      *Dialect
	request      http.Request // the template of every attempt
	foreign      bool         // it goes to another origin than that of BaseURL
	follow       bool         // redirects
	key          Key          // "" for a request without one
	body         []byte       // of a keyed request
	created      time.Time    // of the operation; zero if unknown
	pacer        pacer
	started      time.Time
	watched      *url.URL // the status URL that is asked in place of sending, or nil
	watchedSince time.Time
	last         *exchange
	mismatch     mismatch  // the last one seen
	attempts     []Attempt // those that failed
	made         int       // how many those are, forgotten ones included
	sent         bool      // some attempt may have reached the server

	// Most operations are small and have one attempt: with its parts here, they
	// are one allocation.
	first                     exchange
	requestSpace, answerSpace [512]byte
}

// run drives the operation to its final answer, which it returns.
func (c *call) run(ctx context.Context) (*exchange, error) {
	returned := false
	defer func() {
		if !returned { // a hook panicked
			c.abandon()
		}
	}()
	c.started = time.Now()
	ctx = c.hooked(ctx, c.client.Trace.OperationStart, Attempt{Start: c.started})
	c.pacer.budget.deposit()
	err := c.untilFinal(ctx)
	c.done(ctx, err)
	returned = true
	if err != nil {
		c.abandon()
	}
	return c.last, err
}

func (c *call) untilFinal(ctx context.Context) error {
	for number := 1; ; number++ {
		if ctx.Err() != nil {
			return c.incomplete(ctx, ReasonContext)
		}
		if c.expired(0) {
			return c.incomplete(ctx, ReasonExpired)
		}
		x := c.exchange(ctx, number)
		c.settle(x)
		if x.verdict.final() {
			c.attemptDone(x)
			return nil
		}
		wait, reason := c.next(ctx, x)
		x.drain()
		c.attemptDone(x)
		c.remember(x)
		if reason != "" {
			return c.incomplete(ctx, reason)
		}
		c.waiting(ctx, x, wait)
		sleep(ctx, wait)
	}
}

// abandon closes what an operation without a result has left open.
func (c *call) abandon() {
	if c.last != nil {
		c.last.close()
	} else if c.request.Body != nil {
		_ = c.request.Body.Close()
	}
}

// settle gives the attempt its verdict and reads a final answer.
func (c *call) settle(x *exchange) {
	if c.key == "" {
		c.settleUnkeyed(x)
		return
	}
	if x.Err == nil && c.dialect.needsBody(x.Status) {
		x.read(c)
	}
	if x.Err == nil {
		x.verdict, x.pause = c.judge(x)
		if x.verdict.final() && !x.whole && x.tooLarge == nil {
			x.read(c)
		}
	}
	if x.Err != nil {
		x.verdict = VerdictTransient
	}
}

// judge decides what an answer means for the operation, and how long to wait if
// it does not say.
func (c *call) judge(x *exchange) (Verdict, time.Duration) {
	if c.watched != nil && (x.Status == http.StatusNotFound || x.Status == http.StatusGone) {
		if x.Status == http.StatusGone || time.Since(c.watchedSince) >= foundGrace {
			c.watched = nil // who sends again, learns what became of it
		}
		return VerdictInProgress, 0
	}
	verdict, pause := c.dialect.judge(x.Status, x.Header, x.body)
	if verdict == VerdictRejected && c.sent && !x.Replayed && atTheGate(x.Status) {
		return VerdictUncertain, 0
	}
	return verdict, pause
}

// atTheGate reports whether status is one that is given before anybody looks at
// the key. If an earlier attempt was lost, such a refusal says nothing about it.
func atTheGate(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusProxyAuthRequired, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong,
		http.StatusMisdirectedRequest, http.StatusLocked, http.StatusUpgradeRequired, http.StatusRequestHeaderFieldsTooLarge:
		return true
	}
	return false
}

func (c *call) settleUnkeyed(x *exchange) {
	if x.Err != nil || transient(x.Status) && c.mayRepeat(x) {
		x.verdict = VerdictTransient
		return
	}
	x.verdict = VerdictDone // as far as we are concerned
	x.handOver()
}

// next decides what follows an attempt that had no final answer.
func (c *call) next(ctx context.Context, x *exchange) (time.Duration, Reason) {
	switch {
	case ctx.Err() != nil:
		return 0, ReasonContext
	case permanent(x.Err):
		return 0, ReasonPermanent
	case !c.mayRepeat(x):
		return 0, ReasonUnkeyed
	case !c.watch(x):
		return 0, ReasonStatusURL
	}
	hint := cmp.Or(c.dialect.hint(x.Header, x.body, time.Now()), x.pause)
	wait, reason := c.pacer.next(ctx, x.verdict, time.Since(x.Start), hint)
	if reason == "" && c.expired(wait) {
		return 0, ReasonExpired
	}
	return wait, reason
}

// expired reports whether the service may have forgotten the key in a while. A
// status URL is asked without the key.
func (c *call) expired(in time.Duration) bool {
	lifetime := c.dialect.KeyLifetime
	return lifetime > 0 && c.watched == nil && !c.created.IsZero() && add(time.Since(c.created), in) >= lifetime
}

// foundGrace is how long a status URL may be unknown to the service that gave
// it.
const foundGrace = 2 * time.Second

// watch turns to the status URL of an operation in progress, if the dialect has
// one, and reports whether it is of use.
func (c *call) watch(x *exchange) bool {
	if c.watched != nil {
		return true
	}
	field := c.dialect.StatusField
	if x.verdict != VerdictInProgress || field == "" || x.Header.Get(field) == "" {
		return true
	}
	u, err := c.request.URL.Parse(x.Header.Get(field))
	if err != nil || rfc9110.Origin(u) != rfc9110.Origin(c.request.URL) {
		return false
	}
	c.watched, c.watchedSince = u, time.Now()
	return true
}

// mayRepeat reports whether sending again after x cannot do harm.
func (c *call) mayRepeat(x *exchange) bool {
	if c.key != "" {
		return true
	}
	r := &c.request
	replayable := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
	return replayable && (rfc9110.IsIdempotent(r.Method) || x.Err != nil && x.evidence.notSent())
}

// maxRemembered bounds the history of an operation without limits.
const maxRemembered = 1000

func (c *call) remember(x *exchange) {
	if len(c.attempts) == maxRemembered {
		c.attempts = slices.Delete(c.attempts, 0, 1)
	}
	c.attempts = append(c.attempts, c.view(x.Attempt))
	c.made++
	c.sent = c.sent || !x.evidence.notSent()
}

// incomplete returns the error of an operation that is given up.
func (c *call) incomplete(ctx context.Context, reason Reason) error {
	e := &IncompleteError{Key: c.key, Reason: reason, Attempts: c.attempts, made: c.made, request: c.String()}
	if reason == ReasonContext {
		e.Err = contextError(ctx)
	}
	switch {
	case reason == ReasonExpired:
		e.result = Expired
	case !c.sent:
		e.result = NotSent
	}
	x := c.last
	if x == nil {
		return e
	}
	if x.Err != nil {
		e.Last = x.Err
		return e
	}
	response := c.response(x)
	e.Response = &response
	e.Last = c.statusError(response, x.verdict)
	e.RetryAfter = c.dialect.hint(x.Header, x.body, x.Start)
	switch {
	case reason == ReasonExpired:
	case x.verdict == VerdictInProgress:
		e.result = Pending
	case x.whole && reason != ReasonContext:
		e.answer = x.resp
	}
	return e
}

// contextError returns the error of ctx with its cause. If ctx has not ended
// yet, its deadline is too near for another attempt.
func contextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return context.DeadlineExceeded
	}
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// response returns the answer of x as callers see it.
func (c *call) response(x *exchange) Response {
	return Response{
		StatusCode: x.Status, Header: x.Header, Body: x.body,
		Key: c.key, Attempts: x.Number, Replayed: x.Replayed,
	}
}

// finalError returns what is wrong with a final answer, or nil if it is 2xx.
func (c *call) finalError(x *exchange) error {
	response := c.response(x)
	switch {
	case x.conflict():
		return &ConflictError{Response: response, Problem: parseProblem(&response), request: c.String(), verdict: x.verdict}
	case x.Status < 200 || x.Status > 299:
		return c.statusError(response, x.verdict)
	case x.tooLarge != nil:
		return &DecodeError{Response: response, Err: x.tooLarge, request: c.String()}
	}
	return nil
}

// conflict reports whether a final answer is about the key.
func (x *exchange) conflict() bool {
	switch x.verdict {
	case VerdictExists, VerdictKeyReused, VerdictExpired:
		return true
	default:
		return x.Status == http.StatusConflict
	}
}

func (c *call) statusError(response Response, verdict Verdict) *StatusError {
	return &StatusError{Response: response, Problem: parseProblem(&response), request: c.String(), verdict: verdict}
}

// String returns method and URL, without anything secret.
func (c *call) String() string { return c.method() + " " + redact.URL(c.request.URL) }

func (c *call) method() string { return cmp.Or(c.request.Method, http.MethodGet) }

// view completes an attempt for the eyes of others.
func (c *call) view(a Attempt) Attempt {
	a.Key, a.Method, a.URL = c.key, c.method(), redact.URL(c.request.URL)
	return a
}

// hooked calls a Start hook and returns the context that goes on from it.
func (c *call) hooked(ctx context.Context, hook func(context.Context, Attempt) context.Context, a Attempt) context.Context {
	if hook != nil {
		if next := hook(ctx, c.view(a)); next != nil {
			return next
		}
	}
	return ctx
}

func (c *call) attemptDone(x *exchange) {
	x.Duration, x.Sends = time.Since(x.Start), int(x.evidence.sends.Load())
	if hook := c.client.Trace.AttemptDone; hook != nil {
		hook(x.ctx, c.view(x.Attempt))
	}
}

func (c *call) waiting(ctx context.Context, x *exchange, wait time.Duration) {
	x.Wait = wait
	c.attempts[len(c.attempts)-1].Wait = wait
	if hook := c.client.Trace.Waiting; hook != nil {
		hook(ctx, c.view(x.Attempt))
	}
	if log := c.client.Logger; log != nil {
		log.LogAttrs(ctx, slog.LevelInfo, "idem waits to send again", append(c.logAttrs(x.Attempt), slog.Duration("wait", wait))...)
	}
}

// done reports the end of the operation.
func (c *call) done(ctx context.Context, err error) {
	last := Attempt{}
	if c.last != nil {
		last = c.last.Attempt
	}
	last.Start, last.Duration = c.started, time.Since(c.started)
	if log := c.client.Logger; log != nil && err != nil {
		log.LogAttrs(ctx, slog.LevelWarn, "idem gave an operation up", append(c.logAttrs(last), givenUp(err)...)...)
	}
	if hook := c.client.Trace.OperationDone; hook != nil {
		last.Err = err
		hook(ctx, c.view(last))
	}
}

func (c *call) logAttrs(a Attempt) []slog.Attr {
	a = c.view(a)
	result := slog.Int("status", a.Status)
	if a.Err != nil {
		result = slog.String("error", a.Err.Error())
	}
	return []slog.Attr{
		slog.Any("idempotency_key", a.Key), slog.String("method", a.Method), slog.String("url", a.URL), slog.Int("attempt", a.Number), result,
	}
}

func givenUp(err error) []slog.Attr {
	var e *IncompleteError
	if !errors.As(err, &e) {
		return nil
	}
	return []slog.Attr{slog.String("reason", string(e.Reason)), slog.String("outcome", e.result.String())}
}
