package faultnet

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// Listener is a network in memory: DialContext reaches Accept whatever the
// address. It works inside a testing/synctest bubble, where a socket does not.
// Create it with [Listen].
type Listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Listen returns a new in-memory listener.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Accept waits for a DialContext and returns its other end, or net.ErrClosed
// once the listener is closed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, opError("accept", net.ErrClosed)
	}
}

// DialContext has the signature of the field of that name in [http.Transport].
// It waits for an Accept; a closed listener refuses the connection.
func (l *Listener) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, opError("dial", syscall.ECONNREFUSED)
	case <-ctx.Done():
		return nil, opError("dial", context.Cause(ctx))
	}
}

// Close makes Accept and DialContext fail. Connections stay open.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns an address that names no real network.
func (l *Listener) Addr() net.Addr { return address{} }

// Handle serves h over an in-memory network until the test ends, and returns
// the transport that reaches it at every http URL.
func Handle(t TB, h http.Handler) *http.Transport {
	t.Helper()
	l := Listen()
	var running sync.WaitGroup         // a bubble must not end before its goroutines
	server := &http.Server{Handler: h} //nolint:gosec // no time-outs: virtual time may pass between requests
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			running.Add(1)
		}
		if state == http.StateClosed || state == http.StateHijacked {
			running.Done()
		}
	}
	transport := &http.Transport{DialContext: l.DialContext}
	running.Go(func() { _ = server.Serve(l) }) // always http.ErrServerClosed
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		running.Wait()
	})
	return transport
}

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "memory:80" }

func opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "memory", Addr: address{}, Err: err}
}

// window is how many bytes one direction of a [Pipe] holds before its writer
// blocks, about what the kernel does for a socket.
const window = 64 << 10

// Pipe returns the two ends of an in-memory connection. Unlike those of
// [net.Pipe] they are buffered, as sockets are, so two sides that both write
// first do not block each other. Deadlines, half-read data after a close, and
// SetLinger(0) behave as on a TCP connection.
func Pipe() (net.Conn, net.Conn) {
	a, b := newStream(), newStream()
	return &conn{in: a, out: b}, &conn{in: b, out: a}
}

type conn struct {
	in, out *stream
	mu      sync.Mutex
	abort   bool // SetLinger(0) was called: Close resets
}

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }
func (c *conn) LocalAddr() net.Addr         { return address{} }
func (c *conn) RemoteAddr() net.Addr        { return address{} }

// SetLinger with 0 makes Close discard what the peer has not read and reset
// the connection, as on a [net.TCPConn]. Other values do nothing.
func (c *conn) SetLinger(seconds int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abort = seconds == 0
	return nil
}

// Close ends the stream to the peer, which may still read what was written.
func (c *conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.closeRead()
	c.out.closeWrite(c.abort)
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readDeadline, t)
	c.out.setDeadline(&c.out.writeDeadline, t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readDeadline, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeDeadline, t)
	return nil
}

// stream is one direction of a connection.
type stream struct {
	mu            sync.Mutex
	changed       sync.Cond // anything below has changed
	data          []byte
	readClosed    bool // the reader has closed its end
	writeClosed   bool // the writer has closed its end
	reset         bool // ... with a reset
	readDeadline  deadline
	writeDeadline deadline
}

func newStream() *stream {
	s := &stream{}
	s.changed.L = &s.mu
	return s
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.readClosed:
			return 0, opError("read", net.ErrClosed)
		case s.readDeadline.over():
			return 0, opError("read", os.ErrDeadlineExceeded)
		case s.reset:
			return 0, opError("read", syscall.ECONNRESET)
		case len(p) == 0:
			return 0, nil
		case len(s.data) > 0:
			n := copy(p, s.data)
			s.data = s.data[n:]
			s.changed.Broadcast()
			return n, nil
		case s.writeClosed:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

func (s *stream) write(p []byte) (written int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.writeClosed:
			return written, opError("write", net.ErrClosed)
		case s.writeDeadline.over():
			return written, opError("write", os.ErrDeadlineExceeded)
		case s.readClosed:
			return written, opError("write", syscall.EPIPE)
		case len(p) == 0:
			return written, nil
		case len(s.data) < window:
			n := min(len(p), window-len(s.data))
			s.data = append(s.data, p[:n]...)
			p, written = p[n:], written+n
			s.changed.Broadcast()
			continue
		}
		s.changed.Wait()
	}
}

func (s *stream) closeRead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readClosed = true
	s.data = nil
	s.readDeadline.stop()
	s.changed.Broadcast()
}

func (s *stream) closeWrite(reset bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writeClosed {
		return
	}
	s.writeClosed, s.reset = true, reset
	s.writeDeadline.stop()
	s.changed.Broadcast()
}

func (s *stream) setDeadline(d *deadline, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.stop()
	d.at = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		d.timer = time.AfterFunc(wait, s.wake)
	}
	s.changed.Broadcast()
}

func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

// deadline is a point in time and the timer that wakes those who wait for it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) over() bool {
	return !d.at.IsZero() && !time.Now().Before(d.at)
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
