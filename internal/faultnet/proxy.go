package faultnet

import (
	"bufio"
	"context"
	"net"
	"time"
)

// Upstream is the address ("host:port") of a real HTTP/1.1 server. Its methods
// are actions that make a [Server] a proxy in front of it:
//
//	up := faultnet.Upstream(addr)
//	proxy := faultnet.Serve(t, faultnet.Steps(up.LoseRequest(), up.LoseAnswer(), up.Forward()))
//
// Messages are passed on byte for byte, each as a whole, every request on a
// connection of its own. A client that goes away does not stop the upstream.
type Upstream string

// Forward passes the request on and the answer back.
func (u Upstream) Forward() Action {
	return u.answer(func(x *Exchange, answer message) {
		x.Write(string(answer.raw))
		if answer.toEnd {
			x.Close()
		}
	})
}

// LoseRequest closes the connection in front of the upstream, which never
// hears of the request.
func (u Upstream) LoseRequest() Action { return Close() }

// LoseAnswer closes the connection after the upstream has answered: the effect
// has happened and nobody knows.
func (u Upstream) LoseAnswer() Action { return u.CutAnswer(0) }

// HoldAnswer waits for d after the upstream has answered, and passes the answer
// back if the client is still there.
func (u Upstream) HoldAnswer(d time.Duration) Action {
	return u.answer(func(x *Exchange, answer message) {
		if x.Wait(d) {
			x.Write(string(answer.raw))
		}
	})
}

// CutAnswer passes the first n bytes of the answer back and closes the
// connection.
func (u Upstream) CutAnswer(n int) Action {
	return u.answer(func(x *Exchange, answer message) {
		x.Write(string(answer.raw[:min(n, len(answer.raw))]))
		x.Close()
	})
}

// ResetAnswer resets the connection after the upstream has answered.
func (u Upstream) ResetAnswer() Action {
	return u.answer(func(x *Exchange, _ message) { x.Reset() })
}

// answer gets the upstream's answer and leaves it to then. If the upstream
// does not give a whole one, the client's connection is closed after what
// there is of it.
func (u Upstream) answer(then func(x *Exchange, answer message)) Action {
	return func(x *Exchange) {
		request := x.Read()
		if !request.Whole {
			return
		}
		answer, err := x.ask(u, request)
		if err != nil {
			x.Write(string(answer.raw))
			x.Close()
			return
		}
		then(x, answer)
	}
}

// ask sends the request upstream, on a connection of its own, and returns the
// answer as far as it came.
func (x *Exchange) ask(u Upstream, request Request) (message, error) {
	up, err := (&net.Dialer{}).DialContext(x.server.ctx, "tcp", string(u))
	if err != nil {
		return message{}, err
	}
	defer up.Close()
	stop := context.AfterFunc(x.server.ctx, func() { up.Close() })
	defer stop()
	if _, err := up.Write(request.Raw); err != nil {
		return message{}, err
	}
	return readResponse(bufio.NewReader(up), request.Method)
}
