package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemhttp/idem/server"
)

// inTransaction claims in transactional mode: what makes the caller the owner
// is a lock that lives and dies with the transaction in which the handler will
// work. Nothing of it is durable.
func (c *claiming) inTransaction(ctx context.Context) (claim server.Claim, err error) {
	err = retry(ctx, func() error {
		conn, err := c.store.pool.acquire(ctx)
		if err != nil {
			return err
		}
		if c.facts.locks {
			claim, err = c.enter(ctx, conn)
		} else {
			claim, err = c.enterByIndex(ctx, conn)
		}
		if err != nil {
			leave(ctx, conn)
		}
		return err
	})
	return claim, err
}

// enter begins the handler's transaction in one round trip that also finds out
// whose the operation is. It takes over conn unless it fails.
func (c *claiming) enter(ctx context.Context, conn connection) (server.Claim, error) {
	var locked bool
	var r *record
	b := &batch{}
	b.begin()
	b.add(c.store.sql(tryLock), c.req.ID.Account, c.req.ID.Key, c.keys.id, c.keys.class, c.keys.fingerprint,
		int16(c.req.Fingerprint.Version), c.req.Fingerprint.Sum[:]).row = func(values [][]byte) (err error) {
		locked = bytes.Equal(values[0], []byte{1})
		r, err = decodeRecord(values[1:])
		return err
	}
	if err := b.send(ctx, conn.Conn()); err != nil {
		return server.Claim{}, err
	}
	switch {
	case judge(r, c.req) == report:
		go leave(context.WithoutCancel(ctx), conn)
		return server.Claim{Record: r.reported(c.req.Fingerprint)}, nil
	case !locked:
		return c.inFlight(ctx, conn)
	default:
		return c.entered(conn, r)
	}
}

// leave rolls back and gives the connection back. A claim that only looked does
// so after its caller was answered.
func leave(ctx context.Context, conn connection) {
	abort(ctx, conn.Conn())
	conn.Release()
}

// inFlight reports an attempt that another session makes. That its request was
// a different one takes proof: the lock of another fingerprint in the hands of
// the same session. That no such lock is found proves nothing.
//
// The record is read once more after the locks. One that became visible before
// the session got its lock decides; and who holds the lock of a record that
// asks for the same as this request has either asked for the same or only
// looks at the record.
func (c *claiming) inFlight(ctx context.Context, conn connection) (server.Claim, error) {
	var other bool
	var r *record
	b := &batch{}
	b.add(selectEvidence, c.keys.id, int64(uint32(c.keys.class)), int64(uint32(c.keys.fingerprint))).scan(&other)
	c.queueSelect(b, &r)
	if err := send(ctx, conn.Conn(), b, rollback); err != nil {
		return server.Claim{}, err
	}
	conn.Release()
	if judge(r, c.req) == report {
		return server.Claim{Record: r.reported(c.req.Fingerprint)}, nil
	}
	return server.Claim{Record: c.running(r, other && (r == nil || r.expired))}, nil
}

// running is the record of an attempt that nothing durable tells about.
func (c *claiming) running(r *record, reused bool) server.Record {
	op := c.next(r)
	return server.Record{
		Status: server.Processing, Reused: reused, Operation: op.ID, Attempt: op.Attempt, LeaseLeft: c.req.Lease,
	}
}

func (c *claiming) entered(conn connection, seen *record) (server.Claim, error) {
	handed, err := conn.handOver()
	if err != nil {
		return server.Claim{}, err
	}
	op := c.next(seen)
	return server.Claim{
		Operation: op,
		TakenOver: op.Attempt > 1 && seen.status == server.Processing,
		Lease:     &txLease{claiming: c, operation: op, conn: conn, tx: handed, seen: seen},
	}, nil
}

// next is the operation of an owner who found the dead record r, or none. The
// id of a new operation is derived and not random, because an attempt that
// crashes leaves nothing behind from which the next could learn it.
func (c *claiming) next(r *record) server.Operation {
	op := server.Operation{Account: c.req.ID.Account, Key: c.req.ID.Key, Attempt: 1}
	switch {
	case r == nil:
		op.ID = c.derive(uuid.Nil)
	case judge(r, c.req) == begin:
		op.ID = c.derive(r.operation)
	default:
		op.ID, op.Attempt = r.operation, r.attempt+1
	}
	return op
}

