package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/idemhttp/idem/internal/rfc9110"
)

// NoWait and NoTimeout are for the fields of [Middleware] whose zero value
// stands for something else.
const (
	NoWait    time.Duration = 1
	NoTimeout time.Duration = math.MaxInt64
)

// What a CORS middleware outside has to allow and expose so that scripts can
// use the contract: values of Access-Control-Allow-Headers and
// Access-Control-Expose-Headers.
const (
	CORSAllowHeaders  = "Idempotency-Key"
	CORSExposeHeaders = "Content-Digest, Idempotency-Key, Idempotent-Replayed, Retry-After"
)

// Middleware makes handlers safe to retry: of all requests of an account that
// carry the same Idempotency-Key one is executed, and the others get its
// answer.
//
// Store and Account are required; every other field has a meaningful zero
// value. Negative values are errors. The fields must not be changed after
// Handler was called, and a Middleware must not be copied. One Middleware can
// guard any number of handlers; those that share a store should share it where
// they can, because it knows which keys are in flight in this process.
type Middleware struct {
	// Store keeps the records.
	Store Store
	// Account names the owner of the request's key, from whatever the
	// authentication outside of this middleware found out; never from a field
	// that the client is free to choose. It is 1 to 255 bytes of UTF-8 without
	// NUL.
	//
	// Without a name ("" or [ErrNoAccount]) the answer is 401. An error that
	// has a method HTTPStatus() int is answered with that status, if it is 400
	// to 599; any other with 503.
	Account func(*http.Request) (string, error)

	// Methods are the methods whose requests are governed, in any case. All
	// others pass through untouched. None means POST and PATCH.
	Methods []string
	// Optional lets governed requests without a key pass through unguarded.
	// Otherwise they are answered with 400.
	Optional bool
	// Wait is how long a request waits for the attempt in flight under its key
	// before it is answered with 202. Zero means 1 s; see [NoWait].
	Wait time.Duration
	// Lease is how long an attempt may go without a sign of life before it
	// counts as lost. It is extended while the handler runs. Zero means 30 s.
	Lease time.Duration
	// TTL is how long an answer is replayed. Zero means 48 h.
	TTL time.Duration
	// Takeover says what becomes of an operation whose attempt was lost. The
	// zero value runs it again.
	Takeover Takeover
	// Contract words what the middleware itself answers. Nil means [Standard].
	Contract Contract

	// HandlerTimeout ends the context of the handler, which does not end when
	// the client hangs up. Zero means 2 min; see [NoTimeout].
	HandlerTimeout time.Duration
	// StoreTimeout bounds each call of the store. Zero means 1 s.
	StoreTimeout time.Duration

	// MaxBody is the largest request body in bytes. Zero means 1 MiB.
	MaxBody int64
	// MaxStored is the largest response body in bytes that is kept for replay.
	// Zero means 1 MiB.
	MaxStored int64
	// MaxBuffered is how many bytes of a response body are held back until the
	// answer is stored. A longer one passes through as it is written; on a
	// transactional route it is an error. Zero means 8 MiB.
	MaxBuffered int64
	// MaxWaiters is how many requests may wait at a time. More are answered
	// with 202 at once. Zero means 1,024.
	MaxWaiters int

	// Logger gets what an operator must know of: an unavailable store, lost
	// leases, answers that could not be recorded. Nil means [slog.Default].
	Logger *slog.Logger
	// Observe, if not nil, is told of every governed request when it has been
	// answered. It is called concurrently and should return quickly.
	Observe func(context.Context, Event)

	room    room
	backlog backlog
}

// ErrNoAccount is what Account returns if the request belongs to nobody.
var ErrNoAccount = errors.New("idem: the request belongs to no account")

// ConfigError says which field of a configuration is wrong and what to do
// about it.
type ConfigError struct {
	Field  string // such as "Store"
	Reason string // what is wrong with it, and the cure
}

// Error implements error.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("idem: Middleware.%s %s", e.Field, e.Reason)
}

