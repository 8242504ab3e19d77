package bounded_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/bounded"
)

func TestAllIsReadUpToTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 3000
	for _, length := range []int{0, 1, 511, 512, 513, limit - 1, limit} {
		body := strings.Repeat("x", length)
		for _, size := range []int64{-1, 0, 1, int64(length), limit + 1, math.MaxInt64} {
			for _, r := range []io.Reader{strings.NewReader(body), iotest.OneByteReader(strings.NewReader(body)), iotest.DataErrReader(strings.NewReader(body))} {
				got, err := bounded.Read(nil, r, size, limit)
				require.NoError(t, err)
				require.Equal(t, body, string(got))
			}
		}
	}
}

func TestMoreThanTheLimitIsAnError(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{-1, 5, 6, math.MaxInt64} {
		got, err := bounded.Read(nil, strings.NewReader("123456"), size, 5)
		require.Equal(t, &bounded.TooLargeError{Limit: 5}, err)
		require.Empty(t, got)
	}
	_, err := bounded.Read([]byte("123"), strings.NewReader("456"), -1, 5)
	require.EqualError(t, err, "it is larger than 5 bytes")
	_, err = bounded.Read(nil, strings.NewReader("1"), -1, 0)
	require.EqualError(t, err, "it is larger than 0 bytes")
}

func TestWithoutALimitAllIsRead(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("x"), 5<<20)
	for _, size := range []int64{-1, int64(len(body)), math.MaxInt64} {
		got, err := bounded.Read(nil, bytes.NewReader(body), size, math.MaxInt64)
		require.NoError(t, err)
		require.Equal(t, body, got)
	}
}

func TestWhatIsThereIsKept(t *testing.T) {
	t.Parallel()
	space := make([]byte, 0, 8)
	got, err := bounded.Read(append(space, "ab"...), strings.NewReader("cd"), -1, 100)
	require.NoError(t, err)
	require.Equal(t, "abcd", string(got))
	require.Same(t, &space[:1][0], &got[0], "the room that was given is used")
	require.Equal(t, 4, cap(got), "an append does not reach what was given")
}

func TestAnErrorComesWithWhatWasRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	got, err := bounded.Read(nil, io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), -1, 100)
	require.ErrorIs(t, err, broken)
	require.Equal(t, "abc", string(got))
}

// The test is not parallel: what others allocate meanwhile would count.
func TestMemoryIsBounded(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		length, size, limit int64
		most                uint64
	}{
		"of known size":              {mib, mib, mib, mib + 16<<10},
		"of unknown size":            {mib, -1, mib, 1.75 * mib},
		"too large, of unknown size": {3 * mib, -1, mib, 1.75 * mib},
		"small, of a promised size":  {10, math.MaxInt64, 64 * mib, mib + 16<<10},
		"small, of unknown size":     {10, -1, mib, 1 << 10},
		"larger, of unknown size":    {32 * mib, -1, 32 * mib, 96 * mib},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = bounded.Read(nil, io.LimitReader(zeros{}, c.length), c.size, c.limit)
		runtime.ReadMemStats(&after)
		require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, c.most, name)
	}
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

func TestReaderThatNeverGivesAnythingIsGivenUp(t *testing.T) {
	t.Parallel()
	_, err := bounded.Read(nil, idle{}, -1, 10)
	require.ErrorIs(t, err, io.ErrNoProgress)
}
