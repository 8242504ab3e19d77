package idem_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
)

func TestNewKeyIsARandomUUIDv4(t *testing.T) {
	t.Parallel()
	seen := map[idem.Key]bool{}
	for range 1000 {
		key := idem.NewKey()
		id, err := uuid.Parse(string(key))
		require.NoError(t, err)
		require.Equal(t, uuid.Version(4), id.Version())
		require.Equal(t, uuid.RFC4122, id.Variant())
		require.False(t, seen[key])
		seen[key] = true
	}
}

func TestDeriveKeyGivesTheSameKeyForTheSamePartsForEver(t *testing.T) {
	t.Parallel()
	// The value is written down: a change of it would give every operation that
	// is waiting to be sent again another key, and execute it twice.
	require.Equal(t, idem.Key("aa5497ca-378a-82a6-a4e3-87843da9c7d0"), idem.DeriveKey("order", "42"))
	id, err := uuid.Parse(string(idem.DeriveKey("order", "42")))
	require.NoError(t, err)
	require.Equal(t, uuid.Version(8), id.Version())
	require.Equal(t, uuid.RFC4122, id.Variant())
}

func TestDeriveKeyTakesEveryPartAsAWhole(t *testing.T) {
	t.Parallel()
	keys := map[idem.Key][]string{}
	for _, parts := range [][]string{
		{"ab", "c"}, {"a", "bc"}, {"abc"}, {"c", "ab"}, {"a", "b", "c"}, {"ab", "c", "c"}, {"a\x00b", "c"}, {"a", "\x00b", "c"},
	} {
		key := idem.DeriveKey(parts...)
		require.Empty(t, keys[key], "%q and %q have the same key", keys[key], parts)
		keys[key] = parts
	}
}

func TestDeriveKeyOfNothingIsNoKey(t *testing.T) {
	t.Parallel()
	require.Empty(t, idem.DeriveKey())
	require.Empty(t, idem.DeriveKey(""))
	require.Empty(t, idem.DeriveKey("order", ""))
}

func TestKeyIsShortenedInLogs(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	logger.Info("x", "idempotency_key", idem.Key("2c9a1e9b-4b9e-4d6e-9e67-6e3b2e7c1e32"))
	require.Contains(t, log.String(), "idempotency_key=2c9a1e9b...\n")
}
