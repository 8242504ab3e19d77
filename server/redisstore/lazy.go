package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// LazyClient is a [Client] that connects when it is asked for something, and
// tries again the next time if that fails. A rueidis.Client is none before it has
// connected: with [LockWith] and a LazyClient a service can start while Redis is
// away.
//
// It is safe for concurrent use. Option must not be changed after first use.
type LazyClient struct {
	// Option is what rueidis.NewClient is called with.
	Option rueidis.ClientOption

	client     atomic.Pointer[rueidis.Client] // nil before it is connected
	connecting sync.Mutex                     // held by who connects or closes
	closed     bool
}

var _ Client = (*LazyClient)(nil)

var (
	errConnecting = errors.New("redisstore: a connection is being made")
	errClosed     = errors.New("redisstore: the client is closed")
)

// Run implements [Client].
func (c *LazyClient) Run(ctx context.Context, script Script, key string, args []string) ([]any, error) {
	client, err := c.connected()
	if err != nil {
		return nil, err
	}
	return rueidisClient{client}.Run(ctx, script, key, args)
}

// Info implements [Client].
func (c *LazyClient) Info(ctx context.Context) (map[string]string, error) {
	client, err := c.connected()
	if err != nil {
		return nil, err
	}
	return rueidisClient{client}.Info(ctx)
}

// connected returns a client that is connected. It does not wait while somebody
// else connects.
func (c *LazyClient) connected() (rueidis.Client, error) {
	if client := c.client.Load(); client != nil {
		return *client, nil
	}
	if !c.connecting.TryLock() {
		return nil, errConnecting
	}
	defer c.connecting.Unlock()
	if c.closed {
		return nil, errClosed
	}
	client, err := rueidis.NewClient(c.Option)
	if err != nil {
		return nil, err
	}
	c.client.Store(&client)
	return client, nil
}

// Close closes all connections. A LazyClient that is closed stays so.
func (c *LazyClient) Close() {
	c.connecting.Lock()
	defer c.connecting.Unlock()
	c.closed = true
	if client := c.client.Load(); client != nil {
		(*client).Close()
	}
}
