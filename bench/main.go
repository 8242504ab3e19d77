// Command bench measures what the guarantees of pgstore cost, beside a
// transaction without them, and prints tables of it in Markdown. The figures of
// one run are in docs/performance.md.
//
// It starts PostgreSQL servers of its own, which it stops and removes. It needs
// PostgreSQL's programs, and a C compiler for the regime that is bound by
// commits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// plan is what to measure, and how thoroughly.
type plan struct {
	regimes []string
	work    *regexp.Regexp // what kinds of work
	workers []int
	rounds  int
	round   time.Duration // of each kind of work
	records int           // that are there before anything is measured
	wal     bool
	growth  int // records of the largest table, 0 for none
	settle  int // operations that a table is to settle within, 0 for none
	cleanup int // records to clean up while others work, 0 for none
}

func run(ctx context.Context, args []string, out io.Writer) error {
	p, err := parse(args, out)
	if err != nil {
		return err
	}
	for _, name := range p.regimes {
		if err := p.compare(ctx, regimes[name], out); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if p.wal {
		if err := p.compareWAL(ctx, out); err != nil {
			return fmt.Errorf("WAL: %w", err)
		}
	}
	if p.growth > 0 {
		if err := p.compareSizes(ctx, out); err != nil {
			return fmt.Errorf("growth: %w", err)
		}
	}
	if p.settle > 0 {
		if err := p.settleDown(ctx, out); err != nil {
			return fmt.Errorf("settling: %w", err)
		}
	}
	if p.cleanup > 0 {
		if err := p.cleanUp(ctx, out); err != nil {
			return fmt.Errorf("cleanup: %w", err)
		}
	}
	return nil
}

func parse(args []string, out io.Writer) (plan, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	names := flags.String("regimes", "commit,roundtrip,cpu", "of commit, roundtrip, cpu and unprepared; none for no comparison")
	workers := flags.String("workers", "1,8,32,64", "how many clients work at once")
	work := flags.String("work", "", "only the kinds of work that this regular expression matches")
	p := plan{}
	flags.IntVar(&p.rounds, "rounds", 5, "rounds, whose medians are printed")
	flags.DurationVar(&p.round, "round", 2*time.Second, "how long each kind of work lasts in a round")
	flags.IntVar(&p.records, "records", 50_000, "records that are there before anything is measured")
	flags.BoolVar(&p.wal, "wal", true, "measure the WAL of an operation")
	flags.IntVar(&p.growth, "growth", 0, "compare tables of 10,000 records, a tenth of so many, and so many")
	flags.IntVar(&p.settle, "settle", 0, "measure the size of a table in which so many operations come and go")
	flags.IntVar(&p.cleanup, "cleanup", 0, "measure work beside the cleanup of so many records among three times as many")
	if err := flags.Parse(args); err != nil {
		return plan{}, err
	}
	var err error
	if p.work, err = regexp.Compile(*work); err != nil {
		return plan{}, err
	}
	if *names != "none" {
		p.regimes = strings.Split(*names, ",")
	}
	for _, name := range p.regimes {
		if regimes[name].title == "" {
			return plan{}, fmt.Errorf("no such regime: %q", name)
		}
	}
	for n := range strings.SplitSeq(*workers, ",") {
		i, err := strconv.Atoi(n)
		if err != nil || i < 1 {
			return plan{}, fmt.Errorf("not a number of workers: %q", n)
		}
		p.workers = append(p.workers, i)
	}
	if p.rounds < 1 || p.round <= 0 || p.records < 2 {
		return plan{}, errors.New("rounds, their length and the number of records must be positive")
	}
	return p, nil
}
