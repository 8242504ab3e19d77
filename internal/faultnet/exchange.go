package faultnet

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// Exchange is one request and what the server does about it.
type Exchange struct {
	N int // the request's number, from 1, among all of the server

	server *Server
	conn   *connection
	index  int
	read   bool
}

// connection is a client's connection as the actions of its exchanges see it,
// one after another.
type connection struct {
	net.Conn
	reader *bufio.Reader
	closed bool // by an action
}

// Read reads the whole request, records it and returns it. If the client
// breaks off, the request is returned as far as it came, with Whole false, and
// the connection is closed.
func (x *Exchange) Read() Request {
	x.read = true
	r, err := readRequest(x.conn.reader, func() { x.Write("HTTP/1.1 100 Continue\r\n\r\n") })
	x.server.mu.Lock()
	arrived := &x.server.requests[x.index]
	r.Conn, r.arrived = arrived.Conn, arrived.arrived
	*arrived = r
	x.server.mu.Unlock()
	if err != nil {
		x.Close()
	}
	return r
}

// Write sends bytes to the client and reports whether it still takes any.
func (x *Exchange) Write(s string) bool {
	_, err := io.WriteString(x.conn, s)
	if err != nil {
		x.Close()
	}
	return err == nil
}

// Close closes the connection; the client sees the end of the stream after
// what was written.
func (x *Exchange) Close() {
	x.conn.closed = true
	x.conn.Close()
}

// Reset closes the connection with a TCP reset; the client may lose what was
// written before.
func (x *Exchange) Reset() {
	if c, ok := x.conn.Conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = c.SetLinger(0) // fails only if the connection is closed already
	}
	x.Close()
}

// Wait pauses for d, or for ever if d is 0, and reports whether the client was
// still there at the end. It must not be called before Read.
func (x *Exchange) Wait(d time.Duration) bool {
	var until time.Time
	if d > 0 {
		until = time.Now().Add(d)
	}
	_ = x.conn.SetReadDeadline(until) // an error shows in Peek
	_, err := x.conn.reader.Peek(1)
	_ = x.conn.SetReadDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	x.Close()
	return false
}
