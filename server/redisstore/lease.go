package redisstore

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/idemhttp/idem/server"
)

// holder is whoever holds an attempt: the owner of its lease, or a worker with
// its ticket. The record has the ticket's token for as long as nobody takes the
// attempt over.
type holder struct {
	store       *Store
	fingerprint string // encoded; "" with a worker, who does not know it
	ticket      server.Ticket
}

var _ server.Acceptor = holder{}

// run runs a script on the record.
func (h holder) run(ctx context.Context, script Script, args ...string) (*reader, error) {
	if err := validatePrefix(h.store.Prefix); err != nil {
		return nil, err
	}
	key := keyOf(cmp.Or(h.store.Prefix, DefaultPrefix), server.ID{Account: h.ticket.Account, Key: h.ticket.Key})
	head := []string{h.fingerprint, h.ticket.ID.String(), h.ticket.Token.String()}
	reply, err := run(ctx, h.store.client, script, key, append(head, args...)...)
	return &reader{reply: reply}, err
}

// claimed returns what the reply of claimScript says.
func (h holder) claimed(r *reader) (claim server.Claim, err error) {
	if owner := r.flag(); owner {
		h.ticket.ID, h.ticket.Attempt = r.uuid(), r.int()
		claim = server.Claim{Lease: h, Operation: h.ticket.Operation, TakenOver: r.flag()}
	} else {
		claim.Record = r.record()
	}
	if r.err != nil {
		return server.Claim{}, r.err
	}
	return claim, nil
}

// withdraw releases, as well as can be, what a claim that failed may have
// claimed nevertheless.
func (h holder) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = h.Release(ctx, nil)
}

// Context implements [server.Lease].
func (h holder) Context(parent context.Context) context.Context { return parent }

// Ticket implements [server.Acceptor].
func (h holder) Ticket() server.Ticket { return h.ticket }

func (h holder) attempt() string { return strconv.Itoa(h.ticket.Attempt) }

// Extend implements [server.Lease]. An owner puts back a record that Redis has
// forgotten.
func (h holder) Extend(ctx context.Context, d time.Duration) error {
	if err := validate("lease", d); err != nil {
		return err
	}
	r, err := h.run(ctx, extendScript, h.attempt(), milliseconds(d), milliseconds(h.ticket.TTL))
	if err != nil {
		return err
	}
	if extended := r.flag(); !extended && r.err == nil {
		return server.ErrLeaseLost
	}
	return r.err
}

// Accept implements [server.Acceptor]. It puts back a record that Redis has
// forgotten.
func (h holder) Accept(ctx context.Context, interim server.Response, d time.Duration) (server.Record, error) {
	if err := validate("lease", d); err != nil {
		return server.Record{}, err
	}
	r, err := h.run(ctx, acceptScript, h.attempt(), encodeResponse(interim), milliseconds(d), milliseconds(h.ticket.TTL))
	if err != nil {
		return server.Record{}, err
	}
	if accepted := r.flag(); accepted {
		return r.record(), r.err
	}
	return h.completedBy(r)
}

// Complete implements [server.Lease]. An owner puts back a record that Redis
// has forgotten.
func (h holder) Complete(ctx context.Context, resp server.Response, ttl time.Duration) (server.Record, error) {
	if err := validate("TTL", ttl); err != nil {
		return server.Record{}, err
	}
	r, err := h.run(ctx, completeScript, h.attempt(), encodeResponse(resp), milliseconds(ttl))
	if err != nil {
		return server.Record{}, err
	}
	if completed := r.flag(); completed {
		return server.Record{
			Status: server.Completed, Operation: h.ticket.ID, Attempt: h.ticket.Attempt, Response: &resp,
		}, nil
	}
	return h.completedBy(r)
}

// completedBy returns the record by which somebody else completed the
// operation, if that is what r has.
func (h holder) completedBy(r *reader) (server.Record, error) {
	if r.err != nil {
		return server.Record{}, r.err
	}
	if len(r.reply) == 0 { // there is no record
		return server.Record{}, server.ErrLeaseLost
	}
	rec := r.record()
	if r.err == nil && (rec.Status != server.Completed || rec.Operation != h.ticket.ID) {
		return server.Record{}, server.ErrLeaseLost
	}
	return rec, r.err
}

// Release implements [server.Lease].
func (h holder) Release(ctx context.Context, _ error) error {
	_, err := h.run(ctx, releaseScript, milliseconds(h.ticket.TTL))
	return err
}
