package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemhttp/idem/server/pgstore"
)

// compare measures all kinds of work in turn, round by round, and prints how
// they compare.
func (p plan) compare(ctx context.Context, r regime, out io.Writer) error {
	dsn, stop, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	printHead(out, r.title)
	var filled *lab
	for _, workers := range p.workers {
		l, err := newLab(ctx, dsn, r.adjust, pgstore.DefaultTable, workers)
		if err != nil {
			return err
		}
		if filled == nil {
			err = l.fill(ctx, p.records)
			filled = l
		}
		l.finished, l.lately = filled.finished, filled.lately
		if err == nil {
			err = p.compareKinds(ctx, l.pool, l.kinds(), workers, r.targets, out)
		}
		l.pool.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func printHead(out io.Writer, title string) {
	fmt.Fprintf(out, "\n### %s\n\n| workers | work | operations/s | p50 | p99 | CPU client + server | quotient | of | target |\n", title)
	fmt.Fprintln(out, "| ---: | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |")
}

// compareKinds prints a line for each kind of work.
func (p plan) compareKinds(ctx context.Context, pool *pgxpool.Pool, kinds []kind, workers int, targets []target, out io.Writer) error {
	kinds = slices.DeleteFunc(kinds, func(k kind) bool { return !p.work.MatchString(k.name) })
	samples, err := p.sample(ctx, pool, kinds, workers)
	if err != nil {
		return err
	}
	for _, k := range kinds {
		s, q := summary(samples[k.name]), quotient(samples[k.name], samples[k.base])
		fmt.Fprintf(out, "| %d | %s | %.0f | %s | %s | %d + %d µs | %.2f | %s | %s |\n",
			workers, k.name, s.rate, ms(s.p50), ms(s.p99), s.cpu.client.Microseconds(), s.cpu.server.Microseconds(),
			q, k.base, verdict(targets, k.name, workers, q))
	}
	return nil
}

// sample measures each kind of work in each round. Each round begins with
// another kind; one more round warms up.
func (p plan) sample(ctx context.Context, pool *pgxpool.Pool, kinds []kind, workers int) (map[string][]sample, error) {
	meter, err := newCPUMeter(ctx, pool)
	if err != nil {
		return nil, err
	}
	samples := make(map[string][]sample)
	for round := range p.rounds + 1 {
		for i := range kinds {
			k, d := kinds[(round+i)%len(kinds)], p.round
			if round == 0 {
				d = min(d, 500*time.Millisecond)
			}
			s, err := measure(ctx, meter, workers, d, k.do)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k.name, err)
			}
			if round > 0 {
				samples[k.name] = append(samples[k.name], s)
			}
		}
	}
	return samples, nil
}

// summary is the median of each figure.
func summary(samples []sample) sample {
	var rates []float64
	var p50s, p99s, clients, servers []time.Duration
	for _, s := range samples {
		rates, p50s, p99s = append(rates, s.rate), append(p50s, s.p50), append(p99s, s.p99)
		clients, servers = append(clients, s.cpu.client), append(servers, s.cpu.server)
	}
	return sample{
		rate: median(rates), p50: median(p50s), p99: median(p99s),
		cpu: cpu{median(clients), median(servers)},
	}
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

// verdict says what was to be reached, and whether it was.
func verdict(targets []target, work string, workers int, quotient float64) string {
	for _, t := range targets {
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
