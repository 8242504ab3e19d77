package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"
)

// rueidisClient is the [Client] of [New] and [Lock].
type rueidisClient struct{ rueidis.Client }

// fromRueidis returns a Client, or nil for nil.
func fromRueidis(client rueidis.Client) Client {
	if client == nil {
		return nil
	}
	return rueidisClient{client}
}

// Run implements [Client].
func (c rueidisClient) Run(ctx context.Context, script Script, key string, args []string) ([]any, error) {
	messages, err := script.lua.Exec(ctx, c.Client, []string{key}, args).ToArray()
	if err != nil {
		return nil, err
	}
	reply := make([]any, len(messages))
	for i := range messages {
		if reply[i], err = messages[i].ToAny(); err != nil && !rueidis.IsRedisNil(err) {
			return nil, err
		}
	}
	return reply, nil
}

// Info implements [Client].
func (c rueidisClient) Info(ctx context.Context) (map[string]string, error) {
	replies := make(map[string]string)
	var errs []error
	for address, node := range c.Nodes() {
		info, err := node.Do(ctx, node.B().Info().Build()).ToString()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address, err))
			continue
		}
		replies[address] = info
	}
	return replies, errors.Join(errs...)
}
