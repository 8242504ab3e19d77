package metrics

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemhttp/idem/server"
)

var (
	recordsDesc    = desc("store_records", "Records in the store, by status.", "status")
	bytesDesc      = desc("store_bytes", "Size of everything stored, indexes included.")
	oldestDesc     = desc("store_oldest_processing_seconds", "Age of the oldest record that is still processing.")
	lagDesc        = desc("store_cleanup_lag_seconds", "For how long the oldest expired record has been so.")
	askedDesc      = desc("store_scrape_duration_seconds", "How long it took to ask the store for these metrics.")
	scrapeErrsDesc = desc("store_scrape_errors_total", "How often the store could not be asked for these metrics.")
)

// storeStats collects what a store holds. Of a store that cannot be asked it
// says nothing but that.
type storeStats struct {
	store    server.Stater
	timeout  time.Duration
	interval time.Duration
	logger   *slog.Logger

	turn   chan struct{} // holds a token while somebody asks or reads what follows
	asked  time.Time     // zero: never
	took   time.Duration
	stats  server.Stats
	err    error
	failed int // questions
}

func newStoreStats(c Config) *storeStats {
	return &storeStats{
		store:    c.Store,
		timeout:  cmp.Or(c.StoreTimeout, 5*time.Second),
		interval: cmp.Or(c.StoreInterval, time.Minute),
		logger:   cmp.Or(c.Logger, slog.Default()),
		turn:     make(chan struct{}, 1),
	}
}

// Describe implements [prometheus.Collector].
func (s *storeStats) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{recordsDesc, bytesDesc, oldestDesc, lagDesc, askedDesc, scrapeErrsDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *storeStats) Collect(ch chan<- prometheus.Metric) {
	s.turn <- struct{}{} // one question serves all who scrape meanwhile
	defer func() { <-s.turn }()
	if s.asked.IsZero() || time.Since(s.asked) >= s.interval {
		s.ask()
	}
	ch <- prometheus.MustNewConstMetric(scrapeErrsDesc, prometheus.CounterValue, float64(s.failed))
	gauge(ch, askedDesc, s.took.Seconds())
	if s.err != nil {
		return
	}
	gauge(ch, recordsDesc, float64(s.stats.Processing), server.Processing.String())
	gauge(ch, recordsDesc, float64(s.stats.Completed), server.Completed.String())
	gauge(ch, recordsDesc, float64(s.stats.Failed), server.Failed.String())
	gauge(ch, bytesDesc, float64(s.stats.Bytes))
	gauge(ch, oldestDesc, s.stats.OldestProcessing.Seconds())
	gauge(ch, lagDesc, s.stats.CleanupLag.Seconds())
}

func (s *storeStats) ask() {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	start := time.Now()
	s.stats, s.err = s.store.Stats(ctx)
	s.asked = time.Now()
	s.took = s.asked.Sub(start)
	if s.err != nil && !errors.Is(s.err, errors.ErrUnsupported) {
		s.failed++
		s.logger.ErrorContext(ctx, "the idempotency store could not be asked for its metrics", "error", s.err)
	}
}
