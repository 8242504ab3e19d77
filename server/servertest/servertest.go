// Package servertest runs the reference server inside a test, so that a
// program can be tested against the contract: with answers that get lost,
// failures, delays, and counters that tell what really happened.
//
//	s := servertest.Start(t)
//	s.FaultNext("drop") // the payment is made, its answer is lost
//	client := &idem.Client{BaseURL: s.URL, Transport: s.Transport, Header: servertest.As("acme")}
//	... pay with client ...
//	if s.Executions() != 1 { ... }
package servertest

import (
	"cmp"
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server/refserver"
)

// Server is a running reference server. It is safe for concurrent use.
type Server struct {
	URL string // "http://host:port"
	// Transport goes below a client under test. It opens a connection for each
	// request, because net/http, when it finds a kept-alive one dead, sends a
	// request with a key again by itself: one attempt would be two requests.
	Transport *http.Transport

	tb  testing.TB
	api *refserver.Server
}

// Start starts a reference server that keeps everything in memory. It runs
// until the test has ended. Its access log goes to the output of the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return StartConfig(tb, refserver.Config{})
}

// StartConfig is [Start] with a configuration of the caller's choice.
func StartConfig(tb testing.TB, c refserver.Config) *Server {
	tb.Helper()
	s := newServer(tb, c)
	ts := httptest.NewUnstartedServer(s.api)
	ts.Config.ErrorLog = log.New(io.Discard, "", 0) // the panics are faults, and intended
	ts.Start()
	tb.Cleanup(func() {
		s.api.Close() // nobody waits for a delay any more
		ts.Close()
	})
	s.URL, s.Transport = ts.URL, &http.Transport{DisableKeepAlives: true}
	return s
}

// StartInMemory is [StartConfig] without a socket, for tests in a
// testing/synctest bubble, where waiting takes no time. Only the server's
// Transport reaches it.
func StartInMemory(tb testing.TB, c refserver.Config) *Server {
	tb.Helper()
	s := newServer(tb, c)
	s.URL, s.Transport = "http://refserver.example.com", faultnet.Handle(tb, s.api)
	tb.Cleanup(func() { s.api.Close() })
	s.Transport.DisableKeepAlives = true
	return s
}

func newServer(tb testing.TB, c refserver.Config) *Server {
	tb.Helper()
	c.Logger = cmp.Or(c.Logger, slog.New(slog.NewTextHandler(tb.Output(), nil)))
	api, err := refserver.New(c)
	if err != nil {
		tb.Fatalf("servertest: %v", err)
	}
	tb.Cleanup(func() {
		if err := api.Drain(context.WithoutCancel(tb.Context())); err != nil {
			tb.Errorf("servertest: %v", err)
		}
	})
	return &Server{tb: tb, api: api}
}

// As returns the field by which a client says whose requests it sends.
func As(account string) http.Header { return http.Header{"X-Account-Id": {account}} }

// FaultNext gives the next requests that create something one fault each, in
// the order of their arrival, such as "drop", "fail=500" or "delay=1s";
// [refserver.ParseFault] lists them. They hit whatever arrives, retries
// included; of a replay only the answer can be hit. A fault that is unknown
// fails the test.
func (s *Server) FaultNext(faults ...string) {
	s.tb.Helper()
	for _, name := range faults {
		fault, err := refserver.ParseFault(name)
		if err != nil {
			s.tb.Fatalf("servertest: %v", err)
		}
		fault.Times = 0
		s.api.FaultNext(fault)
	}
}

// SetChances replaces the faults at random. The zero value ends them.
func (s *Server) SetChances(c refserver.Chances) { s.api.SetChances(c) }

// Requests returns how many POSTs have arrived, retries included.
func (s *Server) Requests() int { return s.api.Counts().Requests }

// Executions returns how many times a handler has been run.
func (s *Server) Executions() int { return s.api.Counts().Executions }

// Replays returns how many requests have been answered from the store.
func (s *Server) Replays() int { return s.api.Counts().Replays }

// Ledger returns the orders and payments of an account, oldest first: what has
// really happened.
func (s *Server) Ledger(account string) []refserver.Entry {
	s.tb.Helper()
	entries, err := s.api.Ledger(context.WithoutCancel(s.tb.Context()), account)
	if err != nil {
		s.tb.Fatalf("servertest: %v", err)
	}
	return entries
}
