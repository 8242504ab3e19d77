package sidecar

import (
	"net/http"
	"sync"
	"time"
)

// patience is for how long an answer without a length may take before it counts
// as a stream.
const patience = 50 * time.Millisecond

// patient holds the first flush of an answer back. A proxy has to flush
// whatever comes without a length, because it may be a stream. What was flushed
// is sent before it is stored; but most such answers are complete an instant
// later, and then there is no need to.
type patient struct {
	http.ResponseWriter

	mu       sync.Mutex
	first    *time.Timer // nil before the first flush
	streams  bool        // the first flush has happened
	ended    bool        // the handler has returned
	writeErr error
}

// Unwrap lets [http.ResponseController] find what is not here.
func (w *patient) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements [http.ResponseWriter].
func (w *patient) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.ResponseWriter.Write(p)
	if err != nil {
		w.writeErr = err
	}
	return n, err
}

// FlushError is what [http.ResponseController] calls.
func (w *patient) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended:
		return nil
	case w.streams:
		return w.flush()
	case w.first == nil:
		w.first = time.AfterFunc(patience, w.patienceEnds)
	}
	return nil
}

func (w *patient) patienceEnds() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.streams = true
		_ = w.flush() // whoever flushes or writes next gets the error
	}
}

func (w *patient) flush() error { return http.NewResponseController(w.ResponseWriter).Flush() }

// end has to be called before the handler returns.
func (w *patient) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.first != nil {
		w.first.Stop()
	}
}

// gone reports whether the client has.
func (w *patient) gone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writeErr != nil
}
