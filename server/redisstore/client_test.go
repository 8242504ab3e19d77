package redisstore_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/redisstore"
	"github.com/idemhttp/idem/server/storetest"
)

// repeating is a client of its own making that makes every call twice.
type repeating struct {
	client rueidis.Client
	// then chooses what is returned.
	then func(first, second []any) ([]any, error)
}

var _ redisstore.Client = repeating{}

func (c repeating) Run(ctx context.Context, script redisstore.Script, key string, args []string) ([]any, error) {
	words := append([]string{"EVAL", script.Source, "1", key}, args...)
	var replies [2][]any
	for i := range replies {
		reply, err := c.client.Do(ctx, c.client.B().Arbitrary(words...).Build()).ToAny()
		if err != nil {
			return nil, err
		}
		replies[i] = reply.([]any)
	}
	return c.then(replies[0], replies[1])
}

func (c repeating) Info(ctx context.Context) (map[string]string, error) {
	info, err := c.client.Do(ctx, c.client.B().Info().Build()).ToString()
	return map[string]string{"the only node": info}, err
}

func TestAStoreWithoutAClientSaysSo(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]*redisstore.Store{"zero value": {Prefix: "shop:"}, "New": redisstore.New(nil), "NewWith": redisstore.NewWith(nil)} {
		require.ErrorContains(t, store.Check(t.Context()), "there is no client", name)
		store.Logger = slog.New(slog.DiscardHandler)
		_, err := store.Claim(t.Context(), server.ClaimRequest{
			ID: server.ID{Account: "a", Key: "k"}, Lease: time.Second, TTL: time.Hour,
		})
		require.ErrorContains(t, err, "there is no client", name)
	}
}

func TestCallsMayBeRepeated(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		late := repeating{client, func(first, second []any) ([]any, error) {
			if first[0] == int64(1) {
				return first, nil // a second claim cannot tell a takeover
			}
			return second, nil
		}}
		storetest.Run(t, func(t *testing.T) server.Store {
			t.Helper()
			store := redisstore.NewWith(late)
			store.Prefix, store.Logger = redistest.Prefix(t, client), quiet
			return store
		})
	})
	t.Run("lock", func(t *testing.T) {
		t.Parallel()
		lost := repeating{client, func(_, second []any) ([]any, error) { return second, nil }}
		storetest.Run(t, func(t *testing.T) server.Store {
			t.Helper()
			lock := redisstore.LockWith(lost, &memstore.Store{})
			lock.Prefix, lock.Logger, lock.Timeout = redistest.Prefix(t, client), quiet, 5*time.Second
			return lock
		})
	})
}

// TestARefusalOfARepeatedClaimIsNoProof has a claim succeed whose caller is told
// that it was refused, as the second of two calls may be.
func TestARefusalOfARepeatedClaimIsNoProof(t *testing.T) {
	t.Parallel()
	client := redistest.Client(t)
	var refuse atomic.Bool
	store := redisstore.NewWith(repeating{client, func(_, second []any) ([]any, error) {
		if refuse.Swap(false) {
			return nil, errors.New("READONLY You can't write against a read only replica.")
		}
		return second, nil
	}})
	store.Prefix, store.Logger = redistest.Prefix(t, client), quiet
	refuse.Store(true)
	_, err := store.Claim(t.Context(), request("key"))
	require.EqualError(t, err, "redisstore: READONLY You can't write against a read only replica.")
	require.Eventually(t, func() bool {
		claim, err := store.Claim(t.Context(), request("key"))
		return err == nil && claim.Lease != nil && claim.Operation.Attempt == 2
	}, 10*time.Second, 5*time.Millisecond, "long before the lease of a minute ends")
}
