package refserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/server"
)

// effect does what a route is for and returns the entry completed.
type effect func(ctx context.Context, op server.Operation, e Entry) (Entry, error)

// order books an order. The id is the same on every attempt of an operation, by
// which a ledger outside of the operation's transaction recognises the second.
func (s *Server) order(ctx context.Context, op server.Operation, e Entry) (Entry, error) {
	e.OrderID, e.Status = op.DownstreamKey("order"), "created"
	return e, s.ledger.Add(ctx, e)
}

// payment charges the provider, which knows a second attempt by its key, and
// books the payment under the id that it gave.
func (s *Server) payment(ctx context.Context, op server.Operation, e Entry) (Entry, error) {
	id, err := s.provider.Charge(ctx, op.DownstreamKey("charge"), e)
	if err != nil {
		return Entry{}, err
	}
	e.PaymentID, e.Status = id, "succeeded"
	return e, s.ledger.Add(ctx, e)
}

// creating returns the handler that reads an entry and has the given effect.
func (s *Server) creating(do effect) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.counts.executions.Add(1)
		ctx := r.Context()
		op, keyed := server.OperationFrom(ctx)
		if !keyed { // keys are optional here, and this request has none
			op.ID, op.Attempt = uuid.New(), 1
			var ok bool
			if op.Account, ok = s.account(w, r); !ok {
				return
			}
		}
		e, err := readEntry(r.Body)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		fault := faultFrom(ctx)
		if !s.before(ctx, w, fault, op.Attempt) {
			return
		}
		e.AccountID = op.Account
		e, err = do(ctx, op, e)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		if fault.FailAfter != 0 && fault.hits(op.Attempt) {
			writeProblem(w, fault.FailAfter, "FAULT", "this failure after the effect was asked for")
			return
		}
		w.Header().Set("Location", location(e))
		writeJSON(w, typeJSON, http.StatusCreated, e)
	})
}

// before lets happen what is to happen in front of the effect, and reports
// whether the effect may follow.
func (s *Server) before(ctx context.Context, w http.ResponseWriter, f Fault, attempt int) bool {
	if !s.pause(ctx, f.Delay) {
		writeProblem(w, http.StatusServiceUnavailable, "FAULT", "the delay that was asked for took too long")
		return false
	}
	if f.Panic && f.hits(attempt) {
		panic("refserver: this panic was asked for")
	}
	if f.Fail != 0 && f.hits(attempt) {
		writeProblem(w, f.Fail, "FAULT", "this failure before the effect was asked for")
		return false
	}
	return true
}

// pause waits for d and reports whether nothing ended the wait before.
func (s *Server) pause(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.closed:
	}
	return false
}

// find answers with an entry of the account's own. The path tells orders from
// payments.
func (s *Server) find(w http.ResponseWriter, r *http.Request) {
	account, ok := s.account(w, r)
	if !ok {
		return
	}
	e, found, err := s.ledger.Find(r.Context(), account, r.PathValue("id"))
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if !found || location(e) != r.URL.Path {
		writeProblem(w, http.StatusNotFound, "NOT_FOUND", "the account has nothing under this id")
		return
	}
	writeJSON(w, typeJSON, http.StatusOK, e)
}

// list answers with everything of the account.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	account, ok := s.account(w, r)
	if !ok {
		return
	}
	entries, err := s.ledger.List(r.Context(), account)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	writeJSON(w, typeJSON, http.StatusOK, map[string]any{
		"account_id": account,
		"entries":    append([]Entry{}, entries...), // none is [], not null
		"totals":     totals(entries),
	})
}

// account names the account of a request that the middleware does not govern,
// or answers that there is none.
func (s *Server) account(w http.ResponseWriter, r *http.Request) (string, bool) {
	account, err := s.payments.Account(r)
	if err != nil && !errors.Is(err, server.ErrNoAccount) {
		s.refuse(w, r, err)
		return "", false
	}
	if err != nil || account == "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeProblem(w, http.StatusUnauthorized, "ACCOUNT_REQUIRED", "send a bearer token")
		return "", false
	}
	return account, true
}

// refuse answers a request that has failed: the client's mistakes and what the
// stock does not allow are final, everything else may be tried again.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var mistake *invalid
	if errors.As(err, &mistake) {
		writeProblem(w, http.StatusBadRequest, mistake.code, mistake.detail)
		return
	}
	if errors.Is(err, ErrOutOfStock) {
		writeProblem(w, http.StatusUnprocessableEntity, "OUT_OF_STOCK", "there is not enough in stock; nothing was ordered")
		return
	}
	s.logger.ErrorContext(r.Context(), "a request has failed", "path", r.URL.Path, "error", err)
	w.Header().Set("Retry-After", "1")
	writeProblem(w, http.StatusServiceUnavailable, "UNAVAILABLE", "the service cannot do this now; try again")
}
