// Package refserver is the contract as a running program: a small API of orders
// and payments behind the idempotency middleware, with faults to switch on. It
// is there to test clients against, in any language, and to be read as an
// example.
//
//	POST /orders          201, an order
//	POST /payments        201, a payment, charged at a provider
//	GET  /orders/{id}     an order of the account
//	GET  /payments/{id}   a payment of the account
//	GET  /ledger          everything of the account, with totals
//	GET  /healthz         200 while the process lives
//	GET  /readyz          200 while it wants requests, otherwise 503
//
// An order takes its items from the stock, see [DemoStock]; one that the stock
// does not allow is answered with 422, and that answer is final.
//
// Accounts are those of [DemoAccount]. An X-Fault field asks for a fault, see
// [ParseFault].
package refserver

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/internal/accesslog"
	"github.com/idemhttp/idem/server/internal/probe"
	"github.com/idemhttp/idem/server/memstore"
)

// Config configures a Server. The zero value is a server that keeps everything
// in memory.
type Config struct {
	// Orders and Payments guard the two routes; they may be the same. Nil
	// Orders means Payments, nil Payments a middleware of its own. New fills
	// in what is nil of Store (with one in memory), Account (with
	// [DemoAccount]) and Logger, and adds itself to Observe.
	Orders, Payments *server.Middleware
	// Ledger books the effects. Nil means in memory.
	Ledger Ledger
	// Provider charges the payments. Nil means one in memory.
	Provider Provider
	// Chances are the faults at random. The zero value is none.
	Chances Chances
	// Health, if not nil, is asked by /readyz whether what the server depends
	// on can be reached. It is given two seconds.
	Health func(context.Context) error
	// Logger gets a record for every request. Nil means [slog.Default].
	Logger *slog.Logger
}

// Server is the API as an [http.Handler]. It is safe for concurrent use.
type Server struct {
	orders, payments *server.Middleware
	ledger           Ledger
	provider         Provider
	logger           *slog.Logger
	handler          http.Handler
	faults           faults
	counts           counts
	readiness        probe.Readiness
	closed           chan struct{}
	closeOnce        sync.Once
}

// New returns a server, ready from the start. It returns an error if a
// middleware is misconfigured.
func New(c Config) (*Server, error) {
	s := &Server{
		payments: cmp.Or(c.Payments, new(server.Middleware)),
		ledger:   cmp.Or(c.Ledger, Ledger(newMemoryLedger())),
		provider: cmp.Or(c.Provider, Provider(new(memoryProvider))),
		logger:   cmp.Or(c.Logger, slog.Default()),
		closed:   make(chan struct{}),
	}
	s.readiness.Health, s.readiness.Logger = c.Health, s.logger
	s.orders = cmp.Or(c.Orders, s.payments)
	s.faults.setChances(c.Chances)
	for _, m := range s.middlewares() {
		s.complete(m)
		if err := m.Validate(); err != nil {
			return nil, err
		}
	}
	s.handler = accesslog.Handler(s.counted(s.routes()), s.logger)
	return s, nil
}

// middlewares returns each middleware once.
func (s *Server) middlewares() []*server.Middleware {
	if s.orders == s.payments {
		return []*server.Middleware{s.payments}
	}
	return []*server.Middleware{s.orders, s.payments}
}

// complete fills in what the configuration of a middleware leaves open.
func (s *Server) complete(m *server.Middleware) {
	if m.Store == nil {
		m.Store = new(memstore.Store)
	}
	if m.Account == nil {
		m.Account = DemoAccount
	}
	m.Logger = cmp.Or(m.Logger, s.logger)
	observe := m.Observe
	m.Observe = func(ctx context.Context, e server.Event) {
		s.observe(ctx, e)
		if observe != nil {
			observe(ctx, e)
		}
	}
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders", s.withFaults(s.orders.Handler(s.creating(s.order))))
	mux.Handle("POST /payments", s.withFaults(s.payments.Handler(s.creating(s.payment))))
	mux.HandleFunc("GET /orders/{id}", s.find)
	mux.HandleFunc("GET /payments/{id}", s.find)
	mux.HandleFunc("GET /ledger", s.list)
	mux.HandleFunc("GET /healthz", probe.Alive)
	mux.Handle("GET /readyz", &s.readiness)
	return withProblems(mux)
}

// withProblems serves mux, whose own answers to what it has no route for become
// problem details.
func withProblems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		answer := &heldAnswer{header: w.Header()}
		own.ServeHTTP(answer, r)
		switch answer.status {
		case http.StatusNotFound:
			writeProblem(w, answer.status, "NOT_FOUND", "there is nothing at this path")
		case http.StatusMethodNotAllowed: // with an Allow field
			writeProblem(w, answer.status, "METHOD_NOT_ALLOWED", "this path takes "+w.Header().Get("Allow"))
		default:
			answer.send(w, answer.body.Len())
		}
	})
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// SetReady switches what /readyz answers, so that a load balancer sends no more
// requests to a server that is about to stop.
func (s *Server) SetReady(ready bool) { s.readiness.Set(ready) }

// SetChances replaces the faults at random, seed included.
func (s *Server) SetChances(c Chances) { s.faults.setChances(c) }

// FaultNext gives the next requests that create something one fault each, in
// the order of their arrival. Requests with an X-Fault field are left out.
func (s *Server) FaultNext(next ...Fault) { s.faults.push(next) }

// Drain waits until every answer has been recorded, see
// [server.Middleware.Drain].
func (s *Server) Drain(ctx context.Context) error {
	var errs []error
	for _, m := range s.middlewares() {
		errs = append(errs, m.Drain(ctx))
	}
	return errors.Join(errs...)
}

// Close ends the delays that handlers are in: they fail with 503. It is for
// those who do not want to wait for them.
func (s *Server) Close() error {
	s.closeOnce.Do(func() { close(s.closed) })
	return nil
}

// Ledger returns what the account has booked.
func (s *Server) Ledger(ctx context.Context, account string) ([]Entry, error) {
	return s.ledger.List(ctx, account)
}
