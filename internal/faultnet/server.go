package faultnet

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Action plays the server's part of one exchange. When it returns the
// connection is kept for the next request, unless the action has closed it or
// has not read the request.
type Action func(x *Exchange)

// Server answers HTTP/1.1 requests by actions. All methods are safe for
// concurrent use.
type Server struct {
	URL       string          // "http://host:port"
	Addr      string          // "host:port"
	Transport *http.Transport // dials the server, whatever the URL

	started  time.Time
	listener net.Listener
	action   atomic.Pointer[Action]
	ctx      context.Context //nolint:containedctx // the server's life, which no call brings along
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu       sync.Mutex
	requests []Request
	open     map[net.Conn]struct{}
	accepted int
}

// Serve starts a server on a loopback socket that is closed when the test
// ends.
func Serve(t TB, a Action) *Server {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Start(listener, a)
	t.Cleanup(s.Close)
	return s
}

// ServeInMemory is [Serve] over a [Listener], for use in a testing/synctest
// bubble. Only the server's Transport reaches it.
func ServeInMemory(t TB, a Action) *Server {
	t.Helper()
	s := Start(Listen(), a)
	t.Cleanup(s.Close)
	return s
}

// Start starts a server on a listener that it closes in the end. The caller
// calls Close.
func Start(l net.Listener, a Action) *Server {
	s := &Server{
		URL:       "http://" + l.Addr().String(),
		Addr:      l.Addr().String(),
		Transport: &http.Transport{},
		started:   time.Now(),
		listener:  l,
		open:      make(map[net.Conn]struct{}),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	dial := (&net.Dialer{}).DialContext
	if memory, ok := l.(*Listener); ok {
		dial = memory.DialContext
	}
	s.Transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dial(ctx, "tcp", s.Addr)
	}
	s.Play(a)
	s.running.Go(s.accept)
	return s
}

// Play replaces the action for requests that arrive from now on.
func (s *Server) Play(a Action) { s.action.Store(&a) }

// Close closes the listener and every connection and waits until all actions
// have returned.
func (s *Server) Close() {
	s.mu.Lock()
	s.stop()
	s.listener.Close()
	for conn := range s.open {
		conn.Close()
	}
	s.mu.Unlock()
	s.Transport.CloseIdleConnections()
	s.running.Wait()
}

// Requests returns what has arrived, in the order of arrival. A request is
// counted with its first byte and complete once the action has read it.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Keys returns the Idempotency-Key of every request, "" where there is none.
func (s *Server) Keys() []string {
	requests := s.Requests()
	keys := make([]string, len(requests))
	for i, r := range requests {
		keys[i] = r.Key()
	}
	return keys
}

// Bodies returns the body of every request.
func (s *Server) Bodies() []string {
	requests := s.Requests()
	bodies := make([]string, len(requests))
	for i, r := range requests {
		bodies[i] = string(r.Body)
	}
	return bodies
}

// Arrivals returns when every request arrived, counted from the start of the
// server.
func (s *Server) Arrivals() []time.Duration {
	requests := s.Requests()
	arrivals := make([]time.Duration, len(requests))
	for i, r := range requests {
		arrivals[i] = r.arrived.Sub(s.started)
	}
	return arrivals
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		if number, ok := s.opened(conn); ok {
			s.running.Go(func() { s.serve(conn, number) })
		}
	}
}

// opened registers a connection and numbers it, or closes it if the server has
// been closed meanwhile.
func (s *Server) opened(conn net.Conn) (number int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		conn.Close()
		return 0, false
	}
	s.accepted++
	s.open[conn] = struct{}{}
	return s.accepted, true
}

func (s *Server) serve(conn net.Conn, number int) {
	c := &connection{Conn: conn, reader: bufio.NewReader(conn)}
	defer func() {
		conn.Close()
		s.mu.Lock()
		delete(s.open, conn)
		s.mu.Unlock()
	}()
	for !c.closed {
		if _, err := c.reader.Peek(1); err != nil {
			return
		}
		x := &Exchange{server: s, conn: c, index: s.arrived(number)}
		x.N = x.index + 1
		(*s.action.Load())(x)
		if !x.read { // the next request cannot be told from this one
			return
		}
	}
}

// arrived records the arrival of a request and returns its index.
func (s *Server) arrived(conn int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{Conn: conn, arrived: time.Now()})
	return len(s.requests) - 1
}