// derive returns the id of the operation that follows previous under the key.
func (c *claiming) derive(previous uuid.UUID) uuid.UUID {
	sum := hash("operation", string(c.facts.namespace[:]), c.req.ID.Account, c.req.ID.Key, string(previous[:]))
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0F | 0x80 // version 8, RFC 9562
	id[8] = id[8]&0x3F | 0x80
	return id
}

// txLease is the ownership of an attempt in transactional mode.
type txLease struct {
	*claiming

	operation server.Operation
	conn      connection // nil once the attempt has ended
	tx        handlerTx
	seen      *record // the dead record that was there
	placed    bool    // the transaction has put a record of its own in place
}

var _ server.AtomicLease = (*txLease)(nil)

// Atomic implements [server.AtomicLease].
func (l *txLease) Atomic() {}

// Context implements [server.Lease].
func (l *txLease) Context(parent context.Context) context.Context {
	return l.tx.context(parent)
}

// Extend implements [server.Lease]. The lease lasts as long as its transaction.
func (l *txLease) Extend(context.Context, time.Duration) error { return nil }

// Complete implements [server.Lease].
func (l *txLease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	rec, err := l.end(ctx, ended{status: server.Completed, response: &r, ttl: ttl})
	l.store.recent.note(l.req.ID, rec, err)
	return rec, err
}

// ended is what an attempt leaves behind.
type ended struct {
	status   server.Status
	response *server.Response // nil if it has failed
	lease    time.Duration    // of the worker, if it was accepted
	ttl      time.Duration    // until it expires
}

// end ends the attempt with an answer, final or interim.
func (l *txLease) end(ctx context.Context, e ended) (server.Record, error) {
	if l.conn == nil {
		return l.lookUp(ctx)
	}
	if ctx.Err() != nil {
		return server.Record{}, context.Cause(ctx)
	}
	conn, code, err := l.takeBack(ctx)
	if err != nil {
		return server.Record{}, fmt.Errorf("%w: %w", server.ErrRolledBack, err)
	}
	switch endingOf(e.response.StatusCode, stateOf(conn), code) {
	case commitAll:
		return l.commit(ctx, conn, e)
	case storeAlone:
		return l.storeAlone(ctx, conn, e)
	case restart:
		leave(ctx, conn)
		return server.Record{}, server.ErrRestart
	default:
		leave(ctx, conn)
		return server.Record{}, fmt.Errorf("%w (SQLSTATE %s)", server.ErrRolledBack, code)
	}
}

// takeBack takes the session from the handler, with the last SQLSTATE that the
// handler met. If the handler has left something running on it, it is cut.
func (l *txLease) takeBack(ctx context.Context) (conn connection, code string, err error) {
	conn, l.conn = l.conn, nil
	code, err = l.tx.end(ctx)
	if err != nil {
		_ = conn.Conn().PgConn().Conn().Close()
		go func() { // the handler's goroutines take as long as they like
			l.tx.drain()
			conn.Release()
		}()
	}
	return conn, code, err
}

// ending is how the transaction of a handler that gave an answer ends.
type ending int

const (
	commitAll  ending = iota // the effects with the answer
	storeAlone               // the answer, without effects
	restart                  // nothing; the operation is to be run again
	refuse                   // nothing
)

// The states of a session.
const (
	stateLost    = 0   // the connection is gone
	stateIdle    = 'I' // the handler has ended the transaction by a statement of its own
	stateOpen    = 'T'
	stateAborted = 'E'
)

func stateOf(conn connection) byte {
	if conn.Conn().IsClosed() {
		return stateLost
	}
	return conn.Conn().PgConn().TxStatus()
}

