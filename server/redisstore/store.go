package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/idemhttp/idem/server"
)

// DefaultPrefix begins the names of the records' keys.
const DefaultPrefix = "idem:"

// Store is a [server.Store] in Redis alone; see the package comment for what
// that is worth. [New] makes one. It is safe for concurrent use; its fields must
// not be changed after first use.
//
// Redis deletes expired records by itself, so that there is nothing to clean
// up. It cannot count them without a walk through all of its keys, so that a
// Store is no [server.Stater].
type Store struct {
	// Prefix begins the names of the records' keys. Services that share a Redis
	// need different ones. It must not have a brace. "" means [DefaultPrefix].
	Prefix string
	// Logger gets what Check has to say to an operator. Nil means
	// [slog.Default].
	Logger *slog.Logger

	client rueidis.Client
	check  sync.Once
}

var _ server.Store = (*Store)(nil)

// New returns a store on the Redis of client: a single node, a set watched by
// Sentinel or a Cluster. The caller closes the client.
//
// The first claim has [Store.Check] look at the server's settings.
func New(client rueidis.Client) *Store { return &Store{client: client} }

// Claim implements [server.Store]. It takes one round trip.
func (s *Store) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	if err := s.validate(req); err != nil {
		return server.Claim{}, err
	}
	if ctx.Err() != nil {
		return server.Claim{}, context.Cause(ctx)
	}
	s.check.Do(func() { go s.checkLater(context.WithoutCancel(ctx)) })
	l := &lease{store: s, req: req, token: uuid.NewString(), operation: server.Operation{
		ID: uuid.New(), Account: req.ID.Account, Key: req.ID.Key,
	}}
	reply, err := l.run(ctx, claimScript, milliseconds(req.Lease), milliseconds(req.TTL), takeover(req.Takeover))
	if err != nil {
		var refused *rueidis.RedisError
		if !errors.As(err, &refused) {
			go l.withdraw(context.WithoutCancel(ctx))
		}
		return server.Claim{}, err
	}
	return l.claimed(reply)
}

func (s *Store) validate(req server.ClaimRequest) error {
	if strings.ContainsAny(s.Prefix, "{}") {
		return fmt.Errorf("redisstore: the prefix %q has a brace", s.Prefix)
	}
	return errors.Join(validate("lease", req.Lease), validate("TTL", req.TTL))
}

// validate refuses durations that Redis would take for nothing at all.
func validate(name string, d time.Duration) error {
	if d < time.Millisecond {
		return fmt.Errorf("redisstore: the %s is %v, which is less than a millisecond", name, d)
	}
	return nil
}

func takeover(t server.Takeover) string {
	if t == server.Rerun {
		return "rerun"
	}
	return "refuse"
}

// keyOf returns the key of an operation: the length of the account tells where
// it ends. The braces make it a hash tag, so that other keys of the operation
// can stand beside it in a Cluster.
func keyOf(prefix string, id server.ID) string {
	return prefix + "{" + strconv.Itoa(len(id.Account)) + ":" + id.Account + ":" + id.Key + "}"
}

// lease is the ownership of one attempt. Its record has its token for as long
// as nobody takes it over.
type lease struct {
	store     *Store
	req       server.ClaimRequest
	token     string
	operation server.Operation
}

// run runs a script on the lease's record.
func (l *lease) run(ctx context.Context, script *rueidis.Lua, args ...string) ([]rueidis.RedisMessage, error) {
	head := []string{encodeFingerprint(l.req.Fingerprint), l.operation.ID.String(), l.token}
	key := keyOf(cmp.Or(l.store.Prefix, DefaultPrefix), l.req.ID)
	return run(ctx, l.store.client, script, key, append(head, args...)...)
}

// claimed returns what the reply of claimScript says.
func (l *lease) claimed(reply []rueidis.RedisMessage) (server.Claim, error) {
	r := reader{reply: reply}
	if !r.flag() {
		rec, err := r.record()
		return server.Claim{Record: rec}, err
	}
	l.operation.ID, l.operation.Attempt = r.uuid(), r.int()
	takenOver := r.flag()
	return server.Claim{Lease: l, Operation: l.operation, TakenOver: takenOver}, r.err
}

// withdraw releases, as well as can be, what a claim that failed may have
// claimed nevertheless.
func (l *lease) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = l.Release(ctx, nil)
}

// Context implements [server.Lease].
func (l *lease) Context(parent context.Context) context.Context { return parent }

// Extend implements [server.Lease]. It puts back a record that Redis has
// forgotten.
func (l *lease) Extend(ctx context.Context, d time.Duration) error {
	if err := validate("lease", d); err != nil {
		return err
	}
	reply, err := l.run(ctx, extendScript, strconv.Itoa(l.operation.Attempt), milliseconds(d), milliseconds(l.req.TTL))
	if err != nil {
		return err
	}
	r := reader{reply: reply}
	if extended := r.flag(); !extended && r.err == nil {
		return server.ErrLeaseLost
	}
	return r.err
}

// Complete implements [server.Lease]. It puts back a record that Redis has
// forgotten.
func (l *lease) Complete(ctx context.Context, resp server.Response, ttl time.Duration) (server.Record, error) {
	if err := validate("TTL", ttl); err != nil {
		return server.Record{}, err
	}
	reply, err := l.run(ctx, completeScript, strconv.Itoa(l.operation.Attempt), encodeResponse(resp), milliseconds(ttl))
	if err != nil {
		return server.Record{}, err
	}
	r := reader{reply: reply}
	if r.flag() {
		return server.Record{
			Status: server.Completed, Operation: l.operation.ID, Attempt: l.operation.Attempt, Response: &resp,
		}, nil
	}
	rec, err := r.record()
	if err == nil && (rec.Status != server.Completed || rec.Operation != l.operation.ID) {
		return server.Record{}, server.ErrLeaseLost
	}
	return rec, err
}

// Release implements [server.Lease].
func (l *lease) Release(ctx context.Context, _ error) error {
	_, err := l.run(ctx, releaseScript, milliseconds(l.req.TTL))
	return err
}
