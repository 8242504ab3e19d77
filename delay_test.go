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
	// After so many doublings every one of these backoffs has reached its end.
	const enough = 2000
	for _, attempt := range []int{0, 1, 2, 33, 34, 35, 62, 63, 64, 1000, math.MaxInt32} {
		for _, base := range []time.Duration{0, 1, 100 * time.Millisecond, time.Hour} {
			for _, ceiling := range []time.Duration{0, 1, 5 * time.Second} {
				for _, randomization := range []float64{0, 0.5, 1} {
					b := backoff.NewExponentialBackOff(
						backoff.WithInitialInterval(base), backoff.WithMaxInterval(ceiling), backoff.WithMultiplier(2),
						backoff.WithRandomizationFactor(randomization), backoff.WithMaxElapsedTime(0))
					var next time.Duration
					for range min(attempt, enough) + 1 {
						next = b.NextBackOff()
					}
					d := idem.Delay(min(next, ceiling), 0)
					require.GreaterOrEqual(t, d, time.Duration(0))
					require.LessOrEqual(t, d, ceiling)
				}
			}
		}
	}
}

func FuzzDelay(f *testing.F) {
	for _, d := range []int64{0, 1, -1, int64(time.Second), math.MaxInt64, math.MinInt64} {
		f.Add(d, int64(0))
		f.Add(int64(time.Minute), d)
		f.Add(d, d)
	}
	f.Fuzz(func(t *testing.T, ceiling, hint int64) {
		d := idem.Delay(time.Duration(ceiling), time.Duration(hint))
		require.GreaterOrEqual(t, d, max(0, time.Duration(hint)), "never before the hint, never negative")
		if ceiling >= 0 && hint >= 0 && ceiling < math.MaxInt64-hint {
			require.LessOrEqual(t, d, time.Duration(ceiling+hint))
		}
	})
}
