package server

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/keyfield"
)

// StatusHandler returns a handler that tells how operations are getting on that
// were accepted, see [Accept]. It takes the last segment of the request's path
// for the operation's StatusID:
//
//	mux.Handle("GET /operations/{operation}", mw.StatusHandler())
//
// While a worker is at it, the answer is the one that the request got, 202 with
// Retry-After. When it is finished, the answer is what it was finished with,
// status and all, with Idempotent-Replayed. An operation whose worker was lost is
// answered with 404: its request, sent again with the same key, runs it again;
// where Takeover is [Refuse], it is 409, and the outcome is unknown. The Contract
// words all that is not the handler's or the worker's.
//
// An account sees its own operations only. Others are answered like those that
// do not exist. If m is not valid, or its store is no [Finder], the handler
// answers everything with 500, and the reason is logged.
func (m *Middleware) StatusHandler() http.Handler {
	err := m.Validate()
	finder, ok := m.Store.(Finder)
	if !ok {
		err = errors.Join(err, &ConfigError{"Store", "cannot look operations up: use one that is a server.Finder"})
	}
	if err != nil {
		return m.misconfigured(err)
	}
	return &statusHandler{m.route(nil), finder}
}

type statusHandler struct {
	*route

	finder Finder
}

// ServeHTTP implements [http.Handler].
func (h *statusHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	x := &exchange{route: h.route, w: w, r: r}
	if refused := x.readAccount(); refused.Result != "" {
		x.refuse(refused)
		return
	}
	operation, key, ok := parseStatusID(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
	if !ok {
		x.refuse(notFound(uuid.Nil))
		return
	}
	x.id.Key = key
	rec, err := h.find(x)
	switch {
	case err != nil:
		x.unavailable("the status of an operation could not be found", err)
	case rec.Status == 0 || rec.Operation != operation:
		x.refuse(notFound(uuid.Nil))
	default:
		x.tell(rec)
	}
}

func (h *statusHandler) find(x *exchange) (Record, error) {
	ctx, cancel := context.WithTimeout(x.r.Context(), x.storeTimeout)
	defer cancel()
	return h.finder.Find(ctx, x.id)
}

// tell answers with what is known of an operation.
func (x *exchange) tell(rec Record) {
	v := verdict{result: decide(rec, x.Takeover), record: rec}
	switch {
	case v.result == ResultReplayed:
		_ = replay(x.w, x.r, *rec.Response, Field{keyfield.Replayed, "true"})
	case v.result == ResultAccepted:
		_ = replay(x.w, x.r, *rec.Response)
	case v.result == ResultInFlight && rec.LeaseLeft <= 0: // failed, or lost
		x.refuse(notFound(rec.Operation))
	default:
		x.refuse(explain(v))
	}
}

// notFound says that there is no operation, or nobody who works on it.
func notFound(operation uuid.UUID) Refusal {
	r := ResultNotFound.refusal()
	r.Operation = operation
	if operation == uuid.Nil {
		return r.with("There is no such operation, or there is none any more.")
	}
	return r.with("Nobody works on the operation. To run it again, send its request again with the same key.")
}
