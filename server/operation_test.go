package server_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

func TestDownstreamKeysAreStable(t *testing.T) {
	t.Parallel()
	op := server.Operation{ID: uuid.MustParse("2c9a1e9b-4b9e-4d6e-9e67-6e3b2e7c1e32"), Account: "acme", Key: "key", Attempt: 1}
	key := op.DownstreamKey("charge")
	require.Equal(t, "9fb50594-cd14-80de-a615-dac52dad16fa", key, "a change here makes charges that are under way be made twice")
	parsed, err := uuid.Parse(key)
	require.NoError(t, err)
	require.EqualValues(t, 8, parsed.Version())
	require.Equal(t, uuid.RFC4122, parsed.Variant())

	op.Attempt = 7
	require.Equal(t, key, op.DownstreamKey("charge"), "the same on every attempt")
}

func TestDownstreamKeysTellCallsApart(t *testing.T) {
	t.Parallel()
	op := server.Operation{ID: uuid.New()}
	other := server.Operation{ID: uuid.New()}
	keys := map[string]bool{}
	for _, key := range []string{
		op.DownstreamKey("charge"), op.DownstreamKey("receipt"), op.DownstreamKey(""), other.DownstreamKey("charge"),
	} {
		require.False(t, keys[key])
		keys[key] = true
	}
}

func TestThereIsNoOperationOutsideOfAHandler(t *testing.T) {
	t.Parallel()
	op, ok := server.OperationFrom(t.Context())
	require.False(t, ok)
	require.Zero(t, op)
}
