package main

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// sample is what a round of one kind of work gave.
type sample struct {
	rate     float64 // operations a second
	p50, p99 time.Duration
	cpu      cpu // of one operation
}

// measure has workers call do for d, each with numbers of its own.
func measure(ctx context.Context, meter cpuMeter, workers int, d time.Duration, do operation) (sample, error) {
	var (
		running sync.WaitGroup
		failed  atomic.Pointer[error]
		took    = make([][]time.Duration, workers)
		before  = meter.read()
		began   = time.Now()
	)
	for i := range workers {
		running.Go(func() {
			for time.Since(began) < d && failed.Load() == nil {
				start := time.Now()
				if err := do(ctx); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	running.Wait()
	elapsed, used := time.Since(began), meter.read().since(before)
	if err := failed.Load(); err != nil {
		return sample{}, *err
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	n := time.Duration(max(1, len(all)))
	return sample{
		rate: float64(len(all)) / elapsed.Seconds(),
		p50:  quantile(all, 0.5), p99: quantile(all, 0.99),
		cpu: cpu{used.client / n, used.server / n},
	}, nil
}

// quantile returns the value below which the share q of sorted values lies.
func quantile[T any](sorted []T, q float64) (v T) {
	if len(sorted) == 0 {
		return v
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func median[T cmp.Ordered](values []T) T { return quantile(slices.Sorted(slices.Values(values)), 0.5) }
