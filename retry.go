package idem

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
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
