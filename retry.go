package idem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/idemhttp/idem/internal/redact"
	"github.com/idemhttp/idem/internal/rfc9110"
)

// NoLimit is the value of a limit that does not limit. Where int has 32 bits,
// [math.MaxInt] serves for the fields of that type.
const NoLimit = math.MaxInt64

// RetryPolicy says how long and how often a client tries. In every field zero
// means the default given there, [NoLimit] means no limit, and a negative value
// is an error.
type RetryPolicy struct {
	// MaxAttempts is how many times an operation is sent, the first time
	// included: 1 means no retry. Answers that say the operation is in
	// progress do not count. Zero means 5.
	MaxAttempts int
	// AttemptTimeout bounds one attempt, from the connection to the last byte
	// of the answer, or for a request without a key to the end of its header.
	// Zero means 30 s.
	AttemptTimeout time.Duration
	// MaxElapsed is how long after the start of an operation its last attempt
	// may begin. Time spent waiting for an operation in progress does not
	// count. Zero means 2 min.
	MaxElapsed time.Duration
	// MaxRetryAfter is the longest Retry-After that is waited for. A server
	// that asks for more ends the operation at once. Zero means 1 min.
	MaxRetryAfter time.Duration
	// MaxWait is how long an operation that is in progress on the server is
	// asked for. Zero means 5 min.
	MaxWait time.Duration
	// NewBackOff returns the ceilings of the waits of one operation, without
	// jitter: the wait is drawn evenly from zero to the ceiling, and added to
	// Retry-After if there is one. It is called once or twice per operation and
	// must return a fresh instance; [backoff.Stop] ends the operation. Nil, here
	// or returned, means 200 ms, doubling up to 10 s.
	NewBackOff func() backoff.BackOff
	// Budget limits the retries of many operations together. Nil means one of
	// the client's own, with the defaults of Budget.
	Budget *Budget
}

// withDefaults returns p with zero fields replaced, or an error for a negative
// one.
func (p RetryPolicy) withDefaults() (RetryPolicy, error) {
	if p.MaxAttempts < 0 {
		return p, negative("RetryPolicy.MaxAttempts")
	}
	if p.MaxAttempts == 0 {
		p.MaxAttempts = 5
	}
	err := cmp.Or(
		setDefault(&p.AttemptTimeout, 30*time.Second, "RetryPolicy.AttemptTimeout"),
		setDefault(&p.MaxElapsed, 2*time.Minute, "RetryPolicy.MaxElapsed"),
		setDefault(&p.MaxRetryAfter, time.Minute, "RetryPolicy.MaxRetryAfter"),
		setDefault(&p.MaxWait, 5*time.Minute, "RetryPolicy.MaxWait"),
		p.Budget.check(),
	)
	return p, err
}

func (p RetryPolicy) backOff() backoff.BackOff {
	if p.NewBackOff != nil {
		if b := p.NewBackOff(); b != nil {
			return b
		}
	}
	return newBackOff()
}

// setDefault replaces a zero and refuses what is negative.
func setDefault(d *time.Duration, standard time.Duration, field string) error {
	if *d < 0 {
		return negative(field)
	}
	*d = cmp.Or(*d, standard)
	return nil
}

func negative(field string) error {
	return &UsageError{Field: field, Reason: "it is negative; zero means the default and idem.NoLimit means no limit"}
}

func newBackOff() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(200*time.Millisecond),
		backoff.WithMultiplier(2),
		backoff.WithMaxInterval(10*time.Second),
		backoff.WithRandomizationFactor(0), // the jitter is ours
		backoff.WithMaxElapsedTime(0),      // and so is the limit
	)
}

// Budget is a token bucket that the operations of a client share, so that an
// outage is not multiplied by everybody's retries. A retry takes a token; one
// that finds none is not made. Asking after an operation in progress is free.
// The zero value is ready to use. A Budget is safe for concurrent use and must
// not be copied after first use.
type Budget struct {
	// Burst is the size of the bucket, which is full at first. Zero means 100;
	// NoLimit means that retries are never refused.
	Burst int
	// PerOperation is what every new operation adds. Zero means 0.1: in the
	// long run one retry for ten operations.
	PerOperation float64
	// PerSecond is what every second adds, so that a client of few operations
	// recovers. Zero means 1.
	PerSecond float64

	mu      sync.Mutex
	missing float64 // from a full bucket
	updated time.Time
}

