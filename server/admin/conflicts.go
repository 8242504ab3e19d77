package admin

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/idemhttp/idem/server"
)

// maxConflicts is how many conflicts are remembered.
const maxConflicts = 50

// conflict is a request that was answered with one.
type conflict struct {
	At    time.Time
	Event server.Event
	// Reason is a result or, where the conflict is the handler's own, "handler".
	Reason string
}

// conflicts remembers the latest.
type conflicts struct {
	mu   sync.Mutex
	ring [maxConflicts]conflict
	n    int // so many have been, the latest at n-1
}

// Observe notes the conflicts among events. It is made for
// [server.Middleware.Observe].
func (p *Page) Observe(_ context.Context, e server.Event) {
	if reason := reasonOf(e); reason != "" {
		p.conflicts.add(conflict{time.Now(), e, reason})
	}
}

// reasonOf returns why e is a conflict, or "" if it is none.
func reasonOf(e server.Event) string {
	switch e.Result {
	case server.ResultReused, server.ResultNotKept, server.ResultIndeterminate:
		return string(e.Result)
	case server.ResultExecuted, server.ResultReplayed:
		if e.StatusCode == http.StatusConflict {
			return "handler"
		}
	default:
	}
	return ""
}

func (c *conflicts) add(one conflict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring[c.n%maxConflicts] = one
	c.n++
}

// latest returns what is remembered, the latest first.
func (c *conflicts) latest() (latest []conflict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := c.n - 1; i >= max(0, c.n-maxConflicts); i-- {
		latest = append(latest, c.ring[i%maxConflicts])
	}
	return latest
}
