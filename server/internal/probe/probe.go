// Package probe answers those who ask whether a server lives and whether it
// wants requests.
package probe

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// Readiness is a handler that answers 200 while a server wants requests, and
// otherwise 503. The zero value is ready. It is safe for concurrent use.
type Readiness struct {
	// Health, if not nil, is asked whether what the server depends on can be
	// reached. It is given two seconds.
	Health func(context.Context) error
	// Logger gets what Health returns. Nil means [slog.Default].
	Logger *slog.Logger

	stopping atomic.Bool
}

// Set switches the answer, so that a load balancer sends no more requests to a
// server that is about to stop.
func (p *Readiness) Set(ready bool) { p.stopping.Store(!ready) }

// ServeHTTP implements [http.Handler].
func (p *Readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.stopping.Load() {
		answer(w, http.StatusServiceUnavailable, "stopping")
		return
	}
	if p.Health != nil {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := p.Health(ctx); err != nil {
			cmp.Or(p.Logger, slog.Default()).WarnContext(ctx, "not ready", "error", err)
			answer(w, http.StatusServiceUnavailable, "unavailable")
			return
		}
	}
	answer(w, http.StatusOK, "ready")
}

// Alive answers 200.
func Alive(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") }

func answer(w http.ResponseWriter, status int, word string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{"status":"` + word + `"}` + "\n"))
}
