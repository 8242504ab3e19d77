package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

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
	contract       Contract
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
	if refused := x.admit(); refused.Result != "" {
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
func (x *exchange) admit() Refusal {
	if refused := x.readKey(); refused.Result != "" {
		return refused
	}
	if refused := x.readAccount(); refused.Result != "" {
		return refused
	}
	x.event.Operation.Account, x.event.Operation.Key = x.id.Account, x.id.Key
	if outer, guarded := OperationFrom(x.r.Context()); guarded && (ID{outer.Account, outer.Key}) == x.id {
		return x.misplaced(errGuardedTwice)
	}
	return x.readBody()
}

var (
	errGuardedTwice = errors.New("idem: another middleware outside guards the request already; use one of the two")
	errBodyRead     = errors.New("idem: the body was read outside of this middleware; read it inside, or put another in its place")
)

// misplaced refuses a request that can never be executed because of where this
// middleware stands.
func (x *exchange) misplaced(err error) Refusal {
	x.event.Err = err
	x.logError("the idempotency middleware is misplaced", err)
	return ResultMisconfigured.refusal().with(misconfiguredDetail)
}

func (x *exchange) readKey() Refusal {
	lines := x.r.Header[keyfield.Name]
	if len(lines) == 0 {
		return ResultMissing.refusal().with(
			"Send an Idempotency-Key field with a new UUID, and the same one whenever this request is sent again.")
	}
	key, err := keyfield.Parse(lines)
	if err != nil {
		return ResultInvalid.refusal().with("Idempotency-Key is refused: " + err.Error() + ".")
	}
	x.id.Key, x.echo = key, Field{keyfield.Name, strings.TrimSpace(lines[0])}
	return Refusal{}
}

func (x *exchange) readAccount() Refusal {
	account, err := x.Account(x.r)
	var chosen interface{ HTTPStatus() int }
	switch {
	case errors.Is(err, ErrNoAccount) || err == nil && account == "":
		return ResultNoAccount.refusal().with("Authenticate, then send the request again with the same key.")
	case errors.As(err, &chosen) && chosen.HTTPStatus() >= 400 && chosen.HTTPStatus() < 600:
		x.event.Err = err
		refused := ResultRefused.refusal()
		refused.Status = chosen.HTTPStatus()
		return refused
	case err != nil:
		x.event.Err = err
		refused := ResultAccountError.refusal().with(retryDetail)
		refused.RetryAfter = retryAfterOutage
		return refused
	case !validAccount(account):
		refused := ResultRefused.refusal().with("The account has a name that cannot be used.")
		refused.Status = http.StatusBadRequest
		return refused
	}
	x.id.Account = account
	return Refusal{}
}

func validAccount(account string) bool {
	return account != "" && len(account) <= 255 && !strings.Contains(account, "\x00") && utf8.ValidString(account)
}

func (x *exchange) readBody() Refusal {
	if x.r.ContentLength > x.maxBody {
		return tooLarge(x.maxBody)
	}
	if x.r.Body == nil {
		return Refusal{}
	}
	body, err := bounded.Read(nil, http.MaxBytesReader(x.w, x.r.Body, x.maxBody), x.r.ContentLength, x.maxBody)
	var limit *http.MaxBytesError
	if errors.As(err, &limit) {
		return tooLarge(limit.Limit)
	}
	if err != nil {
		x.event.Err = err
		return ResultIncomplete.refusal().with("Nothing was done; send the whole request again with the same key.")
	}
	if len(body) == 0 && x.r.ContentLength > 0 {
		return x.misplaced(errBodyRead)
	}
	x.body = body
	return Refusal{}
}

func tooLarge(limit int64) Refusal {
	return ResultTooLarge.refusal().with(fmt.Sprintf("The body may have at most %d bytes.", limit))
}

// request is what the handler gets, in a copy of its own. Its GetBody is for
// handlers that send it on.
func (x *exchange) request(ctx context.Context) *http.Request {
	r := x.r.Clone(ctx)
	r.Header.Del("Accept-Encoding")
	r.Body, r.GetBody = http.NoBody, func() (io.ReadCloser, error) { return http.NoBody, nil }
	r.ContentLength, r.TransferEncoding = int64(len(x.body)), nil
	if len(x.body) > 0 {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.body)), nil }
		r.Body, _ = r.GetBody()
	}
	return r
}

// detached returns the request's context for what goes on when the client
// hangs up.
func (x *exchange) detached() context.Context { return context.WithoutCancel(x.r.Context()) }

// answer sends what came of another claim than this exchange's.
func (x *exchange) answer(v verdict) {
	x.event.Result, x.event.Err = v.result, v.err
	switch v.result {
	case ResultReplayed:
		x.event.StatusCode = v.record.Response.StatusCode
		_ = replay(x.w, x.r, *v.record.Response, x.echo, Field{keyfield.Replayed, "true"})
	case ResultAccepted:
		x.event.StatusCode = v.record.Response.StatusCode
		_ = replay(x.w, x.r, *v.record.Response, x.echo)
	case ResultInFlight:
		x.refuse(x.inFlight())
	default:
		x.refuse(explain(v))
	}
}

// inFlight tells of another attempt what is known of it.
func (x *exchange) inFlight() Refusal {
	refused := ResultInFlight.refusal().with(retryDetail)
	operation, leaseUntil := x.flight.noted()
	refused.Operation = operation
	refused.RetryAfter = strconv.Itoa(retryAfter(x.handled.value(), x.leaseLeft(leaseUntil)))
	return refused
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

// refuse answers in place of the handler.
func (x *exchange) refuse(r Refusal) {
	x.event.Result = r.Result
	if r.Result == ResultAccountError {
		x.logError("the account of a request could not be determined", x.event.Err)
	}
	if x.echo.Name != "" {
		x.w.Header().Set(x.echo.Name, x.echo.Value)
	}
	resp := x.contract(r)
	x.event.StatusCode = resp.StatusCode
	reply(x.w, resp)
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
