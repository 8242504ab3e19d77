package idem_test

import (
	"math"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
)

func TestDelayStaysWithinTheCeilingWhateverTheBackOff(t *testing.T) {
	t.Parallel()
	for _, attempt := range []int{0, 1, 2, 33, 34, 35, 62, 63, 64, 1000, math.MaxInt32} {
		for _, base := range []time.Duration{0, 1, 100 * time.Millisecond, time.Hour} {
			for _, ceiling := range []time.Duration{0, 1, 5 * time.Second} {
				for _, randomization := range []float64{0, 0.5, 1} {
					b := backoff.NewExponentialBackOff(
						backoff.WithInitialInterval(base), backoff.WithMaxInterval(ceiling), backoff.WithMultiplier(2),
						backoff.WithRandomizationFactor(randomization), backoff.WithMaxElapsedTime(0))
					d := idem.Delay(min(nth(attempt, b), ceiling), 0)
					require.GreaterOrEqual(t, d, time.Duration(0))
					require.LessOrEqual(t, d, ceiling)
				}
			}
		}
	}
}

// Whatever backoff a caller brings, and whatever a server asks for.
func FuzzDelay(f *testing.F) {
	for _, d := range []int64{0, 1, -1, int64(time.Second), math.MaxInt64, math.MinInt64} {
		f.Add(uint16(0), d, int64(math.MaxInt64), 0.0, int64(0))
		f.Add(uint16(1000), int64(time.Second), d, 0.5, d)
	}
	f.Fuzz(func(t *testing.T, attempt uint16, base, longest int64, randomization float64, hint int64) {
		ceiling := nth(int(attempt), backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(time.Duration(base)), backoff.WithMaxInterval(time.Duration(longest)), backoff.WithMultiplier(2),
			backoff.WithRandomizationFactor(randomization), backoff.WithMaxElapsedTime(0)))
		d := idem.Delay(ceiling, time.Duration(hint))
		require.GreaterOrEqual(t, d, max(0, time.Duration(hint)), "never before the hint, never negative")
		if ceiling >= 0 && hint >= 0 && int64(ceiling) < math.MaxInt64-hint {
			require.LessOrEqual(t, d, ceiling+time.Duration(hint))
		}
	})
}

// nth returns what b has to say after n attempts.
func nth(n int, b backoff.BackOff) (next time.Duration) {
	// After so many doublings every backoff of these tests has reached its end.
	const enough = 2000
	for range min(n, enough) + 1 {
		next = b.NextBackOff()
	}
	return next
}
