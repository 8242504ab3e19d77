package redisstore

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/idemhttp/idem/server"
)

// DefaultLockPrefix begins the names of the keys of a [Locked] store.
const DefaultLockPrefix = "idem-lock:"

// Locked is a durable store with a door in Redis in front of it, made by
// [Lock]. It is safe for concurrent use; its fields must not be changed after
// first use.
//
// It gives the guarantees of the durable store, whatever becomes of Redis. Its
// leases are [server.AtomicLease] and [server.Acceptor] where the durable
// store's are. The methods for what the durable store cannot do return
// [errors.ErrUnsupported].
type Locked struct {
	// Prefix begins the names of the keys. Stores that share a Redis need
	// different ones, unless they share their records too. It must not have a
	// brace. "" means [DefaultLockPrefix].
	Prefix string
	// Fresh is how long a finished answer is served from Redis, if its TTL is
	// not over before. A record that is changed by hand in the durable store
	// is answered as it was for as long. Zero means 10 min.
	Fresh time.Duration
	// MaxAnswer is the largest answer in bytes, fields included, that is served
	// from Redis. Zero means 64 KiB.
	MaxAnswer int
	// Timeout bounds each call of Redis. After one that failed Redis is left
	// alone for a second. Zero means 100 ms.
	Timeout time.Duration
	// Logger is told when Redis fails and when it works again. Nil means
	// [slog.Default].
	Logger *slog.Logger

	client  Client
	durable server.Store
	outage  outage
}

var (
	_ server.Store    = (*Locked)(nil)
	_ server.Finisher = (*Locked)(nil)
	_ server.Finder   = (*Locked)(nil)
	_ server.Waiter   = (*Locked)(nil)
	_ server.Cleaner  = (*Locked)(nil)
	_ server.Stater   = (*Locked)(nil)
)

// Lock returns the durable store with a door in the Redis of client in front
// of it. The caller closes the client. See [LazyClient] for a service that has to
// start while Redis is away.
func Lock(client rueidis.Client, durable server.Store) *Locked {
	return LockWith(fromRueidis(client), durable)
}

// LockWith is [Lock] with any client.
func LockWith(client Client, durable server.Store) *Locked {
	return &Locked{client: client, durable: durable}
}

// Claim implements [server.Store]. What the door tells takes one round trip to
// Redis; otherwise the durable store decides.
func (l *Locked) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	if err := l.validate(req); err != nil {
		return server.Claim{}, err
	}
	if ctx.Err() != nil {
		return server.Claim{}, context.Cause(ctx)
	}
	mine := note{state: asking, token: uuid.NewString(), fingerprint: req.Fingerprint}
	if rec, known := l.enter(ctx, req, mine); known {
		return server.Claim{Record: rec}, nil
	}
	began := time.Now()
	claim, err := l.durable.Claim(ctx, req)
	if err != nil || claim.Lease == nil {
		l.replace(ctx, req.ID, mine, nothing, 0)
		return claim, err
	}
	owned := &lockedLease{Lease: claim.Lease, store: l, id: req.ID, began: began, note: mine}
	owned.note.state, owned.note.operation, owned.note.attempt = running, claim.Operation.ID, claim.Operation.Attempt
	l.replaceOrPut(ctx, req.ID, mine, owned.note, req.Lease)
	claim.Lease = owned.able()
	return claim, nil
}

func (l *Locked) validate(req server.ClaimRequest) error {
	if l.Fresh < 0 || l.MaxAnswer < 0 || l.Timeout < 0 {
		return errors.New("redisstore: Fresh, MaxAnswer and Timeout must not be negative")
	}
	return validateClaim(l.Prefix, req)
}

// askingFor is how long the door is held for a claim that does not return.
const askingFor = 2 * time.Second

