package server

import (
	"context"
	"errors"
	"fmt"
)

// Abandon says that the handler does not know what became of its operation: it
// has called somebody else, say, and the answer was lost or did not come in
// time. What it answers then, 502 or 504, is passed on and not kept:
//
//	charge, err := provider.Charge(r.Context(), op.DownstreamKey("charge"))
//	if err != nil && mayHaveHappened(err) {
//		_ = server.Abandon(r.Context())
//		http.Error(w, "not known", http.StatusBadGateway)
//		return
//	}
//
// A failure is given up at once, and the next request runs the operation again.
// One that was abandoned is left as if this process had died: nobody runs it
// before the lease ends, for the attempt may be under way yet; then it is run
// again or, where Takeover is [Refuse], answered as indeterminate until somebody
// resolves it.
//
// Within [Do] the function calls Abandon and returns an error.
//
// Abandon fails outside of a handler that a [Middleware] guards, and with
// [errors.ErrUnsupported] under an [AtomicLease]: what such an attempt has done
// is undone with it.
func Abandon(ctx context.Context) error {
	e, ok := ctx.Value(operationKey{}).(*execution)
	switch {
	case !ok:
		return errors.New("idem: Abandon needs the context of a handler that a Middleware guards, and a key")
	case e.atomic:
		return fmt.Errorf("idem: what happens in a transaction cannot be left open: %w", errors.ErrUnsupported)
	}
	e.abandoned.Store(true)
	return nil
}
