package server

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/keyfield"
)

// Ticket lets a worker finish an operation that a handler has accepted. It is a
// plain value: encode it as JSON and send it along with the job. Whoever has it
// can give the operation its answer.
type Ticket struct {
	Operation

	// Token tells the claim that was accepted from all others.
	Token uuid.UUID `json:"token"`
	// Lease is how long the worker may go without a sign of life before the
	// operation counts as lost.
	Lease time.Duration `json:"lease"`
	// TTL is how long a record outlives its end.
	TTL time.Duration `json:"ttl"`
}

// Accept lets a handler leave the rest of its operation to a worker that goes
// on when it has returned. It returns the ticket by which the worker finishes
// the operation, see [Work]. The handler hands it over together with the job,
// and answers 202:
//
//	ticket, err := server.Accept(r.Context(), 10*time.Minute)
//	if err == nil {
//		err = enqueue(r.Context(), job{Ticket: ticket, ...})
//	}
//	if err != nil {
//		http.Error(w, "not now", http.StatusServiceUnavailable)
//		return
//	}
//	w.Header().Set("Location", "/operations/"+ticket.StatusID())
//	w.WriteHeader(http.StatusAccepted)
//
// That answer is not final: until the operation is finished, every request with
// its key gets it without waiting, and [Middleware.StatusHandler] too; then both
// get what the worker answered. A handler that answers nothing answers 202 with
// {"status": "processing"}; where it sets no Retry-After, that is a second. Any
// other answer means what it always means, and the ticket is void.
//
// lease is how long the worker may go without a sign of life, the time in the
// queue included, before the operation counts as lost and the next request with
// its key is executed; see [Takeover]. It is at least a millisecond.
//
// Nothing is accepted before the handler returns. On a transactional route that
// is one commit with the handler's other effects, such as the row of a job.
// Elsewhere the worker may be faster than the handler, and may even finish.
//
// Accept fails outside of a handler that a [Middleware] guards, and with
// [errors.ErrUnsupported] where the leases of its store are no [Acceptor].
func Accept(ctx context.Context, lease time.Duration) (Ticket, error) {
	e, ok := ctx.Value(operationKey{}).(*execution)
	switch {
	case !ok:
		return Ticket{}, errors.New("idem: Accept needs the context of a handler that a Middleware guards, and a key")
	case lease < time.Millisecond:
		return Ticket{}, fmt.Errorf("idem: the lease of an accepted operation is %v, but must be at least 1ms", lease)
	}
	return e.accept(lease)
}

// acceptance is whether a handler has accepted its operation.
type acceptance struct {
	acceptor Acceptor // nil if the store cannot, or there is no handler

	mu    sync.Mutex
	lease time.Duration // the worker's, 0 unless accepted
	over  bool          // the handler has returned
}

func (a *acceptance) accept(lease time.Duration) (Ticket, error) {
	if a.acceptor == nil {
		return Ticket{}, fmt.Errorf("idem: neither Do nor a store without Acceptors can accept an operation: %w", errors.ErrUnsupported)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return Ticket{}, errors.New("idem: Accept was called after the handler had returned")
	}
	a.lease = lease
	t := a.acceptor.Ticket()
	t.Lease = lease
	return t, nil
}

// accepted returns the worker's lease, or 0.
func (a *acceptance) accepted() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lease
}

// end is accepted when the handler has returned.
func (a *acceptance) end() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	return a.lease
}

// StatusID is the name of the operation in the URL of its status, for
// [Middleware.StatusHandler]: its id and its key, in a form that is one segment
// of a path. The key is there so that the record is found in its place, which
// is account and key: another index would cost every operation, the few that are
// accepted and the many that are not.
func (o Operation) StatusID() string {
	return o.ID.String() + "." + base64.RawURLEncoding.EncodeToString([]byte(o.Key))
}

// parseStatusID returns the id and key of a StatusID.
func parseStatusID(s string) (id uuid.UUID, key string, ok bool) {
	name, encoded, _ := strings.Cut(s, ".")
	id, err := uuid.Parse(name)
	if err != nil {
		return uuid.Nil, "", false
	}
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || keyfield.Check(string(decoded)) != nil {
		return uuid.Nil, "", false
	}
	return id, string(decoded), true
}
