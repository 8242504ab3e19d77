package idem

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/idemhttp/idem/internal/problem"
)

// Outcome says what is known of an operation after an error.
type Outcome uint8

// The outcomes.
const (
	// Unknown: it may have happened. Only the same key is safe: send the same
	// operation again, or look it up. Never start over with a new key.
	Unknown Outcome = iota
	// NotSent: no attempt of this call got a connection, so this call did not
	// make it happen. If the operation was sent before, that is as open as it
	// was.
	NotSent
	// Pending: the server is still working on it. Send the same operation
	// again later.
	Pending
	// Rejected: the server refused it; it did not happen and will not.
	Rejected
	// Done: it happened.
	Done
	// Expired: the service may have forgotten the key, so that sending again
	// could be a second operation. Whether it happened has to be looked up.
	Expired
)

// String returns the outcome in lower case.
func (o Outcome) String() string {
	switch o {
	case NotSent:
		return "not sent"
	case Pending:
		return "pending"
	case Rejected:
		return "rejected"
	case Done:
		return "done"
	case Expired:
		return "expired"
	default:
		return "unknown"
	}
}

// OutcomeOf returns what err, an error of this package or one that wraps it,
// says about the operation. Nil is Done, and an error from elsewhere Unknown.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Done
	}
	var known interface{ outcome() Outcome }
	if errors.As(err, &known) {
		return known.outcome()
	}
	return Unknown
}

// UsageError says that the client was configured or called wrongly. Nothing
// was sent.
type UsageError struct {
	Field  string // what is wrong, such as RetryPolicy.MaxAttempts or URL
	Reason string // why, and what to do instead
	Err    error  // the cause, if there is one
}

// Error implements error.
func (e *UsageError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("idem: %s: %s: %v", e.Field, e.Reason, e.Err)
	}
	return fmt.Sprintf("idem: %s: %s", e.Field, e.Reason)
}

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.Err }

func (e *UsageError) outcome() Outcome { return NotSent }

// Problem holds the problem details (RFC 9457) of an answer. A member that was
// absent or of the wrong type is zero; Members holds the extension members other
// than code.
type Problem struct {
	Type     string         // a URI reference; "" means about:blank
	Title    string         // the same for every occurrence of the type
	Status   int            // the status code that the origin sent
	Detail   string         // what happened this time
	Instance string         // a URI reference of this occurrence
	Code     string         // the cause, for programs, such as IDEMPOTENCY_KEY_REUSE
	Members  map[string]any // other extension members
}

func parseProblem(r *Response) *Problem {
	return (*Problem)(problem.Parse(r.Header.Get("Content-Type"), r.Body))
}

// describe renders the status of an answer and what its problem details say.
// Other bodies are never printed: nobody knows what is in them.
func describe(r *Response, p *Problem) string {
	parts := []string{strings.TrimSpace(fmt.Sprintf("%d %s", r.StatusCode, http.StatusText(r.StatusCode)))}
	if p != nil {
		for _, s := range []string{p.Code, p.Title, p.Detail} {
			if s != "" {
				parts = append(parts, s)
			}
		}
	}
	return strings.Join(parts, ": ")
}

// ConflictError is a final refusal that concerns the key: it was used with
// another request, its answer was not kept, its owner was lost, it has expired,
// or the handler itself answered 409. No retry changes it. Response is the
// answer, with its body.
type ConflictError struct {
	Response
	Problem *Problem // nil if the answer had no problem details
	request string
	verdict Verdict
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("idem: %s: %s (key %s: %s)", e.request, describe(&e.Response, e.Problem), e.Key, e.outcome())
}

func (e *ConflictError) outcome() Outcome { return e.verdict.outcome() }

// StatusError is an answer that is not 2xx. As the error of [Send] it is final.
// Inside an [IncompleteError] it is the last answer of an operation that was
// given up, and its body may be cut to 64 KiB.
type StatusError struct {
	Response
	Problem *Problem // nil if the answer had no problem details
	request string
	verdict Verdict
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("idem: %s: %s%s", e.request, describe(&e.Response, e.Problem), withKey(e.Key))
}

