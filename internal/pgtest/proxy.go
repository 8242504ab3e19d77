package pgtest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// Proxy is a way to a database on which every message is seen: it counts round
// trips, and it can stop or cut a connection between any two statements.
type Proxy struct {
	*DB // its URL leads through the proxy

	network, address string // of the server
	flights          atomic.Int64
	hook             atomic.Pointer[func(Statement) Verdict]
}

// Statement is a statement on its way to the server. Those before it on the
// same connection have been executed; this one is unknown to the server.
type Statement struct {
	SQL     string
	Backend uint32 // process id of the server's session
}

// Verdict says what happens to a statement.
type Verdict int

// Verdicts.
const (
	Pass     Verdict = iota
	Cut              // close the connection; the server never sees the statement
	CutReply         // let the server finish the flight, then close the connection instead of answering
)

// Proxy returns a new way to the database. The connections through it end with
// the test.
func (db *DB) Proxy(tb testing.TB) *Proxy {
	tb.Helper()
	config, err := pgx.ParseConfig(db.URL)
	require.NoError(tb, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed when the test ends
	require.NoError(tb, err)
	through, err := url.Parse(with(with(db.URL, "host", "127.0.0.1"), "sslmode", "disable"))
	require.NoError(tb, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(tb, err)

	p := &Proxy{DB: &DB{URL: with(through.String(), "port", port), direct: db.direct}}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	var running sync.WaitGroup
	tb.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { p.serve(client) })
		}
	})
	return p
}

// Flights returns the number of round trips since the proxy was made, without
// those that open and close a connection.
func (p *Proxy) Flights() int { return int(p.flights.Load()) }

// Intercept has f decide on every statement from now on; nil lets all pass. f
// may block, which delays the statement, and may be called concurrently for
// different connections.
func (p *Proxy) Intercept(f func(Statement) Verdict) {
	if f == nil {
		p.hook.Store(nil)
		return
	}
	p.hook.Store(&f)
}

// relay is one connection through a proxy.
type relay struct {
	proxy          *Proxy
	client, server net.Conn

	prepared map[string]string // SQL by name of the statement

	mu       sync.Mutex
	changed  *sync.Cond
	backend  uint32
	ready    bool // the server waits for a flight
	pending  int  // statements of the flight that the server has not finished
	failed   bool // the server skips the rest of the flight
	swallow  bool // replies are no longer forwarded
	finished bool // the server has closed its side
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial(p.network, p.address) //nolint:noctx // a local socket
	if err != nil {
		return
	}
	defer server.Close()
	r := &relay{proxy: p, client: client, server: server, prepared: map[string]string{}}
	r.changed = sync.NewCond(&r.mu)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.replies()
	}()
	r.requests()
	client.Close()
	server.Close()
	<-done
}

// requests forwards what the client sends until the connection is cut or ends.
func (r *relay) requests() {
	in := bufio.NewReader(r.client)
	if startup, err := readMessage(in, 0); err != nil || !r.forward(startup) {
		return
	}
	for {
		m, err := readMessage(in, 1)
		if err != nil {
			return
		}
		sql, begins := r.note(m)
		if begins && r.decide(sql) == Cut {
			return
		}
		if !r.forward(m) {
			return
		}
	}
}

// note keeps track of which statement m is about and reports whether its
// execution begins with m.
func (r *relay) note(m []byte) (sql string, begins bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready && m[0] != 'X' {
		r.ready = false
		r.proxy.flights.Add(1)
	}
	body := m[5:]
	switch m[0] {
	case 'P': // Parse: name, SQL
		name, rest := text(body)
		r.prepared[name], _ = text(rest)
	case 'B': // Bind, which Execute follows: portal, name
		_, rest := text(body)
		name, _ := text(rest)
		return r.prepared[name], true
	case 'Q': // simple query
		sql, _ = text(body)
		return sql, true
	}
	return "", false
}

// decide asks the hook about a statement once everything before it is done.
func (r *relay) decide(sql string) Verdict {
	hook := r.proxy.hook.Load()
	if hook == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pending++
		return Pass
	}
	if !r.forward([]byte{'H', 0, 0, 0, 4}) { // Flush
		return Cut
	}
	r.mu.Lock()
	for r.pending > 0 && !r.failed && !r.finished {
		r.changed.Wait()
	}
	backend := r.backend
	r.mu.Unlock()

	verdict := (*hook)(Statement{SQL: sql, Backend: backend})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending++
	r.swallow = r.swallow || verdict == CutReply
	return verdict
}

func (r *relay) forward(m []byte) bool {
	_, err := r.server.Write(m)
	return err == nil
}

// replies forwards what the server sends until either side ends.
func (r *relay) replies() {
	defer r.client.Close()
	defer r.update(func() { r.finished = true })
	in := bufio.NewReader(r.server)
	for {
		m, err := readMessage(in, 1)
		if err != nil {
			return
		}
		var swallow, ready bool
		r.update(func() {
			switch m[0] {
			case 'K': // BackendKeyData
				r.backend = binary.BigEndian.Uint32(m[5:])
			case 'C', 'I', 's': // CommandComplete, EmptyQueryResponse, PortalSuspended
				r.pending = max(0, r.pending-1)
			case 'E': // ErrorResponse
				r.failed = true
			case 'Z': // ReadyForQuery
				r.ready, r.failed, r.pending = true, false, 0
				ready = true
			}
			swallow = r.swallow
		})
		if swallow && ready {
			return
		}
		if swallow {
			continue
		}
		if _, err := r.client.Write(m); err != nil {
			return
		}
	}
}

func (r *relay) update(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	r.changed.Broadcast()
}

// readMessage reads one message of the protocol, whose length follows head
// bytes of type.
func readMessage(in io.Reader, head int) ([]byte, error) {
	start := make([]byte, head+4)
	if _, err := io.ReadFull(in, start); err != nil {
		return nil, err
	}
	m := make([]byte, max(len(start), head+int(binary.BigEndian.Uint32(start[head:]))))
	_, err := io.ReadFull(in, m[copy(m, start):])
	return m, err
}

// text splits off a string that ends in NUL.
func text(b []byte) (string, []byte) {
	for i, c := range b {
		if c == 0 {
			return string(b[:i]), b[i+1:]
		}
	}
	return string(b), nil
}
