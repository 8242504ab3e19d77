package pgstore

import (
	"context"
	"time"

	"github.com/idemhttp/idem/server"
)

// counted is how many records Stats reads at most, or about.
const counted = 1_000_000

// Stats implements [server.Stater]. It counts up to a million records. Of a table
// that has more, by the statistics of the database, it reads about as many,
// another choice each time, and concludes from them how many there are; of a few
// that are processing it may then see none. It never reads answers.
func (s *Store) Stats(ctx context.Context) (server.Stats, error) {
	stats, records, err := s.size(ctx)
	if err != nil {
		return server.Stats{}, err
	}
	statement, arguments, share := selectStats, []any(nil), 1.0
	if records > counted {
		share = counted / records
		statement, arguments = selectSampledStats, []any{float32(100 * share)}
	}
	var oldest int64
	err = s.flight(ctx, rollback, func(b *batch) {
		b.add(s.sql(statement), arguments...).scan(&stats.Processing, &stats.Completed, &stats.Failed, &oldest)
	})
	for _, n := range []*int64{&stats.Processing, &stats.Completed, &stats.Failed} {
		*n = int64(float64(*n) / share)
	}
	stats.OldestProcessing = time.Duration(oldest) * time.Microsecond
	return stats, err
}

// size returns what is known without reading records, and about how many there
// are.
func (s *Store) size(ctx context.Context) (stats server.Stats, records float64, err error) {
	var now time.Time
	var lag int64
	err = s.flight(ctx, rollback, func(b *batch) {
		b.add(s.sql(selectSize)).scan(&stats.Bytes, &records)
		b.add(s.sql(selectClock), time.Time{}).scan(&now, &lag)
	})
	stats.CleanupLag = time.Duration(lag) * time.Microsecond
	return stats, records, err
}