func (b *Budget) check() error {
	switch {
	case b == nil:
		return nil
	case b.Burst < 0:
		return negative("Budget.Burst")
	case !(b.PerOperation >= 0): // also catches NaN
		return negative("Budget.PerOperation")
	case !(b.PerSecond >= 0):
		return negative("Budget.PerSecond")
	}
	return nil
}

// deposit adds the share of a new operation.
func (b *Budget) deposit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missing = max(0, b.missing-cmp.Or(b.PerOperation, 0.1))
}

// take takes a token for one retry and reports whether there was one.
func (b *Budget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.missing > 0 {
		b.missing = max(0, b.missing-now.Sub(b.updated).Seconds()*cmp.Or(b.PerSecond, 1))
	}
	b.updated = now
	if b.missing+1 > float64(cmp.Or(b.Burst, 100)) {
		return false
	}
	b.missing++
	return true
}

// pacer decides, for one operation, whether there is another attempt and how
// long to wait for it. It keeps two accounts: one for attempts that failed, one
// for those that found the operation in progress.
type pacer struct {
	policy   RetryPolicy
	budget   *Budget
	failures int
	elapsed  time.Duration // failed attempts and the waits after them
	polled   time.Duration // the same for answers "in progress"
	failing  backoff.BackOff
	polls    int
	jitter   time.Duration // between polls: the backoff's first ceiling
}

// pollFloor keeps a client from asking after an operation in progress more
// often than this, whatever the server says.
const pollFloor = 250 * time.Millisecond

// next returns how long to wait before the next attempt, or the reason why
// there is none. took is the duration of the attempt that ended and hint its
// Retry-After.
func (p *pacer) next(ctx context.Context, verdict Verdict, took, hint time.Duration) (time.Duration, Reason) {
	var wait time.Duration
	var reason Reason
	if verdict == VerdictInProgress {
		wait, reason = p.poll(took, hint)
	} else {
		wait, reason = p.retry(took, hint)
	}
	if reason != "" {
		return 0, reason
	}
	if deadline, ok := ctx.Deadline(); ok && wait >= time.Until(deadline) {
		return 0, ReasonContext
	}
	if verdict != VerdictInProgress && !p.budget.take() {
		return 0, ReasonBudget
	}
	return wait, ""
}

func (p *pacer) retry(took, hint time.Duration) (time.Duration, Reason) {
	p.failures++
	if p.failures >= p.policy.MaxAttempts {
		return 0, ReasonAttempts
	}
	if hint > p.policy.MaxRetryAfter {
		return 0, ReasonRetryAfter
	}
	if p.failing == nil {
		p.failing = p.policy.backOff()
	}
	ceiling := p.failing.NextBackOff()
	if ceiling == backoff.Stop {
		return 0, ReasonBackOff
	}
	wait := delay(ceiling, hint)
	p.elapsed = add(p.elapsed, add(took, wait))
	if p.elapsed > p.policy.MaxElapsed {
		return 0, ReasonElapsed
	}
	return wait, ""
}

func (p *pacer) poll(took, hint time.Duration) (time.Duration, Reason) {
	if p.polls++; p.polls == 1 {
		p.jitter = p.policy.backOff().NextBackOff()
	}
	wait := delay(p.jitter, max(hint, pollFloor))
	p.polled = add(p.polled, add(took, wait))
	if p.polled > p.policy.MaxWait {
		return 0, ReasonMaxWait
	}
	return wait, ""
}

// delay is the wait for a ceiling and the server's hint: the hint, plus a
// random part between zero and the ceiling, so that nobody comes early and not
// everybody at once.
func delay(ceiling, hint time.Duration) time.Duration {
	jitter := time.Duration(rand.Uint64N(uint64(max(0, ceiling)) + 1))
	return add(max(0, hint), jitter)
}

// add adds two durations that are not negative and saturates.
func add(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// attemptTimeoutError ends an attempt that took longer than AttemptTimeout. It
// is not a context error: the caller's own deadline has not passed.
type attemptTimeoutError struct{ after time.Duration }

func (e *attemptTimeoutError) Error() string {
	return fmt.Sprintf("idem: no complete answer within the attempt timeout of %v", e.after)
}

// Timeout implements the interface of [net.Error].
func (e *attemptTimeoutError) Timeout() bool { return true }

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
