package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pool is where the connections of a Store come from.
type pool interface {
	acquire(ctx context.Context) (connection, error)
	size() int // how many connections there are at most, 0 if there is no limit
}

// connection is one that belongs to one caller until he releases it. One that
// is still in a transaction then, or closed, is not used again.
type connection interface {
	Conn() *pgx.Conn
	Release()
	// Hijack takes the connection out of the pool, though it is in use: who uses
	// it does not release it any more, but closes it.
	Hijack() (closeConn func())
	// handOver makes of the transaction that the connection is in one that a
	// handler can be trusted with.
	handOver() (handlerTx, error)
}

// handlerTx is a transaction in the hands of a handler.
type handlerTx interface {
	// context returns the context from which the handler gets the transaction.
	context(parent context.Context) context.Context
	// end takes the transaction from the handler and returns the last SQLSTATE
	// it met. It fails if the connection is still in use, and has to be cut.
	end(ctx context.Context) (code string, err error)
	// drain waits until nobody uses the connection, which has been cut.
	drain()
}

type pgxPool struct{ *pgxpool.Pool }

var errNoPool = errors.New("pgstore: the Store has no pool: give one to New or Transactional, or a sql.DB to FromDB")

func (p pgxPool) acquire(ctx context.Context) (connection, error) {
	if p.Pool == nil {
		return nil, errNoPool
	}
	c, err := p.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return pgxConn{c}, nil
}

func (p pgxPool) size() int { return int(p.Config().MaxConns) }

type pgxConn struct{ pooled *pgxpool.Conn }

func (c pgxConn) Conn() *pgx.Conn { return c.pooled.Conn() }

func (c pgxConn) Release() { c.pooled.Release() }

func (c pgxConn) Hijack() (closeConn func()) {
	conn := c.pooled.Hijack()
	return func() { _ = conn.Close(context.Background()) }
}

func (c pgxConn) handOver() (handlerTx, error) { return newTx(c.Conn()), nil }
