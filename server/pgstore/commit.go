package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemhttp/idem/server"
)

// A COMMIT that waits for a synchronous standby must not be cancelled: the
// server would end the wait, and show everybody a record that is lost if the
// primary is. pgx cancels whatever runs when a context ends.

var (
	errUnanswered    = errors.New("pgstore: COMMIT is not answered yet")
	errNotReplicated = errors.New("pgstore: somebody cancelled the wait for a standby, which may lack what was committed")
)

// holdLimit is for how long a connection stays the pool's while a COMMIT on it
// is not answered. The limit is for servers that have vanished. One that is
// there, but makes every COMMIT wait, must not be sent ever more connections: no
// more are out of the pool at a time than may be in it.
const holdLimit = 30 * time.Second

// seeThrough calls f, which ends with a COMMIT on conn, and releases conn. If ctx
// ends before f does, f goes on, and what it makes known must not be read: the
// error is errUnanswered and the cause.
func (s *Store) seeThrough(ctx context.Context, conn connection, f func(ctx context.Context, conn *pgx.Conn) error) error {
	inner := conn.Conn()
	var once sync.Once  // the connection is given back, or taken out of the pool
	var closeOut func() // in the latter case
	answered := make(chan error, 1)
	go func() {
		err := f(context.WithoutCancel(ctx), inner)
		once.Do(conn.Release)
		if closeOut != nil {
			closeOut()
			s.out.Add(-1)
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		time.AfterFunc(holdLimit, func() {
			if s.out.Add(1) <= int64(s.pool.size()) {
				once.Do(func() { closeOut = conn.Hijack() })
			}
			if closeOut == nil {
				s.out.Add(-1)
			}
		})
		return fmt.Errorf("%w: %w", errUnanswered, context.Cause(ctx))
	}
}

// confirmed returns the record of id, live or dead, or nil, when there is no
// doubt that it will last. Whoever finds a record of his own that nobody has
// acknowledged to him locks it, because that makes his COMMIT wait for the
// standbys as the other should have done.
func (s *Store) confirmed(ctx context.Context, id server.ID) (*record, error) {
	var r *record
	err := retry(ctx, func() error {
		return s.flight(ctx, commit, func(b *batch) {
			b.add(s.sql(selectRecordLocked), id.Account, id.Key).record(&r)
		})
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// cancelledWait is where a connection notes a COMMIT that was not replicated.
const cancelledWait = "github.com/idemhttp/idem/server/pgstore cancelled wait"

// noteCancelledWait is how a server tells of it: it answers COMMIT as always,
// with a warning before that, which has no code of its own.
func noteCancelledWait(conn *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.Routine == "SyncRepWaitForLSN" {
		conn.CustomData()[cancelledWait] = true
	}
}

// checkReplicated returns errNotReplicated if the last COMMIT on conn was not.
func checkReplicated(conn *pgconn.PgConn) error {
	if conn.CustomData()[cancelledWait] == nil {
		return nil
	}
	delete(conn.CustomData(), cancelledWait)
	return errNotReplicated
}
