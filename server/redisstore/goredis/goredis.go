// Package goredis has the stores of package redisstore for those who use
// go-redis, github.com/redis/go-redis/v9. It is a module of its own.
//
//	store := goredis.New(client)                      // Redis alone
//	store := goredis.Lock(client, pgstore.New(pool))  // Redis as a door
//
// The client is a [redis.Client], of a single node or made by
// [redis.NewFailoverClient], or a [redis.ClusterClient]. What package redisstore
// says holds, and the two clients can share records. Some things are particular
// to go-redis:
//
//   - Each call has a connection to itself, so that PoolSize bounds how many are
//     made at a time. A client of rueidis sends what is concurrent together, and
//     gets more done.
//   - Calls end with their contexts, with or without ContextTimeoutEnabled. When
//     a server hangs, ReadTimeout bounds for how long it keeps the connection of
//     a call that nobody waits for any more.
//   - Calls that fail are repeated up to MaxRetries times, which does no harm.
//   - A [redis.Ring] is for Lock. With New it would forget: while a node is away,
//     its keys are looked for on others.
package goredis

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/redisstore"
)

// New is [redisstore.New] with a client of go-redis. The caller closes it.
func New(client redis.UniversalClient) *redisstore.Store {
	return redisstore.NewWith(adapter{client})
}

// Lock is [redisstore.Lock] with a client of go-redis. The caller closes it.
func Lock(client redis.UniversalClient, durable server.Store) *redisstore.Locked {
	return redisstore.LockWith(adapter{client}, durable)
}

// adapter is a client as the stores want it.
type adapter struct{ client redis.UniversalClient }

var _ redisstore.Client = adapter{}

// Run implements [redisstore.Client].
func (a adapter) Run(ctx context.Context, script redisstore.Script, key string, args []string) ([]any, error) {
	keys := []string{key}
	reply, err := a.client.EvalSha(ctx, script.SHA1, keys, args).Slice()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = a.client.Eval(ctx, script.Source, keys, args).Slice()
	}
	return reply, err
}

// Info implements [redisstore.Client].
func (a adapter) Info(ctx context.Context) (map[string]string, error) {
	var mu sync.Mutex
	replies := make(map[string]string)
	ask := func(ctx context.Context, address string, node redis.Cmdable) error {
		info, err := node.Info(ctx).Result()
		if err != nil {
			return fmt.Errorf("%s: %w", address, err)
		}
		mu.Lock()
		defer mu.Unlock()
		replies[address] = info
		return nil
	}
	switch client := a.client.(type) {
	case interface { // a Cluster or a Ring
		ForEachShard(ctx context.Context, f func(ctx context.Context, node *redis.Client) error) error
	}:
		return replies, client.ForEachShard(ctx, func(ctx context.Context, node *redis.Client) error {
			return ask(ctx, node.Options().Addr, node)
		})
	case *redis.Client:
		return replies, ask(ctx, client.Options().Addr, client)
	default:
		return replies, ask(ctx, "Redis", client)
	}
}
