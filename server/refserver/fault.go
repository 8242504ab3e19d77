package refserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// FaultField is the request field that asks for faults.
const FaultField = "X-Fault"

// Fault is what goes wrong with one request. The zero value is nothing.
type Fault struct {
	Delay     time.Duration // the handler waits before the effect
	Fail      int           // the handler answers with this status instead of having its effect
	FailAfter int           // the handler answers with this status after its effect
	Panic     bool          // the handler panics before the effect
	Drop      bool          // the connection is closed in place of the answer
	Truncate  int           // the connection is closed after so many bytes of the answer's body, if it has more

	// Times bounds Fail, FailAfter and Panic to the first so many attempts of
	// an operation, and Drop and Truncate to answers that are neither replays
	// nor 202. Zero means no bound.
	Times int
}

// ParseFault reads the value of an X-Fault field: a list of faults that happen
// to the same request.
//
//	delay=300ms      wait before the effect
//	fail             answer 503 before the effect; fail=500 answers 500
//	fail-after       have the effect, then answer 503 (or what it is set to);
//	                 where the two are one transaction, the effect is undone
//	panic            panic before the effect
//	drop             have the effect, then close the connection
//	truncate=10      have the effect, then cut the answer's body after 10 bytes
//	times=2          hit the first two attempts; without it, the first
//
// An example is "fail=502, times=2". Since a client repeats the field with
// every attempt, the later ones are spared.
func ParseFault(s string) (Fault, error) {
	f := Fault{Times: 1}
	for item := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		var err error
		if f, err = f.with(name, value); err != nil {
			return Fault{}, fmt.Errorf("refserver: the fault %q %w", strings.TrimSpace(item), err)
		}
	}
	return f, nil
}

// with returns f with one more fault.
func (f Fault) with(name, value string) (_ Fault, err error) {
	switch name {
	case "delay":
		f.Delay, err = time.ParseDuration(value)
		if err != nil || f.Delay < 0 {
			return f, fmt.Errorf("needs a duration such as delay=300ms")
		}
	case "fail":
		f.Fail, err = number(value, 503, 400, 599)
	case "fail-after":
		f.FailAfter, err = number(value, 503, 400, 599)
	case "truncate":
		f.Truncate, err = number(value, 1, 1, 1<<20)
	case "times":
		f.Times, err = number(value, 1, 1, 1000)
	case "panic":
		f.Panic = true
	case "drop":
		f.Drop = true
	default:
		return f, fmt.Errorf("is unknown; there are delay, fail, fail-after, panic, drop, truncate and times")
	}
	return f, err
}

func number(s string, missing, least, most int) (int, error) {
	if s == "" {
		return missing, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("needs a number from %d to %d", least, most)
	}
	return n, nil
}

// hits reports whether an attempt is one of those that a fault is meant for.
func (f Fault) hits(attempt int) bool { return f.Times == 0 || attempt <= f.Times }

// Chances are the probabilities, from 0 to 1 and independent of each other,
// that a fault happens to any request that creates something. The zero value
// is no faults.
type Chances struct {
	Seed     uint64 // the same seed gives the same faults in the same order of arrival
	Delay    float64
	DelayFor time.Duration // how long Delay waits; zero means 100 ms

	// What the fields of Fault of the same names do. Failures are 503.
	Fail, FailAfter, Panic, Drop, Truncate float64
}

// faults chooses the fault of each request. It is safe for concurrent use.
type faults struct {
	mu      sync.Mutex
	next    []Fault
	chances Chances
	random  *rand.Rand // nil without chances
}

func (f *faults) setChances(c Chances) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chances = c
	f.random = rand.New(rand.NewPCG(c.Seed, 0))
	if c == (Chances{Seed: c.Seed, DelayFor: c.DelayFor}) {
		f.random = nil
	}
}

func (f *faults) push(next []Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = append(f.next, next...)
}

// choose returns the fault of the next request: the one that the request asks
// for, or else the first that waits, or else what the dice say.
func (f *faults) choose(r *http.Request) (Fault, error) {
	if lines := r.Header.Values(FaultField); len(lines) > 0 {
		return ParseFault(strings.Join(lines, ","))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.next) > 0 {
		fault := f.next[0]
		f.next = f.next[1:]
		return fault, nil
	}
	return f.roll(), nil
}

func (f *faults) roll() (fault Fault) {
	if f.random == nil {
		return fault
	}
	happens := func(p float64) bool { return f.random.Float64() < p }
	if happens(f.chances.Delay) {
		fault.Delay = f.chances.DelayFor
		if fault.Delay == 0 {
			fault.Delay = 100 * time.Millisecond
		}
	}
	if happens(f.chances.Fail) {
		fault.Fail = http.StatusServiceUnavailable
	}
	if happens(f.chances.FailAfter) {
		fault.FailAfter = http.StatusServiceUnavailable
	}
	fault.Panic = happens(f.chances.Panic)
	fault.Drop = happens(f.chances.Drop)
	if happens(f.chances.Truncate) {
		fault.Truncate = 1
	}
	return fault
}

type faultKey struct{}

// faultFrom returns the fault that was chosen for the request of ctx.
func faultFrom(ctx context.Context) Fault {
	f, _ := ctx.Value(faultKey{}).(Fault)
	return f
}

// withFaults lets each request to next meet its fault. What happens to the
// answer happens here, outside of the idempotency middleware, where the effect
// and its record are done with. What happens to the handler is left to it.
func (s *Server) withFaults(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fault, err := s.faults.choose(r)
		if err != nil {
			writeProblem(w, http.StatusBadRequest, "INVALID_FAULT", err.Error())
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), faultKey{}, fault))
		if !fault.Drop && fault.Truncate == 0 {
			next.ServeHTTP(w, r)
			return
		}
		answer := &heldAnswer{header: w.Header()}
		next.ServeHTTP(answer, r)
		spared := fault.Times > 0 && !answer.fresh()
		if spared || !fault.Drop && fault.Truncate >= answer.body.Len() {
			answer.send(w, answer.body.Len())
			return
		}
		if !fault.Drop {
			answer.send(w, fault.Truncate)
			_ = http.NewResponseController(w).Flush() // the connection is given up in any case
		}
		panic(http.ErrAbortHandler)
	})
}
