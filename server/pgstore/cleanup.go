package pgstore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemhttp/idem/server"
)

// cleanupBatch is how many records Run deletes in one transaction. Claims wait
// for a processor, and for the disk, while a batch is deleted and committed.
const cleanupBatch = 250

// Cleanup implements [server.Cleaner].
func (s *Store) Cleanup(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, nil
	}
	var deleted int64
	err := s.flight(ctx, commit, func(b *batch) {
		b.add(s.sql(deleteExpired), int64(limit), time.Time{}).count(&deleted)
	})
	if err != nil {
		return 0, err
	}
	return int(deleted), nil
}

// Run deletes expired records until ctx is done, and returns why it is. Every
// process may run it: they take turns, batch by batch, and rest as long as they
// work. Errors are logged and do not end it.
//
// If the database's clock is seen to jump, so that records may only seem to
// have expired, nothing is deleted for an hour.
func (s *Store) Run(ctx context.Context) error {
	if s.CleanupInterval < 0 {
		return errors.New("pgstore: CleanupInterval must not be negative")
	}
	sweep := sweep{clock: clockGuard{database: time.Now(), here: time.Now()}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		pause, err := s.round(ctx, &sweep)
		if err != nil && ctx.Err() == nil {
			s.logger().ErrorContext(ctx, "idempotency records could not be cleaned up", "error", err)
		}
		timer.Reset(pause)
	}
}

// sweep is how far cleanup has got. Where it has been, the index has entries of
// what it deleted until the table is vacuumed: to look for more there again with
// each batch would take longer and longer.
type sweep struct {
	clock clockGuard
	began time.Time
	from  time.Time // what expired before has been deleted, or skipped
}

// after notes that the sweep has got to the expiry newest. It starts over if
// nothing is left, and now and then because of what it skipped.
func (s *sweep) after(newest time.Time, full bool, interval time.Duration) {
	s.from = newest
	if !full || time.Since(s.began) > interval {
		s.from, s.began = time.Time{}, time.Now()
	}
}

func (s *Store) cleanupInterval() time.Duration { return cmp.Or(s.CleanupInterval, time.Minute) }

// round deletes a batch and returns how long to wait before the next.
func (s *Store) round(ctx context.Context, sweep *sweep) (pause time.Duration, err error) {
	interval := s.cleanupInterval()
	start := time.Now()
	batch, rests := s.cleanupAsLeader(ctx, sweep)
	batch.Took = time.Since(start)
	stopped := batch.Err != nil && ctx.Err() != nil
	if !rests && !stopped && s.ObserveCleanup != nil {
		s.ObserveCleanup(ctx, batch)
	}
	if batch.Deleted < cleanupBatch {
		return interval, batch.Err
	}
	return max(10*time.Millisecond, min(batch.Took, interval)), nil
}

// cleanupAsLeader deletes a batch. It rests if another process is at it, or if
// the clock is not to be trusted.
func (s *Store) cleanupAsLeader(ctx context.Context, sweep *sweep) (done server.CleanupEvent, rests bool) {
	facts, err := s.facts(ctx)
	if err != nil {
		return server.CleanupEvent{Err: err}, false
	}
	conn, err := s.pool.acquire(ctx)
	if err != nil {
		return server.CleanupEvent{Err: err}, false
	}
	defer conn.Release()
	defer abort(ctx, conn.Conn())
	leads, now, lag, err := s.lead(ctx, conn.Conn(), facts.locks, sweep.from)
	if err != nil || !leads {
		return server.CleanupEvent{Err: err}, err == nil
	}
	if jump := sweep.clock.check(now, time.Now()); jump != 0 {
		s.logger().ErrorContext(ctx, "the database's clock jumped; cleanup of idempotency records rests", "jump", jump, "rest", restAfterJump)
	}
	if sweep.clock.rests(time.Now()) {
		return server.CleanupEvent{}, true
	}
	var expiries []time.Time
	b := &batch{}
	b.add(s.sql(deleteExpired), int64(cleanupBatch), sweep.from).rows = func(rows pgx.Rows) (err error) {
		expiries, err = pgx.CollectRows(rows, pgx.RowTo[time.Time])
		return err
	}
	if err := send(ctx, conn.Conn(), b, commit); err != nil {
		return server.CleanupEvent{Lag: lag, Err: err}, false
	}
	sweep.after(newest(expiries), len(expiries) == cleanupBatch, s.cleanupInterval())
	return server.CleanupEvent{Deleted: len(expiries), Lag: lag}, false
}

func newest(times []time.Time) (t time.Time) {
	for _, other := range times {
		if other.After(t) {
			t = other
		}
	}
	return t
}

// lead begins a transaction on conn and tries to become the only one to clean
// up, where locks are real. It returns the database's time, and for how long
// records that expire at from or later have been expired.
func (s *Store) lead(ctx context.Context, conn *pgx.Conn, locks bool, from time.Time) (leads bool, now time.Time, lag time.Duration, err error) {
	var us int64
	b := &batch{}
	b.begin()
	if locks {
		b.add(tryOnlyLock, keyOf("cleanup", s.table())).scan(&leads)
	}
	b.add(s.sql(selectClock), from).scan(&now, &us)
	err = b.send(ctx, conn)
	return leads || !locks, now, time.Duration(us) * time.Microsecond, err
}

const (
	maxClockJump  = time.Minute
	restAfterJump = time.Hour
)

// clockGuard compares the database's clock with this process's monotonic one.
type clockGuard struct {
	database, here time.Time // of the last check
	until          time.Time // the end of the rest
}

// check returns by how much the database's clock has jumped since the last
// check, zero if it runs as clocks do.
func (g *clockGuard) check(database, here time.Time) time.Duration {
	jump := database.Sub(g.database) - here.Sub(g.here)
	g.database, g.here = database, here
	if jump.Abs() <= maxClockJump {
		return 0
	}
	g.until = here.Add(restAfterJump)
	return jump
}

func (g *clockGuard) rests(here time.Time) bool { return here.Before(g.until) }