// endingOf decides by the status of the answer, the state of the session and
// the last SQLSTATE. An answer of 4xx or 5xx never has effects.
func endingOf(status int, state byte, code string) ending {
	rejected := status >= 400
	switch {
	case state == stateAborted && restartable(code):
		return restart
	case rejected || state == stateIdle:
		return storeAlone
	case state == stateOpen:
		return commitAll
	case state == stateLost:
		return restart
	default:
		return refuse
	}
}

// commit stores the answer with the handler's effects, in place of the
// handler's own COMMIT. The insert is plain, so that only an error of it can
// keep the COMMIT behind it from being executed, and does.
func (l *txLease) commit(ctx context.Context, conn connection, e ended) (server.Record, error) {
	var inserted int64
	b := &batch{}
	if l.placed {
		b.add(l.store.sql(deleteDead), l.req.ID.Account, l.req.ID.Key, l.token)
	} else {
		l.queueDelete(b)
	}
	l.queueEnded(b, insertEnded, e).count(&inserted)
	err := l.store.seeThrough(ctx, conn, func(ctx context.Context, conn *pgx.Conn) error { return send(ctx, conn, b, commit) })
	if errors.Is(err, errUnanswered) {
		return l.lookUp(ctx)
	}
	switch outcomeOf(err, inserted > 0) {
	case committed:
		return l.reported(e), nil
	case conflict:
		return server.Record{}, server.ErrRestart
	case refused:
		return server.Record{}, fmt.Errorf("%w: %w", server.ErrRolledBack, err)
	case failed:
		return server.Record{}, err
	default:
		return l.lookUp(ctx)
	}
}

// outcome is what became of a last flight.
type outcome int

const (
	unknown   outcome = iota // the session was lost: committed or not
	committed                // and all of the following not
	conflict                 // somebody else got in between
	refused                  // by what the handler did, such as violate a deferred constraint
	failed                   // for want of resources, or time
)

func outcomeOf(err error, inserted bool) outcome {
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return committed
	case errors.Is(err, errNotCommitted):
		return refused
	case errors.As(err, &pgErr) && !isFatal(pgErr):
		return outcomeOfError(pgErr.Code, inserted)
	case pgconn.SafeToRetry(err):
		return conflict
	default:
		return unknown
	}
}

func outcomeOfError(code string, inserted bool) outcome {
	switch {
	case code == "40003": // statement completion unknown
		return unknown
	case restartable(code), code == "26000", code == "23505" && !inserted: // the last is our own index
		return conflict
	}
	switch code[:min(2, len(code))] {
	case "08", "40", "53", "54", "55", "57", "58", "XX":
		return failed
	default:
		return refused
	}
}

// queueDelete queues the removal of the dead record that the claim saw.
func (l *txLease) queueDelete(b *batch) {
	if l.seen != nil {
		b.add(l.store.sql(deleteDead), l.req.ID.Account, l.req.ID.Key, l.seen.token)
	}
}

// queueEnded queues the insertion of the record that the attempt leaves.
func (l *txLease) queueEnded(b *batch, statement string, e ended) *query {
	var (
		code, lease   any // NULL
		headers, body []byte
		flags         int32
	)
	if r := e.response; r != nil {
		code, headers, body, flags = int16(r.StatusCode), encodeHeaders(r.Fields), r.Body, responseFlags(*r)
	}
	if e.status == server.Processing {
		lease = e.lease
	}
	return b.add(l.store.sql(statement), l.req.ID.Account, l.req.ID.Key, l.operation.ID,
		l.req.Fingerprint.Sum[:], int16(l.req.Fingerprint.Version),
		e.status.String(), int32(l.operation.Attempt), l.token,
		code, headers, body, flags, lease, e.ttl)
}

// reported is e as the attempt's own record.
func (l *txLease) reported(e ended) server.Record {
	return server.Record{
		Status: e.status, Operation: l.operation.ID, Attempt: l.operation.Attempt, LeaseLeft: e.lease, Response: e.response,
	}
}

