package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/bounded"
	"github.com/idemhttp/idem/internal/keyfield"
)

// route is a Middleware as it guards one handler, its defaults filled in.
type route struct {
	*Middleware

	next           http.Handler
	methods        []string
	wait           time.Duration
	lease, ttl     time.Duration
	handlerTimeout time.Duration
	storeTimeout   time.Duration
	maxBody        int64
	maxStored      int64
	maxBuffered    int64
	maxWaiters     int
	logger         *slog.Logger
	handled        average // how long the handler takes
}

// exchange is one governed request on its way through the middleware. Its
// identity is taken once, before the handler sees the request.
type exchange struct {
	*route

	w      http.ResponseWriter
	r      *http.Request
	id     ID
	echo   Field // the key as the client spelled it
	body   []byte
	flight *flight
	// hasTurn: the flight's turn is with this exchange, or with the goroutine
	// that completes its operation late.
	hasTurn atomic.Bool
	event   Event
}

// ServeHTTP implements [http.Handler].
func (rt *route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method, governed := rt.governs(r.Method)
	if !governed {
		rt.next.ServeHTTP(w, r)
		return
	}
	x := &exchange{route: rt, w: w, r: r, event: Event{Method: method, Pattern: r.Pattern}}
	defer x.finish()
	if rt.Optional && len(r.Header[keyfield.Name]) == 0 {
		x.event.Result = ResultUnkeyed
		rt.next.ServeHTTP(w, r)
		return
	}
	if refused := x.admit(); refused.result != "" {
		x.refuse(refused)
		return
	}
	x.serve()
}

// finish tells the observer what became of the exchange, unless that ended in
// a panic before anything was decided.
func (x *exchange) finish() {
	if x.event.Result != "" {
		x.observe(x.r.Context(), x.event)
	}
}

// governs returns the configured spelling of a method that is governed.
func (rt *route) governs(method string) (string, bool) {
	for _, governed := range rt.methods {
		if strings.EqualFold(method, governed) {
			return governed, true
		}
	}
	return "", false
}

// maxRestarts is how often an operation is run again within one request.
const maxRestarts = 3

var errBacklog = errors.New("idem: too many answers wait for being recorded")

// serve executes the operation or answers what became of it.
func (x *exchange) serve() {
	if x.backlog.full() {
		x.unavailable("too many answers wait for being recorded", errBacklog)
		return
	}
	x.flight = x.room.join(flightID{x.id, fingerprintOf(x.r, x.body)})
	defer func() {
		if !x.event.Pending {
			x.leave()
		}
	}()
	deadline := time.Now().Add(x.wait)
	for range 1 + maxRestarts {
		v := x.settle(deadline)
		if v.result != ResultExecuted {
			x.answer(v)
			return
		}
		if !x.execute(v.claim) {
			return
		}
		x.event.Restarts++
	}
	x.unavailable("an operation was rolled back too often", ErrRestart)
}

// unavailable answers that the store cannot serve the request now.
func (x *exchange) unavailable(msg string, err error) {
	x.logError(msg, err)
	x.answer(verdict{result: ResultStoreError, err: err})
}

func (x *exchange) leave() {
	x.giveTurn()
	x.flight.leave()
}

// admit takes the identity of the request and its whole body, or returns the
// refusal.
func (x *exchange) admit() refusal {
	if refused := x.readKey(); refused.result != "" {
		return refused
	}
	if refused := x.readAccount(); refused.result != "" {
		return refused
	}
	x.event.Operation.Account, x.event.Operation.Key = x.id.Account, x.id.Key
	return x.readBody()
}

func (x *exchange) readKey() refusal {
	lines := x.r.Header[keyfield.Name]
	if len(lines) == 0 {
		return refusal{
			result: ResultMissing,
			detail: "Send an Idempotency-Key field with a new UUID, and the same one whenever this request is sent again.",
		}
	}
	key, err := keyfield.Parse(lines)
	if err != nil {
		return refusal{result: ResultInvalid, detail: "Idempotency-Key is refused: " + err.Error() + "."}
	}
	x.id.Key, x.echo = key, Field{keyfield.Name, strings.TrimSpace(lines[0])}
	return refusal{}
}

func (x *exchange) readAccount() refusal {
	account, err := x.Account(x.r)
	var chosen interface{ HTTPStatus() int }
	switch {
	case errors.Is(err, ErrNoAccount) || err == nil && account == "":
		return refusal{result: ResultNoAccount, detail: "Authenticate, then send the request again with the same key."}
	case errors.As(err, &chosen) && chosen.HTTPStatus() >= 400 && chosen.HTTPStatus() < 600:
		return refusal{result: ResultRefused, status: chosen.HTTPStatus()}
	case err != nil:
		x.event.Err = err
		return refusal{result: ResultAccountError, detail: retryDetail, retryAfter: retryAfterOutage}
	case !validAccount(account):
		return refusal{result: ResultRefused, status: http.StatusBadRequest, detail: "The account has a name that cannot be used."}
	}
	x.id.Account = account
	return refusal{}
}

func validAccount(account string) bool {
	return account != "" && len(account) <= 255 && !strings.Contains(account, "\x00") && utf8.ValidString(account)
}

