package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server/pgstore"
)

// small is the size of the table that larger ones are compared with.
const small = 10_000

// crowd is how many workers there are where nothing is said about it.
const crowd = 8

// compareSizes prints how the same work compares on tables of different sizes.
func (p plan) compareSizes(ctx context.Context, out io.Writer) error {
	// The larger a server's tables, the more memory it has: here about half of
	// what the largest takes.
	buffers := fmt.Sprintf(" -c shared_buffers=%dMB", max(1024, p.growth*600>>20))
	dsn, stop, err := launch(pgtest.Options{Mode: pgtest.CrashSafe, Settings: unsynced + buffers})
	if err != nil {
		return err
	}
	defer stop()
	first, err := newLab(ctx, dsn, nil, tableOf(small), crowd)
	if err != nil {
		return err
	}
	defer first.pool.Close()
	if _, err := first.pool.Exec(ctx, schema); err != nil {
		return err
	}
	var kinds []kind
	var targets []target
	sizes := slices.Compact([]int{small, max(small, p.growth/10), max(small, p.growth)})
	for _, size := range slices.Backward(sizes) { // what is filled later is more likely in memory
		l := labOn(first.pool, tableOf(size))
		if err := l.fillTable(ctx, size); err != nil {
			return err
		}
		for _, k := range l.kinds() {
			if k.name != transactional && k.name != lease && k.name != replay {
				continue
			}
			name, base := nameAt(k.name, size), nameAt(k.name, small)
			kinds, targets = append(kinds, kind{name, base, k.do}), append(targets, target{name, crowd, 0.85})
		}
	}
	printHead(out, "Growth: tables of several sizes beside one another")
	return p.compareKinds(ctx, first.pool, kinds, crowd, targets, out)
}

// fillTable makes a table with n records, and reads those that are to be
// replayed.
func (l *lab) fillTable(ctx context.Context, n int) error {
	if err := l.leases.Migrate(ctx); err != nil {
		return err
	}
	if err := l.fillRecords(ctx, n); err != nil {
		return err
	}
	var read int
	return l.pool.QueryRow(ctx, "SELECT count(response_body) FROM "+l.table()+" WHERE account_id = $1 AND idempotency_key = ANY($2)",
		account, l.finished).Scan(&read)
}

func tableOf(size int) string { return fmt.Sprintf("records_%d", size) }

func nameAt(work string, size int) string { return fmt.Sprintf("%s among %d", work, size) }

// settledTTL is for how long records live while the table settles. The lease is
// to it what the default lease is to the default TTL, or nearly so.
const (
	settledTTL   = time.Minute
	settledLease = settledTTL / 200
)

// settleDown has operations come and go, and prints how large the table is
// beside a new one with the most records that were live at once: files do not
// become smaller when there is less to do.
func (p plan) settleDown(ctx context.Context, out io.Writer) error {
	// Records live for a minute instead of days, so the table is to be vacuumed
	// more than once a minute too.
	dsn, stop, err := launch(pgtest.Options{Mode: pgtest.CrashSafe, Settings: unsynced + " -c autovacuum_naptime=5s"})
	if err != nil {
		return err
	}
	defer stop()
	l, err := newLab(ctx, dsn, nil, pgstore.DefaultTable, 2*crowd)
	if err != nil {
		return err
	}
	defer l.pool.Close()
	stopCleaner := l.clean(ctx, 5*time.Second)
	defer stopCleaner()
	fmt.Fprintf(out, "\n### Settling: %d operations in lease mode, whose records live for %v, with the cleaner on\n\n", p.settle, settledTTL)
	fmt.Fprintln(out, "| operations | operations/s | claims p99 | records | size | of the most that was live | target | updates in place |")
	fmt.Fprintln(out, "| ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |")
	const steps = 5
	var peak int64
	for step := 1; step <= steps; step++ {
		s, err := l.comeAndGo(ctx, p.settle/steps)
		if err != nil {
			return err
		}
		if peak, err = l.printSize(ctx, out, step*p.settle/steps, s, peak); err != nil {
			return err
		}
	}
	return nil
}

