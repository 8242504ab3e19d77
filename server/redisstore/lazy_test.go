package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/redisstore"
)

func TestAServiceStartsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Crash(t)
	client := &redisstore.LazyClient{Option: s.Option()}
	t.Cleanup(client.Close)
	lock := redisstore.LockWith(client, &memstore.Store{})
	logger, log := notes()
	lock.Logger, lock.Timeout = logger, 5*time.Second
	completed(t, owned(t, lock, request("first")), answer("done"))
	require.Equal(t, answer("done"), *found(t, lock, request("first")).Response)
	_, err := client.Info(t.Context())
	require.Error(t, err)

	s.Restart(t)
	require.Eventually(t, func() bool {
		_, err := lock.Claim(t.Context(), request("first"))
		return err == nil && strings.Contains(log.String(), "Redis works again")
	}, 30*time.Second, 50*time.Millisecond)
	info, err := client.Info(t.Context())
	require.NoError(t, err)
	require.Len(t, info, 1)
}

func TestALazyClientThatIsClosedStaysSo(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, before := range map[string]func(*redisstore.LazyClient){
		"before it has connected": func(*redisstore.LazyClient) {},
		"when it has connected": func(c *redisstore.LazyClient) {
			_, err := c.Info(t.Context())
			require.NoError(t, err)
		},
	} {
		client := &redisstore.LazyClient{Option: s.Option()}
		before(client)
		client.Close()
		_, err := client.Info(t.Context())
		require.Error(t, err, name)
		_, err = redisstore.NewWith(client).Claim(t.Context(), request("key"))
		require.Error(t, err, name)
	}
}
