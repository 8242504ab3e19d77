package main

import (
	"context"
	"fmt"
	"io"

	"github.com/idemhttp/idem/server/pgstore"
)

// walAllowance is what an operation may write beyond the bare transaction and
// the answer that it stores.
const walAllowance = 400

// walRuns is how many operations are measured.
const walRuns = 3000

// compareWAL prints what an operation of each kind writes.
func (p plan) compareWAL(ctx context.Context, out io.Writer) error {
	dsn, stop, err := startNearby(ctx)
	if err != nil {
		return err
	}
	defer stop()
	l, err := newLab(ctx, dsn, nil, pgstore.DefaultTable, 1)
	if err != nil {
		return err
	}
	defer l.pool.Close()
	if err := l.fill(ctx, p.records); err != nil {
		return err
	}
	stored, err := l.sizeOfAnswer(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n### WAL of an operation whose answer takes %.0f B\n\n", stored)
	fmt.Fprintln(out, "| work | WAL | beyond bare and answer | target |\n| --- | ---: | ---: | --- |")
	var base float64
	for _, k := range l.kinds()[:3] {
		written, err := l.walOf(ctx, k.do)
		if err != nil {
			return err
		}
		if k.name == bare {
			base = written
			fmt.Fprintf(out, "| %s | %.0f B | | |\n", k.name, written)
			continue
		}
		beyond, verdict := written-base-stored, fmt.Sprintf("%d B", walAllowance)
		if beyond > walAllowance {
			verdict = "**missed**: " + verdict
		}
		fmt.Fprintf(out, "| %s | %.0f B | %.0f B | %s |\n", k.name, written, beyond, verdict)
	}
	return nil
}

// walOf returns how many bytes of WAL an operation writes, pages that are
// written whole after a checkpoint left out: there is none while this runs.
func (l *lab) walOf(ctx context.Context, do operation) (float64, error) {
	var before, written float64
	if err := l.pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8").Scan(&before); err != nil {
		return 0, err
	}
	for range walRuns {
		if err := do(ctx); err != nil {
			return 0, err
		}
	}
	err := l.pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 - $1", before).Scan(&written)
	return written / walRuns, err
}

// sizeOfAnswer returns how much of a record is the answer.
func (l *lab) sizeOfAnswer(ctx context.Context) (size float64, err error) {
	err = l.pool.QueryRow(ctx, `
SELECT pg_column_size(response_status) + pg_column_size(response_headers) + pg_column_size(response_body) + pg_column_size(response_flags)
FROM `+l.table()+` WHERE account_id = $1 AND idempotency_key = $2`, account, l.lately[0]).Scan(&size)
	return size, err
}
