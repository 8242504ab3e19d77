package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// finished is how many completed records there are before anything is measured.
const finished = 10_000

// compare measures all kinds of work in turn, round by round, and prints how
// they compare.
func (p plan) compare(ctx context.Context, r regime, out io.Writer) error {
	dsn, stop, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintf(out, "\n### %s\n\n| workers | work | operations/s | p50 | p99 | quotient | of | target |\n", r.title)
	fmt.Fprintln(out, "| ---: | --- | ---: | ---: | ---: | ---: | --- | --- |")
	prepared := false
	var filled lab
	for _, workers := range p.workers {
		l, err := newLab(ctx, dsn, workers)
		if err != nil {
			return err
		}
		if !prepared {
			err = l.fill(ctx, finished)
			filled, prepared = *l, true
		}
		l.finished, l.lately = filled.finished, filled.lately
		if err == nil {
			err = p.compareAt(ctx, l, r, workers, out)
		}
		l.pool.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (p plan) compareAt(ctx context.Context, l *lab, r regime, workers int, out io.Writer) error {
	kinds := slices.DeleteFunc(l.kinds(), func(k kind) bool { return !p.work.MatchString(k.name) })
	samples := make(map[string][]sample)
	for round := range p.rounds + 1 {
		for i := range kinds {
			k := kinds[(round+i)%len(kinds)]
			d := p.round
			if round == 0 { // warms up
				d = min(d, 500*time.Millisecond)
			}
			s, err := measure(ctx, workers, d, k.do)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			if round > 0 {
				samples[k.name] = append(samples[k.name], s)
			}
		}
	}
	for _, k := range kinds {
		s, q := summary(samples[k.name]), quotient(samples[k.name], samples[k.base])
		fmt.Fprintf(out, "| %d | %s | %.0f | %s | %s | %.2f | %s | %s |\n",
			workers, k.name, s.rate, ms(s.p50), ms(s.p99), q, k.base, r.verdict(k.name, workers, q))
	}
	return nil
}

// summary is the median of each figure.
func summary(samples []sample) sample {
	var rates []float64
	var p50s, p99s []time.Duration
	for _, s := range samples {
		rates, p50s, p99s = append(rates, s.rate), append(p50s, s.p50), append(p99s, s.p99)
	}
	return sample{rate: median(rates), p50: median(p50s), p99: median(p99s)}
}

// quotient is the median of what each round's throughput is of the base's in
// the same round.
func quotient(samples, base []sample) float64 {
	var quotients []float64
	for i := range base {
		quotients = append(quotients, samples[i].rate/base[i].rate)
	}
	return median(quotients)
}

func (r regime) verdict(work string, workers int, quotient float64) string {
	for _, t := range r.targets {
		if t.work != work || t.workers != workers {
			continue
		}
		if quotient < t.atLeast {
			return fmt.Sprintf("**missed**: %.2f", t.atLeast)
		}
		return fmt.Sprintf("%.2f", t.atLeast)
	}
	return ""
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond)) }