// enter puts mine on the door if nothing is there, and returns what is there
// otherwise. It returns false if the durable store has to be asked.
func (l *Locked) enter(ctx context.Context, req server.ClaimRequest, mine note) (server.Record, bool) {
	reply, err := l.run(ctx, enterScript, req.ID, mine.encode(), milliseconds(min(req.Lease, askingFor)))
	if err != nil || len(reply) == 0 {
		return server.Record{}, false
	}
	r := reader{reply: reply}
	found, err := decodeNote(r.text())
	left := time.Duration(r.int()) * time.Millisecond
	if err != nil || r.err != nil || found.token == mine.token {
		return server.Record{}, false // unreadable, or mine: the client has repeated a call that had succeeded
	}
	return found.report(req.Fingerprint, left)
}

// replace changes the note on the door if it is the expected one. It does not
// end with ctx, and failing is no error: the durable store has decided already.
func (l *Locked) replace(ctx context.Context, id server.ID, expected, n note, lifetime time.Duration) {
	_, _ = l.run(context.WithoutCancel(ctx), replaceScript, id, expected.encode(), n.encode(), milliseconds(lifetime), "")
}

// replaceOrPut is replace for a note that may also be put on an empty door.
func (l *Locked) replaceOrPut(ctx context.Context, id server.ID, expected, n note, lifetime time.Duration) {
	_, _ = l.run(context.WithoutCancel(ctx), replaceScript, id, expected.encode(), n.encode(), milliseconds(lifetime), "or none")
}

func (l *Locked) timeout() time.Duration { return cmp.Or(l.Timeout, 100*time.Millisecond) }

// run runs a script on the door of id, unless Redis has just failed.
func (l *Locked) run(ctx context.Context, script Script, id server.ID, args ...string) ([]any, error) {
	if !l.outage.mayCall() {
		return nil, errResting
	}
	limited, cancel := within(ctx, l.timeout())
	defer cancel()
	reply, err := run(limited, l.client, script, keyOf(cmp.Or(l.Prefix, DefaultLockPrefix), id), args...)
	switch {
	case err == nil && l.outage.end():
		l.logger().InfoContext(ctx, "Redis works again")
	case err != nil && ctx.Err() == nil && l.outage.begin():
		l.logger().WarnContext(ctx, "Redis failed; the durable store is asked instead", "error", err)
	}
	return reply, err
}

// within returns ctx with a limit of d that is not its deadline: at a deadline
// the client may close a connection under the calls of others.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	timer := time.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return limited, func() {
		stop()
		timer.Stop()
		cancel(nil)
	}
}

func (l *Locked) logger() *slog.Logger { return cmp.Or(l.Logger, slog.Default()) }

// Wait implements [server.Waiter].
func (l *Locked) Wait(ctx context.Context, id server.ID) error {
	if durable, ok := l.durable.(server.Waiter); ok {
		return durable.Wait(ctx, id)
	}
	return errors.ErrUnsupported
}

// Find implements [server.Finder].
func (l *Locked) Find(ctx context.Context, id server.ID) (server.Record, error) {
	if durable, ok := l.durable.(server.Finder); ok {
		return durable.Find(ctx, id)
	}
	return server.Record{}, errors.ErrUnsupported
}

// Finish implements [server.Finisher].
func (l *Locked) Finish(ctx context.Context, t server.Ticket, r server.Response, ttl time.Duration) (server.Record, error) {
	if durable, ok := l.durable.(server.Finisher); ok {
		return durable.Finish(ctx, t, r, ttl)
	}
	return server.Record{}, errors.ErrUnsupported
}

// Renew implements [server.Finisher].
func (l *Locked) Renew(ctx context.Context, t server.Ticket, d time.Duration) error {
	if durable, ok := l.durable.(server.Finisher); ok {
		return durable.Renew(ctx, t, d)
	}
	return errors.ErrUnsupported
}

// Cleanup implements [server.Cleaner].
func (l *Locked) Cleanup(ctx context.Context, limit int) (int, error) {
	if durable, ok := l.durable.(server.Cleaner); ok {
		return durable.Cleanup(ctx, limit)
	}
	return 0, errors.ErrUnsupported
}

// Stats implements [server.Stater].
func (l *Locked) Stats(ctx context.Context) (server.Stats, error) {
	if durable, ok := l.durable.(server.Stater); ok {
		return durable.Stats(ctx)
	}
	return server.Stats{}, errors.ErrUnsupported
}
