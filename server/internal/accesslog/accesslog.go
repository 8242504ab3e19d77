// Package accesslog logs requests, together with what the idempotency middleware
// has made of them.
package accesslog

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/idemhttp/idem/internal/keyfield"
	"github.com/idemhttp/idem/server"
)

// entry is what the middleware has to say of a request.
type entry struct {
	mu    sync.Mutex
	event server.Event // zero if the middleware has nothing to do with it
}

type entryKey struct{}

// Observe notes what became of a request that passes through a Handler. It is
// made for [server.Middleware.Observe].
func Observe(ctx context.Context, e server.Event) {
	if en, ok := ctx.Value(entryKey{}).(*entry); ok {
		en.mu.Lock()
		defer en.mu.Unlock()
		if en.event.Result == "" { // a late event belongs to no request
			en.event = e
		}
	}
}

// Handler returns a handler that logs the requests to next.
func Handler(next http.Handler, logger *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		en, sw := &entry{}, &statusWriter{ResponseWriter: w}
		r = r.WithContext(context.WithValue(r.Context(), entryKey{}, en))
		start, dropped := time.Now(), true
		defer func() { // also if a panic ends the connection
			attrs := []slog.Attr{
				slog.String("method", r.Method),
				slog.String("path", r.URL.Path),
				slog.Int("status", sw.status), // 0: none was sent
				slog.Bool("dropped", dropped),
				slog.Duration("took", time.Since(start)),
			}
			logger.LogAttrs(r.Context(), slog.LevelInfo, "request", append(attrs, en.attrs()...)...)
		}()
		next.ServeHTTP(sw, r)
		dropped = false
	})
}

// attrs returns what the middleware knows of the request.
func (en *entry) attrs() []slog.Attr {
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.event.Result == "" {
		return nil
	}
	attrs := []slog.Attr{slog.String("outcome", string(en.event.Result))}
	if op := en.event.Operation; op.Key != "" {
		attrs = append(attrs,
			slog.String("account", op.Account),
			slog.String("idempotency_key", keyfield.Shorten(op.Key)))
	}
	if err := en.event.Err; err != nil {
		attrs = append(attrs, slog.Any("error", err))
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