// Validate returns nil if m can be used, and otherwise a [*ConfigError] for
// each field that is wrong, joined.
func (m *Middleware) Validate() error {
	var errs []error
	wrong := func(is bool, field, reason string) {
		if is {
			errs = append(errs, &ConfigError{field, reason})
		}
	}
	wrong(m.Store == nil, "Store", "is nil: set it to a pgstore, or to a memstore while trying things out")
	wrong(m.Account == nil, "Account", "is nil: set it to a function that returns the authenticated account of a request")
	for _, method := range m.Methods {
		wrong(!rfc9110.IsToken(method), "Methods", fmt.Sprintf("has %q: a method is a word such as POST", method))
		wrong(method != "" && rfc9110.IsSafe(method), "Methods", fmt.Sprintf("has %q: leave safe methods out, they may be repeated as they are", method))
	}
	for _, d := range []struct {
		field string
		value time.Duration
		least time.Duration
	}{
		{"Wait", m.Wait, NoWait},
		{"Lease", m.Lease, time.Millisecond},
		{"TTL", m.TTL, time.Millisecond},
		{"HandlerTimeout", m.HandlerTimeout, 1},
		{"StoreTimeout", m.StoreTimeout, 1},
	} {
		wrong(d.value != 0 && d.value < d.least, d.field,
			fmt.Sprintf("is %v: set it to %v or more, or to 0 for the default", d.value, d.least))
	}
	for _, n := range []struct {
		field string
		value int64
	}{
		{"MaxBody", m.MaxBody},
		{"MaxStored", m.MaxStored},
		{"MaxBuffered", m.MaxBuffered},
		{"MaxWaiters", int64(m.MaxWaiters)},
	} {
		wrong(n.value < 0, n.field, fmt.Sprintf("is %d: set it to a positive number, or to 0 for the default", n.value))
	}
	wrong(m.Takeover > Refuse, "Takeover", fmt.Sprintf("is %d: set it to Rerun or Refuse", m.Takeover))
	return errors.Join(errs...)
}

// Handler returns a handler that guards next. If m is not valid, the handler
// answers everything with 500, and the reason is logged.
//
// What next sees is the request as the client sent it, but for this: its body
// has been read, its length is known, and GetBody returns it again; its
// Accept-Encoding is gone, because what next answers is kept for everybody; and
// its context carries the [Operation], ends after HandlerTimeout, and goes on
// when the client hangs up. Panics of next are passed on.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	err := m.Validate()
	if next == nil {
		err = errors.Join(err, &ConfigError{"Handler", "was given nil: give it the handler to guard"})
	}
	if err != nil {
		return m.misconfigured(err)
	}
	return m.route(next)
}

// misconfigured logs err and returns a handler that refuses everything.
func (m *Middleware) misconfigured(err error) http.Handler {
	cmp.Or(m.Logger, slog.Default()).Error("the idempotency middleware is misconfigured", "error", err)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reply(w, m.contract()(ResultMisconfigured.refusal().with(misconfiguredDetail)))
	})
}

// route fills in the defaults.
func (m *Middleware) route(next http.Handler) *route {
	wait := cmp.Or(m.Wait, time.Second)
	if wait == NoWait {
		wait = 0
	}
	return &route{
		Middleware:     m,
		next:           next,
		methods:        m.methods(),
		wait:           wait,
		lease:          cmp.Or(m.Lease, defaultLease),
		ttl:            cmp.Or(m.TTL, defaultTTL),
		handlerTimeout: cmp.Or(m.HandlerTimeout, 2*time.Minute),
		storeTimeout:   cmp.Or(m.StoreTimeout, defaultStoreTimeout),
		maxBody:        cmp.Or(m.MaxBody, 1<<20),
		maxStored:      cmp.Or(m.MaxStored, 1<<20),
		maxBuffered:    cmp.Or(m.MaxBuffered, 8<<20),
		maxWaiters:     cmp.Or(m.MaxWaiters, 1024),
		contract:       m.contract(),
		logger:         cmp.Or(m.Logger, slog.Default()),
	}
}

const (
	defaultLease        = 30 * time.Second
	defaultTTL          = 48 * time.Hour
	defaultStoreTimeout = time.Second
)

func (m *Middleware) contract() Contract {
	if m.Contract == nil {
		return Standard
	}
	return m.Contract
}

func (m *Middleware) methods() []string {
	if len(m.Methods) == 0 {
		return []string{http.MethodPost, http.MethodPatch}
	}
	return slices.Clone(m.Methods)
}

// Drain waits for the completions that are still being written because the
// store failed when their answers were sent. Call it after the server has shut
// down and before the store is closed. It returns an error if ctx ends first.
func (m *Middleware) Drain(ctx context.Context) error { return m.backlog.wait(ctx) }
