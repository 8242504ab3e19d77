package pgstore

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// submit sends b on conn. The arguments go as types that pgx encodes without a
// search for a way to do it, which else takes longer than all the rest.
func submit(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		for i, argument := range q.Arguments {
			switch v := argument.(type) {
			case uuid.UUID:
				q.Arguments[i] = pgtype.UUID{Bytes: v, Valid: true}
			case time.Duration:
				q.Arguments[i] = pgtype.Interval{Microseconds: v.Microseconds(), Valid: true}
			}
		}
	}
	return conn.SendBatch(ctx, b)
}