// storeAlone rolls the effects back and stores the answer, on another session
// if conn is lost.
func (l *txLease) storeAlone(ctx context.Context, conn connection, e ended) (stored server.Record, err error) {
	abort(ctx, conn.Conn())
	err = retry(ctx, func() error {
		if conn == nil {
			if conn, err = l.store.pool.acquire(ctx); err != nil {
				return err
			}
		}
		stored, err = l.storeOn(ctx, conn, e)
		conn = nil
		return err
	})
	return stored, err
}

// storeOn stores an answer, unless somebody else has completed the operation. It
// releases conn.
func (l *txLease) storeOn(ctx context.Context, conn connection, e ended) (server.Record, error) {
	var inserted int64
	err := l.store.flightOn(ctx, conn, commit, func(b *batch) {
		l.queueDelete(b)
		l.queueEnded(b, insertEndedOnce, e).count(&inserted)
	})
	if err != nil {
		return server.Record{}, err
	}
	if inserted > 0 {
		return l.reported(e), nil
	}
	found, err := l.store.confirmed(ctx, l.req.ID)
	if err != nil {
		return server.Record{}, err
	}
	return l.verdictOf(found)
}

// verdictOf is what a record found after the end of this attempt means for it:
// it decides if somebody has completed the operation, or this attempt has had it
// accepted.
func (l *txLease) verdictOf(r *record) (server.Record, error) {
	if r == nil || r.expired {
		return server.Record{}, server.ErrRestart
	}
	accepted := r.status == server.Processing && r.token == l.token && r.response != nil
	if r.status != server.Completed && !accepted {
		return server.Record{}, server.ErrRestart
	}
	return r.reported(l.req.Fingerprint), nil
}

// lookUp finds out on another session what became of a COMMIT that was not
// answered. As long as the server is still at it the session holds the key's
// lock; a look without that lock could miss the record.
func (l *txLease) lookUp(ctx context.Context) (server.Record, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	var r *record
	err := retry(ctx, func() error {
		return l.store.flight(ctx, rollback, func(b *batch) {
			b.add(limitLockWait)
			if l.facts.locks {
				b.add(waitLock, l.keys.id)
			} else {
				l.queueInsert(b, l.operation.ID, 0)
			}
			l.queueSelect(b, &r)
		})
	})
	if err == nil && r != nil {
		r, err = l.store.confirmed(ctx, l.req.ID)
	}
	if err != nil {
		return server.Record{}, fmt.Errorf("pgstore: whether the operation was committed is unknown: %w", err)
	}
	return l.verdictOf(r)
}

// limitLockWait keeps a lookUp from waiting longer than its patience.
const limitLockWait = "SET LOCAL lock_timeout = '900ms'"

// Release implements [server.Lease]. The effects are rolled back, and a failed
// record is left as well as can be.
func (l *txLease) Release(ctx context.Context, _ error) error {
	if l.conn == nil {
		return nil
	}
	conn, code, err := l.takeBack(ctx)
	if err != nil {
		return nil // the session was cut, and with it everything is rolled back
	}
	defer conn.Release()
	rolledBack := stateOf(conn) != stateIdle
	abort(ctx, conn.Conn())
	if rolledBack && restartable(code) {
		return server.ErrRestart
	}
	if stateOf(conn) == stateIdle {
		l.rememberFailure(ctx, conn)
	}
	return nil
}

// rememberFailure leaves a record of the failed attempt, so that the next one
// is known to be the next and has to ask for the same. It is not worth waiting
// for the disk, and is left out if the next attempt has begun.
func (l *txLease) rememberFailure(ctx context.Context, conn connection) {
	locked := true
	b := &batch{}
	b.begin()
	b.add("SET LOCAL synchronous_commit = off")
	if l.facts.locks {
		b.add(tryOnlyLock, l.keys.id).scan(&locked)
	} else {
		b.add(waitBriefly)
	}
	if err := b.send(ctx, conn.Conn()); err != nil || !locked {
		abort(ctx, conn.Conn())
		return
	}
	b = &batch{}
	l.queueDelete(b)
	l.queueEnded(b, insertEndedOnce, ended{status: server.Failed, ttl: l.req.TTL})
	_ = send(ctx, conn.Conn(), b, commit)
}