func (x *exchange) readBody() refusal {
	tooLarge := refusal{result: ResultTooLarge, detail: fmt.Sprintf("The body may have at most %d bytes.", x.maxBody)}
	if x.r.ContentLength > x.maxBody {
		return tooLarge
	}
	if x.r.Body == nil {
		return refusal{}
	}
	body, err := bounded.Read(nil, http.MaxBytesReader(x.w, x.r.Body, x.maxBody), x.r.ContentLength, x.maxBody)
	var limit *http.MaxBytesError
	if errors.As(err, &limit) {
		tooLarge.detail = fmt.Sprintf("The body may have at most %d bytes.", limit.Limit)
		return tooLarge
	}
	if err != nil {
		x.event.Err = err
		return refusal{result: ResultIncomplete, detail: "Nothing was done; send the whole request again with the same key."}
	}
	if len(body) == 0 && x.r.ContentLength > 0 {
		x.logError("the body of a request has been read before the idempotency middleware saw it", errBodyRead)
		return refusal{result: ResultMisconfigured, detail: misconfiguredDetail}
	}
	x.body = body
	return refusal{}
}

var errBodyRead = errors.New("idem: read the body inside of this middleware, or put another in its place")

// request is what the handler gets, in a copy of its own.
func (x *exchange) request(ctx context.Context) *http.Request {
	r := x.r.Clone(ctx)
	r.Header.Del("Accept-Encoding")
	r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, int64(len(x.body)), nil
	if len(x.body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(x.body))
	}
	return r
}

// detached returns the request's context for what goes on when the client
// hangs up.
func (x *exchange) detached() context.Context { return context.WithoutCancel(x.r.Context()) }

const (
	retryDetail         = "Send the request again with the same key."
	misconfiguredDetail = "The log says what is wrong."
	retryAfterOutage    = "1"
)

// answer sends what came of another claim than this exchange's.
func (x *exchange) answer(v verdict) {
	x.event.Result, x.event.Err = v.result, v.err
	switch v.result {
	case ResultReplayed:
		x.event.StatusCode = v.record.Response.StatusCode
		_ = replay(x.w, x.r, *v.record.Response, x.echo, Field{keyfield.Replayed, "true"})
	case ResultInFlight:
		x.event.StatusCode = http.StatusAccepted
		x.w.Header().Set(x.echo.Name, x.echo.Value)
		operation, leaseUntil := x.flight.noted()
		writeProcessing(x.w, operation, retryAfter(x.handled.value(), x.leaseLeft(leaseUntil)))
	default:
		x.refuse(explain(v))
	}
}

func (x *exchange) leaseLeft(until time.Time) time.Duration {
	if until.IsZero() { // nobody knows yet
		return x.lease
	}
	return time.Until(until)
}

// retryAfter returns the seconds after which a request in flight is worth
// sending again: what the handler usually takes, and at least one, but no more
// than the whole seconds for which the running attempt still holds its lease.
func retryAfter(usual, leaseLeft time.Duration) int {
	seconds := max(1, (usual+time.Second-1)/time.Second)
	return int(max(0, min(seconds, leaseLeft/time.Second)))
}

// explain says what a program or its author can do about a verdict.
func explain(v verdict) refusal {
	refused := refusal{result: v.result}
	switch v.result {
	case ResultReused:
		refused.detail = "A new operation needs a new key; to repeat the earlier one, send exactly the same request."
	case ResultNotKept:
		refused.detail = "The operation was executed once and will not be again; look its result up by other means."
		refused.members = map[string]any{"original_status": v.record.Response.StatusCode}
	case ResultIndeterminate:
		refused.detail = "The server was lost while it executed the operation. Find out what became of it before sending it with a new key."
	default:
		refused.detail, refused.retryAfter = retryDetail, retryAfterOutage
	}
	if v.record.Operation != uuid.Nil && !v.record.Reused {
		if refused.members == nil {
			refused.members = map[string]any{}
		}
		refused.members["operation_id"] = v.record.Operation
	}
	return refused
}

func (x *exchange) refuse(f refusal) {
	x.event.Result = f.result
	if f.result == ResultAccountError {
		x.logError("the account of a request could not be determined", x.event.Err)
	}
	if x.echo.Name != "" {
		x.w.Header().Set(x.echo.Name, x.echo.Value)
	}
	x.event.StatusCode = f.write(x.w)
}

func (x *exchange) logError(msg string, err error) {
	x.logger.ErrorContext(x.r.Context(), msg, "error", err, //nolint:sloglint // every caller's message is a constant
		"account", x.id.Account, "idempotency_key", keyfield.Shorten(x.id.Key), "attempt", x.event.Operation.Attempt)
}

// average is a moving average of durations. The zero value is ready to use.
type average struct{ nanoseconds atomic.Int64 }

// add weighs the latest duration with an eighth. An update that is lost to a
// concurrent one does not matter.
func (a *average) add(d time.Duration) {
	old := a.nanoseconds.Load()
	if old == 0 {
		old = int64(d)
	}
	a.nanoseconds.Store(old + (int64(d)-old)/8)
}

func (a *average) value() time.Duration { return time.Duration(a.nanoseconds.Load()) }
