package pgstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// heldConn notes what becomes of a connection.
type heldConn struct {
	connection

	became chan string
}

func (heldConn) Conn() *pgx.Conn { return nil }
func (c heldConn) Release()      { c.became <- "released" }

func (c heldConn) Hijack() (closeConn func()) {
	c.became <- "taken out"
	return func() { c.became <- "closed" }
}

// poolOf is a pool of so many connections.
type poolOf int

func (poolOf) acquire(context.Context) (connection, error) { return nil, errors.ErrUnsupported }
func (p poolOf) size() int                                 { return int(p) }

// A COMMIT outlives the patience of its caller. It keeps its connection until it
// is answered, but not for ever.
func TestSeeThroughAfterItsCaller(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		answer time.Duration
		became string
		after  time.Duration
	}{
		{"answered in time", time.Millisecond, "released", time.Millisecond},
		{"answered later", 10 * time.Second, "released", 10 * time.Second},
		{"answered too late", time.Hour, "taken out", 31 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				conn := heldConn{became: make(chan string, 2)}
				errAnswer := errors.New("the answer")
				err := newStore(poolOf(1)).seeThrough(ctx, conn, func(ctx context.Context, _ *pgx.Conn) error {
					<-time.After(c.answer)
					require.NoError(t, ctx.Err())
					return errAnswer
				})
				if c.answer < time.Second {
					require.ErrorIs(t, err, errAnswer)
				} else {
					require.Equal(t, time.Second, time.Since(began))
					require.ErrorIs(t, err, errUnanswered)
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				require.Equal(t, c.became, <-conn.became)
				require.Equal(t, c.after, time.Since(began))
				if c.became == "taken out" {
					require.Equal(t, "closed", <-conn.became)
					require.Equal(t, c.answer, time.Since(began))
				}
				<-time.After(2 * time.Hour)
				require.Empty(t, conn.became, "and nothing else")
			})
		})
	}
}

// A server that answers no COMMIT is not sent ever more connections.
func TestNoMoreConnectionsAreTakenOutThanThePoolHas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, became := newStore(poolOf(2)), make(chan string, 10)
		for range 2 { // the places are free again for the second three
			answer := make(chan struct{})
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				err := store.seeThrough(ctx, heldConn{became: became}, func(context.Context, *pgx.Conn) error {
					<-answer
					return nil
				})
				require.ErrorIs(t, err, errUnanswered)
				cancel()
			}
			<-time.After(time.Hour)
			require.Len(t, became, 2)
			require.Equal(t, []string{"taken out", "taken out"}, []string{<-became, <-became})
			close(answer)
			require.ElementsMatch(t, []string{"closed", "closed", "released"}, []string{<-became, <-became, <-became})
			synctest.Wait()
		}
	})
}
