package faultnet

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Answer returns a well-formed response with a Content-Length. A field is
// written as "Name: value".
func Answer(status int, body string, fields ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	for _, field := range fields {
		b.WriteString(field + "\r\n")
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	return b.String()
}

// Reply reads the request and writes answer, which must say itself where it
// ends: see [Answer].
func Reply(answer string) Action {
	return func(x *Exchange) {
		if x.Read().Whole {
			x.Write(answer)
		}
	}
}

// Cut reads the request, writes the first n bytes of answer and closes the
// connection. With n of 0 it closes without an answer, with n in the head it
// leaves half a head, with an answer that is no HTTP it sends garbage.
func Cut(answer string, n int) Action {
	return func(x *Exchange) {
		if x.Read().Whole {
			x.Write(answer[:min(n, len(answer))])
			x.Close()
		}
	}
}

// Close reads the request and closes the connection without an answer.
func Close() Action { return Cut("", 0) }

// Garbage reads the request, writes what is not HTTP and closes the
// connection.
func Garbage() Action {
	const garbage = "\x16\x03\x01\x00\xff garbage \x00\r\n\r\n"
	return Cut(garbage, len(garbage))
}

// CutReset is [Cut] with a reset in place of the close. On a socket the client
// may find the reset before the bytes.
func CutReset(answer string, n int) Action {
	return func(x *Exchange) {
		if x.Read().Whole {
			x.Write(answer[:min(n, len(answer))])
			x.Reset()
		}
	}
}

// Reset reads the request and resets the connection.
func Reset() Action { return CutReset("", 0) }

// ResetUnread resets the connection as soon as the first byte of a request
// arrives. It is recorded without head and body.
func ResetUnread() Action { return (*Exchange).Reset }

// Hang reads the request and never answers. It ends when the client goes away
// or the server is closed.
func Hang() Action {
	return func(x *Exchange) {
		if x.Read().Whole {
			x.Wait(0)
		}
	}
}

// Trickle reads the request, writes head (which must not promise fewer bytes)
// and then n bytes every d until the client goes away or the server is closed.
func Trickle(head string, n int, d time.Duration) Action {
	piece := strings.Repeat(".", n)
	return func(x *Exchange) {
		ok := x.Read().Whole && x.Write(head)
		for ok {
			ok = x.Wait(d) && x.Write(piece)
		}
	}
}

// Late waits for d before anything more of the request is read, and goes on
// with a.
func Late(d time.Duration, a Action) Action {
	return func(x *Exchange) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			a(x)
		case <-x.server.ctx.Done():
		}
	}
}

// Steps plays the actions in turn, one for each request, and repeats the last.
func Steps(actions ...Action) Action {
	var played atomic.Int64
	return func(x *Exchange) {
		n := int(played.Add(1))
		actions[min(n, len(actions))-1](x)
	}
}

// Chance is an action and how probable it is, from 0 to 1.
type Chance struct {
	P      float64
	Action Action
}

// Dice picks one of the chances for each request, otherwise normal. The same
// seed gives the same picks in the same order of arrival. The probabilities
// must not add up to more than 1.
func Dice(seed uint64, normal Action, chances ...Chance) Action {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 0))
	roll := func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Float64()
	}
	return func(x *Exchange) {
		left := roll()
		for _, c := range chances {
			if left < c.P {
				c.Action(x)
				return
			}
			left -= c.P
		}
		normal(x)
	}
}
