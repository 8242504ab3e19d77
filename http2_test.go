package idem_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server/refserver"
	"github.com/idemhttp/idem/server/servertest"
)

// frame types, flags and codes of RFC 9113.
const (
	frameData, frameHeaders, frameReset, frameSettings, framePing, frameGoAway = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
	flagEndStream, flagAck, flagEndHeaders                                     = 0x1, 0x1, 0x4
	codeNone, codeInternal, codeRefused                                        = 0x0, 0x2, 0x7
)

// http2Server speaks just enough HTTP/2 over cleartext to misbehave. Each
// request, once whole, gets the next of its answers; the last one is repeated.
type http2Server struct {
	*idem.Client
	requests, connections atomic.Int32
	mu                    sync.Mutex
	bodies                []string
	keys                  []string // as the client wrote them
	answers               []func(c *http2Conn, stream uint32)
}

type http2Conn struct{ net.Conn }

func (c *http2Conn) write(kind, flags byte, stream uint32, payload []byte) {
	head := []byte{0, 0, 0, kind, flags, 0, 0, 0, 0}
	head[0], head[1], head[2] = byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload))
	binary.BigEndian.PutUint32(head[5:], stream)
	c.Write(append(head, payload...))
}

func (c *http2Conn) read() (kind, flags byte, stream uint32, payload []byte, err error) {
	var head [9]byte
	if _, err = io.ReadFull(c, head[:]); err != nil {
		return 0, 0, 0, nil, err
	}
	payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	_, err = io.ReadFull(c, payload)
	return head[3], head[4], binary.BigEndian.Uint32(head[5:]), payload, err
}

func created201(c *http2Conn, stream uint32) {
	c.write(frameHeaders, flagEndHeaders, stream, []byte{0x08, 3, '2', '0', '1'}) // :status 201
	c.write(frameData, flagEndStream, stream, []byte(created))
}

func resetWith(code byte) func(*http2Conn, uint32) {
	return func(c *http2Conn, stream uint32) { c.write(frameReset, 0, stream, []byte{0, 0, 0, code}) }
}

// goAwayBelow says that the stream was not processed, and closes.
func goAwayBelow(c *http2Conn, stream uint32) {
	last := binary.BigEndian.AppendUint32(nil, stream-1)
	c.write(frameGoAway, 0, 0, append(last, 0, 0, 0, codeNone))
}

// serveHTTP2 must be called in a synctest bubble: net/http repeats a refused
// stream by itself, after pauses that add up to a minute.
func serveHTTP2(t *testing.T, answers ...func(*http2Conn, uint32)) *http2Server {
	t.Helper()
	listener := faultnet.Listen()
	s := &http2Server{answers: answers}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.connections.Add(1)
			wg.Go(func() { s.serve(&http2Conn{conn}) })
			t.Cleanup(func() { conn.Close() })
		}
	})
	transport := &http.Transport{DialContext: listener.DialContext, Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { listener.Close() })
	s.Client = &idem.Client{
		BaseURL: "http://bank.test", Transport: transport,
		Retry: idem.RetryPolicy{NewBackOff: at(0), Budget: unlimited(), AttemptTimeout: idem.NoLimit},
		Trace: idem.Trace{AttemptStart: func(ctx context.Context, _ idem.Attempt) context.Context {
			return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaderField: s.wrote})
		}},
	}
	return s
}

func (s *http2Server) wrote(name string, values []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "idempotency-key" {
		s.keys = append(s.keys, values...)
	}
}

func (s *http2Server) serve(c *http2Conn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	c.write(frameSettings, 0, 0, nil)
	bodies := map[uint32]*bytes.Buffer{}
	for {
		kind, flags, stream, payload, err := c.read()
		switch {
		case err != nil:
			return
		case kind == frameSettings && flags&flagAck == 0:
			c.write(frameSettings, flagAck, 0, nil)
		case kind == framePing && flags&flagAck == 0:
			c.write(framePing, flagAck, 0, payload)
		case kind == frameHeaders:
			bodies[stream] = new(bytes.Buffer)
		case kind == frameData:
			bodies[stream].Write(payload)
		}
		if (kind == frameHeaders || kind == frameData) && flags&flagEndStream != 0 {
			s.answer(c, stream, bodies[stream].String())
		}
	}
}

func (s *http2Server) answer(c *http2Conn, stream uint32, body string) {
	s.mu.Lock()
	s.bodies = append(s.bodies, body)
	answer := s.answers[min(len(s.bodies), len(s.answers))-1]
	s.mu.Unlock()
	s.requests.Add(1)
	answer(c, stream)
}

func TestStreamThatWasNotProcessedIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer      func(*http2Conn, uint32)
		connections int32
	}{
		"refused":             {resetWith(codeRefused), 1},
		"beyond the last one": {goAwayBelow, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := serveHTTP2(t, tc.answer, created201)
				result, err := post(t, s.Client)
				require.NoError(t, err)
				require.Equal(t, "p1", result.Value.ID)
				require.Equal(t, []string{paymentJSON, paymentJSON}, s.bodies)
				require.Equal(t, []string{string(result.Key), string(result.Key)}, s.keys)
				require.Equal(t, tc.connections, s.connections.Load())
			})
		})
	}
}

func TestStreamsThatAreNeverProcessedWereNotSent(t *testing.T) {
	t.Parallel()
	const sends = 8 // by net/http, of one attempt
	for name, answer := range map[string]func(*http2Conn, uint32){"refused": resetWith(codeRefused), "beyond the last one": goAwayBelow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := serveHTTP2(t, answer)
				s.Retry.MaxAttempts = 1
				_, err := post(t, s.Client)
				require.Equal(t, idem.NotSent, idem.OutcomeOf(err), "%v", err)
				given := asA[*idem.IncompleteError](t, err)
				require.Equal(t, idem.ReasonAttempts, given.Reason)
				require.Equal(t, sends, given.Attempts[0].Sends)
				require.Len(t, s.bodies, sends)
			})
		})
	}
}

func TestStreamThatWasResetMayHaveBeenExecuted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serveHTTP2(t, resetWith(codeInternal))
		s.Retry.MaxAttempts = 3
		_, err := post(t, s.Client)
		require.Equal(t, idem.Unknown, idem.OutcomeOf(err))
		require.EqualValues(t, 3, s.requests.Load(), "it is sent again, because it has a key")

		req := newRequest(t, "POST", s.BaseURL, paymentJSON)
		req.Header["Idempotency-Key"] = nil
		_, err = s.Do(req)
		require.Equal(t, idem.ReasonUnkeyed, asA[*idem.IncompleteError](t, err).Reason)
		require.EqualValues(t, 4, s.requests.Load())
	})
}

// The reference server resets the stream of an answer that is dropped, when the
// payment has been made.
func TestStreamThatWasResetBehindTheEffectIsAskedForAgain(t *testing.T) {
	t.Parallel()
	api, err := refserver.New(refserver.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	srv := httptest.NewUnstartedServer(api)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)

	api.FaultNext(refserver.Fault{Drop: true})
	var r recorder
	client := &idem.Client{
		BaseURL: srv.URL, Transport: srv.Client().Transport, Header: servertest.As("acme"), Trace: r.trace(),
		Retry: idem.RetryPolicy{NewBackOff: at(0)},
	}
	result, err := post(t, client)
	require.NoError(t, err)
	require.ErrorContains(t, r.done[0].Err, "INTERNAL_ERROR")
	require.Equal(t, 2, result.Attempts)
	require.True(t, result.Replayed)
	require.Equal(t, 1, api.Counts().Executions)
}