func (e *StatusError) outcome() Outcome { return e.verdict.outcome() }

// DecodeError says that the operation was done, but that its answer could not
// be decoded or was larger than [Client.MaxResponseBytes]; Body is then empty.
type DecodeError struct {
	Response
	Err     error
	request string
}

// Error implements error.
func (e *DecodeError) Error() string {
	return fmt.Sprintf("idem: %s: cannot decode the answer %d of type %q: %v%s",
		e.request, e.StatusCode, e.Header.Get("Content-Type"), e.Err, withKey(e.Key))
}

// Unwrap returns the error of the decoder.
func (e *DecodeError) Unwrap() error { return e.Err }

func (e *DecodeError) outcome() Outcome { return Done }

// Reason says why an operation was given up.
type Reason string

// The reasons.
const (
	ReasonContext    Reason = "the context ended, or would end before the next attempt"
	ReasonAttempts   Reason = "MaxAttempts is reached"
	ReasonElapsed    Reason = "MaxElapsed would pass before the next attempt"
	ReasonRetryAfter Reason = "the server asks for a longer wait than MaxRetryAfter"
	ReasonMaxWait    Reason = "the operation is still in progress after MaxWait"
	ReasonBudget     Reason = "the retry budget is spent"
	ReasonBackOff    Reason = "the backoff says stop"
	ReasonPermanent  Reason = "the error is not one that a retry heals"
	ReasonUnkeyed    Reason = "without a key it is not safe to send again"
	ReasonExpired    Reason = "the service may have forgotten the key by then"
	ReasonStatusURL  Reason = "the URL to watch the operation under is not one of its origin"
)

// IncompleteError says that an operation was given up before it had a final
// answer. [OutcomeOf] tells whether it may have happened; if so, only the same
// key is safe. The context's error, its cause and the last attempt's error are
// all found by errors.Is and errors.As.
type IncompleteError struct {
	Key        Key
	Reason     Reason
	Err        error         // the context's error and cause for ReasonContext, otherwise nil
	Last       error         // the error of the last attempt, a *StatusError if it was answered; nil if nothing was sent
	Response   *Response     // the last answer, or nil
	RetryAfter time.Duration // what the last answer asked for, uncut
	Attempts   []Attempt     // every attempt, oldest first; the last 1,000 if there are more

	request string
	made    int // attempts in all
	result  Outcome
	answer  *http.Response // the last answer, if it is whole and may stand for a final one
}

// Error implements error.
func (e *IncompleteError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "idem: %s: given up after %d attempts: %s", e.request, e.made, e.Reason)
	if e.Err != nil {
		fmt.Fprintf(&b, " (%v)", e.Err)
	}
	if e.Last != nil {
		fmt.Fprintf(&b, ": %s", lastText(e.Last))
	}
	if e.Key != "" {
		fmt.Fprintf(&b, " (key %s: %s)", e.Key, e.advice())
	}
	return b.String()
}

// lastText renders the last attempt's error without what IncompleteError says
// itself: method, URL and key.
func lastText(err error) string {
	switch err := err.(type) { //nolint:errorlint // only these two are ever the last error
	case *StatusError:
		return describe(&err.Response, err.Problem)
	case *url.Error:
		return err.Err.Error()
	}
	return err.Error()
}

// Timeout reports whether time was what ended the operation, as [net.Error]
// defines it.
func (e *IncompleteError) Timeout() bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(e, context.DeadlineExceeded) || errors.As(e.Last, &timeout) && timeout.Timeout()
}

func (e *IncompleteError) advice() string {
	switch e.result {
	case NotSent:
		return "it was not sent"
	case Pending:
		return "it is in progress, ask again with the same key"
	case Expired:
		return "look up whether it happened, do not send it again"
	default:
		return "it may have happened, try again with the same key only"
	}
}

// Unwrap returns the context's errors and the last attempt's.
func (e *IncompleteError) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Err, e.Last} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func (e *IncompleteError) outcome() Outcome { return e.result }

func withKey(key Key) string {
	if key == "" {
		return ""
	}
	return fmt.Sprintf(" (key %s)", key)
}
