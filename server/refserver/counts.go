package refserver

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/internal/accesslog"
)

// Counts says what a server has done so far.
type Counts struct {
	Requests   int // that the middleware governs: the POSTs
	Executions int // of handlers
	Replays    int // answers that were sent from the store
}

type counts struct{ requests, executions, replays atomic.Int64 }

// Counts returns what the server has done so far. A request is counted when it
// arrives, an execution when it begins, a replay when it has been sent.
func (s *Server) Counts() Counts {
	return Counts{
		Requests:   int(s.counts.requests.Load()),
		Executions: int(s.counts.executions.Load()),
		Replays:    int(s.counts.replays.Load()),
	}
}

// observe is told by the middlewares what became of a request.
func (s *Server) observe(ctx context.Context, e server.Event) {
	if e.Result == server.ResultReplayed {
		s.counts.replays.Add(1)
	}
	accesslog.Observe(ctx, e)
}

// counted counts the requests to next.
func (s *Server) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			s.counts.requests.Add(1)
		}
		next.ServeHTTP(w, r)
	})
}
