package redisstore

import (
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
// up. It cannot count or list them without a walk through all of its keys, so
// that a Store is no [server.Stater], and as a [server.Inspector] shows one
// record at a time.
type Store struct {
	// Prefix begins the names of the records' keys. Services that share a Redis
	// need different ones. It must not have a brace. "" means [DefaultPrefix].
	Prefix string
	// Logger gets what Check has to say to an operator. Nil means
	// [slog.Default].
	Logger *slog.Logger

	client Client
	check  sync.Once
}

var (
	_ server.Store    = (*Store)(nil)
	_ server.Finisher = (*Store)(nil)
	_ server.Finder   = (*Store)(nil)
)

// New returns a store on the Redis of client: a single node, a set watched by
// Sentinel or a Cluster. The caller closes the client.
//
// The first claim has [Store.Check] look at the server's settings.
func New(client rueidis.Client) *Store { return NewWith(fromRueidis(client)) }

// NewWith is [New] with any client.
func NewWith(client Client) *Store { return &Store{client: client} }

// Claim implements [server.Store]. It takes one round trip.
func (s *Store) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	if err := validateClaim(s.Prefix, req); err != nil {
		return server.Claim{}, err
	}
	if ctx.Err() != nil {
		return server.Claim{}, context.Cause(ctx)
	}
	s.check.Do(func() { go s.checkLater(context.WithoutCancel(ctx)) })
	h := holder{store: s, fingerprint: encodeFingerprint(req.Fingerprint), ticket: server.Ticket{
		Operation: server.Operation{ID: uuid.New(), Account: req.ID.Account, Key: req.ID.Key},
		Token:     uuid.New(),
		TTL:       req.TTL,
	}}
	r, err := h.run(ctx, claimScript, milliseconds(req.Lease), milliseconds(req.TTL), takeover(req.Takeover))
	if err != nil {
		// A refusal is no proof: the client may have repeated a call that had succeeded.
		go h.withdraw(context.WithoutCancel(ctx))
		return server.Claim{}, err
	}
	return h.claimed(r)
}

func validateClaim(prefix string, req server.ClaimRequest) error {
	return errors.Join(validatePrefix(prefix), validate("lease", req.Lease), validate("TTL", req.TTL))
}

func validatePrefix(prefix string) error {
	if strings.ContainsAny(prefix, "{}") {
		return fmt.Errorf("redisstore: the prefix %q has a brace", prefix)
	}
	return nil
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

// Find implements [server.Finder].
func (s *Store) Find(ctx context.Context, id server.ID) (server.Record, error) {
	h := holder{store: s, ticket: server.Ticket{Operation: server.Operation{Account: id.Account, Key: id.Key}}}
	r, err := h.run(ctx, findScript)
	if err != nil {
		return server.Record{}, err
	}
	if exists := r.flag(); !exists {
		return server.Record{}, r.err
	}
	return r.record(), r.err
}

// Finish implements [server.Finisher].
func (s *Store) Finish(ctx context.Context, t server.Ticket, r server.Response, ttl time.Duration) (server.Record, error) {
	return holder{store: s, ticket: t}.Complete(ctx, r, ttl)
}

// Renew implements [server.Finisher].
func (s *Store) Renew(ctx context.Context, t server.Ticket, d time.Duration) error {
	return holder{store: s, ticket: t}.Extend(ctx, d)
}

// keyOf returns the key of an operation: the length of the account tells where
// it ends. The braces make it a hash tag, so that other keys of the operation
// can stand beside it in a Cluster.
func keyOf(prefix string, id server.ID) string {
	return prefix + "{" + strconv.Itoa(len(id.Account)) + ":" + id.Account + ":" + id.Key + "}"
}
