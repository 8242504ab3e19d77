package refserver

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemhttp/idem/internal/keyfield"
	"github.com/idemhttp/idem/server"
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

// access is what the middleware has to say of a request.
type access struct {
	mu    sync.Mutex
	event server.Event // zero if the middleware has nothing to do with it
}

type accessKey struct{}

// observe is told by the middlewares what became of a request.
func (s *Server) observe(ctx context.Context, e server.Event) {
	if e.Result == server.ResultReplayed {
		s.counts.replays.Add(1)
	}
	if a, ok := ctx.Value(accessKey{}).(*access); ok {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.event.Result == "" { // a late event belongs to no request
			a.event = e
		}
	}
}

// withAccess counts and logs the requests to next.
func (s *Server) withAccess(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			s.counts.requests.Add(1)
		}
		a, sw := &access{}, &statusWriter{ResponseWriter: w}
		r = r.WithContext(context.WithValue(r.Context(), accessKey{}, a))
		start, dropped := time.Now(), true
		defer func() { // also if a panic ends the connection
			attrs := []slog.Attr{
				slog.String("method", r.Method),
				slog.String("path", r.URL.Path),
				slog.Int("status", sw.status), // 0: none was sent
				slog.Bool("dropped", dropped),
				slog.Duration("took", time.Since(start)),
			}
			s.logger.LogAttrs(r.Context(), slog.LevelInfo, "request", append(attrs, a.attrs()...)...)
		}()
		next.ServeHTTP(sw, r)
		dropped = false
	})
}

// attrs returns what the middleware knows of the request.
func (a *access) attrs() []slog.Attr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.event.Result == "" {
		return nil
	}
	attrs := []slog.Attr{slog.String("outcome", string(a.event.Result))}
	if op := a.event.Operation; op.Key != "" {
		attrs = append(attrs,
			slog.String("account_id", op.Account),
			slog.String("idempotency_key", keyfield.Shorten(op.Key)))
	}
	return attrs
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// Unwrap lets [http.ResponseController] reach what is below.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *statusWriter) WriteHeader(status int) {
	if w.status < 200 { // none yet, or an informational one
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status < 200 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}