// comeAndGo does n operations, and samples their claims.
func (l *lab) comeAndGo(ctx context.Context, n int) (sample, error) {
	var (
		running sync.WaitGroup
		errs    = make([]error, 2*crowd)
		took    = make([][]time.Duration, 2*crowd)
		began   = time.Now()
	)
	for w := range took {
		running.Go(func() {
			for i := w; i < n && errs[w] == nil; i += len(took) {
				var d time.Duration
				d, errs[w] = l.comeAndGoOnce(ctx)
				took[w] = append(took[w], d)
			}
		})
	}
	running.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	s := sample{rate: float64(n) / time.Since(began).Seconds(), p50: quantile(all, 0.5), p99: quantile(all, 0.99)}
	return s, firstOf(errs)
}

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// comeAndGoOnce does an operation and returns how long its claim took.
func (l *lab) comeAndGoOnce(ctx context.Context) (time.Duration, error) {
	req := request(uuid.NewString())
	req.Lease, req.TTL = settledLease, settledTTL
	start := time.Now()
	claim, err := l.leases.Claim(ctx, req)
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	_, err = claim.Lease.Complete(ctx, answer, settledTTL)
	return took, err
}

// fresh makes a new table of the records that are live.
const fresh = `
DROP TABLE IF EXISTS fresh;
CREATE TABLE fresh (LIKE idem_operations INCLUDING INDEXES);
INSERT INTO fresh SELECT * FROM idem_operations WHERE expires_at > now()`

// printSize prints a line and returns the size of the most that was live, which
// was peak before.
func (l *lab) printSize(ctx context.Context, out io.Writer, operations int, s sample, peak int64) (int64, error) {
	if _, err := l.pool.Exec(ctx, fresh); err != nil {
		return peak, err
	}
	var records, size, live int64
	var inPlace float64
	err := l.pool.QueryRow(ctx, `
SELECT (SELECT count(*) FROM fresh), pg_total_relation_size('idem_operations'), pg_total_relation_size('fresh'),
       coalesce(n_tup_hot_upd::float8 / nullif(n_tup_upd, 0), 0)
FROM pg_stat_user_tables WHERE relname = 'idem_operations'`).Scan(&records, &size, &live, &inPlace)
	if err != nil {
		return peak, err
	}
	peak = max(peak, live)
	quotient, verdict := float64(size)/float64(peak), "at most 3"
	if quotient > 3 {
		verdict = "**missed**: " + verdict
	}
	fmt.Fprintf(out, "| %d | %.0f | %s | %d | %d MiB | %.2f | %s | %.3f |\n",
		operations, s.rate, ms(s.p99), records, size>>20, quotient, verdict, inPlace)
	return peak, nil
}

// clean runs the cleaner until stop is called, which waits for its end.
func (l *lab) clean(ctx context.Context, interval time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	cleaner := pgstore.New(l.pool)
	cleaner.Table, cleaner.Logger, cleaner.CleanupInterval = l.leases.Table, l.leases.Logger, interval
	var running sync.WaitGroup
	running.Go(func() { _ = cleaner.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// cleanUp prints what becomes of the work on a table while most of what has
// expired in it is deleted.
func (p plan) cleanUp(ctx context.Context, out io.Writer) error {
	dsn, stop, err := startNearby(ctx)
	if err != nil {
		return err
	}
	defer stop()
	l, err := newLab(ctx, dsn, nil, pgstore.DefaultTable, crowd+1)
	if err != nil {
		return err
	}
	defer l.pool.Close()
	if err := l.fill(ctx, 2*p.cleanup); err != nil {
		return err
	}
	if err := l.copyRecord(ctx, l.lately[0], p.cleanup, -10*ttl); err != nil {
		return err
	}
	meter, err := newCPUMeter(ctx, l.pool)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n### Cleanup of %d records among %d, beside %d workers in lease mode\n\n", p.cleanup, 3*p.cleanup, crowd)
	fmt.Fprintln(out, "| cleaner | operations/s | p50 | p99 | deleted/s | left |\n| --- | ---: | ---: | ---: | ---: | ---: |")
	before, err := measure(ctx, meter, crowd, 5*p.round, l.lease)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "| off | %.0f | %s | %s | | %d |\n", before.rate, ms(before.p50), ms(before.p99), p.cleanup)
	return p.measureBesideCleaner(ctx, l, meter, out)
}

func (p plan) measureBesideCleaner(ctx context.Context, l *lab, meter cpuMeter, out io.Writer) error {
	stopCleaner := l.clean(ctx, time.Minute)
	defer stopCleaner()
	began := time.Now()
	for left := p.cleanup; left > 0; {
		s, err := measure(ctx, meter, crowd, 5*p.round, l.lease)
		if err != nil {
			return err
		}
		if err := l.pool.QueryRow(ctx, "SELECT count(*) FROM "+l.table()+" WHERE expires_at <= now()").Scan(&left); err != nil {
			return err
		}
		fmt.Fprintf(out, "| on | %.0f | %s | %s | %.0f | %d |\n",
			s.rate, ms(s.p50), ms(s.p99), float64(p.cleanup-left)/time.Since(began).Seconds(), left)
	}
	return nil
}
