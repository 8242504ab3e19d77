package server

import (
	"context"
	"time"
)

// Result is what became of a request, in one word. It is fit for the label of
// a metric.
type Result string

// The results of requests that the middleware governs.
const (
	ResultExecuted      Result = "executed"      // the handler ran, and its answer is final
	ResultFailed        Result = "failed"        // the handler ran, and a retry will run it again
	ResultAbandoned     Result = "abandoned"     // the handler ran, and does not know what came of it
	ResultReplayed      Result = "replayed"      // the stored answer was sent
	ResultAccepted      Result = "accepted"      // 202: the handler, just now or earlier, has left the rest to a worker
	ResultInFlight      Result = "in_flight"     // 202: another attempt is running
	ResultReused        Result = "reused"        // 409: the key belongs to another request
	ResultNotKept       Result = "not_kept"      // 409: done, but the answer was too large to keep
	ResultIndeterminate Result = "indeterminate" // 409: the owner was lost, and Takeover is Refuse
	ResultUnkeyed       Result = "unkeyed"       // passed through: keys are optional, and there was none
	ResultMissing       Result = "missing"       // 400: no key
	ResultInvalid       Result = "invalid"       // 400: a malformed key
	ResultNoAccount     Result = "no_account"    // 401: the request belongs to no account
	ResultRefused       Result = "refused"       // the status that the account function chose, or 400: its name is no use
	ResultAccountError  Result = "account_error" // 503: the account function failed
	ResultTooLarge      Result = "too_large"     // 413: the body is over MaxBody
	ResultIncomplete    Result = "incomplete"    // 400: the body could not be read to its end
	ResultStoreError    Result = "store_error"   // 503: the store failed, nothing was executed or nothing is durable
	ResultMisconfigured Result = "misconfigured" // 500: the body was read outside, or another middleware guards the request already

	// ResultNotFound is no result of requests that are governed, but of those
	// for the status of an operation: 404.
	ResultNotFound Result = "not_found"

	// ResultRecorded and ResultUnrecorded are the results of no request, but
	// of a completion that had been Pending: it was written at last, or given
	// up.
	ResultRecorded   Result = "recorded"
	ResultUnrecorded Result = "unrecorded"
)

// Event is what became of one request, for metrics and logs. Result, Method,
// Pattern and StatusCode take few values; all else is for other purposes than
// labels.
type Event struct {
	Result     Result
	Method     string // as the middleware is configured, whatever its case in the request
	Pattern    string // of the [http.ServeMux] outside, or ""
	StatusCode int    // of the answer; 0 if there was none or it was not seen
	// Operation has the account and key as far as they are known, and id and
	// attempt if this request executed it.
	Operation Operation
	// TakenOver says that the attempt took over from one that was lost.
	TakenOver bool
	// Waited is how long the request waited for other attempts.
	Waited time.Duration
	// Handled is how long the handler ran, all reruns included.
	Handled time.Duration
	// Restarts is how often the handler was run again within this request.
	Restarts int
	// Extensions is how often the lease was extended.
	Extensions int
	// LeaseLost says that the lease ended while the handler ran, so that
	// another attempt may have been executed at the same time.
	LeaseLost bool
	// Pending says that the answer was sent although it could not be recorded
	// yet. ResultRecorded or ResultUnrecorded follows in an event of its own.
	Pending bool
	// Err is what went wrong, if that is not the client's affair alone.
	Err error
}

func (m *Middleware) observe(ctx context.Context, e Event) {
	if m.Observe != nil {
		m.Observe(ctx, e)
	}
}
