// Package metrics tells Prometheus what the idempotency middleware does:
//
//	m := metrics.New(metrics.Config{Store: store})
//	prometheus.MustRegister(m)
//	guard := &server.Middleware{Store: store, Account: account, Observe: m.Observe}
//	m.Watch(guard)
//	store.ObserveCleanup = m.ObserveCleanup
//
// Nothing is registered by itself, and nothing is global. The metrics, what
// they mean and what to do when an alert fires is in docs/operations.md;
// alerts.yml and dashboard.json beside this package are rules for Prometheus
// and a dashboard for Grafana.
//
// No label has a value that a client chooses. The method is one of those that
// the middleware is configured with, the route is the pattern of the
// [net/http.ServeMux] outside of it, without the method, and all other labels
// have a fixed set of values.
//
// Histograms have classic buckets, which every Prometheus understands, and
// native ones beside them, which are finer and cost one series. A Prometheus
// that is told to scrape native histograms gets these.
package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemhttp/idem/server"
)

// Config configures a [Collector]. The zero value is one that does not ask a
// store.
type Config struct {
	// Store is asked for what it holds when metrics are scraped. If it is nil,
	// or answers with [errors.ErrUnsupported], these metrics are left out.
	// Where many processes share a large store, let one of them ask: all of
	// them would be told the same.
	Store server.Stater
	// StoreTimeout bounds each question, and with it the scrape. Zero means
	// 5 s.
	StoreTimeout time.Duration
	// StoreInterval is for how long what the store said is taken for true,
	// failures included: it may have to count all its records. Zero means a
	// minute; a negative one asks at every scrape.
	StoreInterval time.Duration
	// Logger gets the failures of the store. Nil means [slog.Default].
	Logger *slog.Logger
}

// Collector is a [prometheus.Collector] of what it is told through Observe and
// ObserveCleanup and of what it asks for when it is scraped. [New] makes one.
// Any number of middlewares may share it. It is safe for concurrent use.
//
// Its metrics have no label for the program: Prometheus adds the job. Two
// Collectors in one registry, for two stores, need a label each, see
// [prometheus.WrapRegistererWith].
type Collector struct {
	requests   *prometheus.CounterVec
	conflicts  *prometheus.CounterVec
	waited     *prometheus.HistogramVec
	handled    *prometheus.HistogramVec
	restarts   *prometheus.CounterVec
	extensions *prometheus.CounterVec
	leasesLost *prometheus.CounterVec
	takeovers  *prometheus.CounterVec
	late       *prometheus.CounterVec

	deleted       prometheus.Counter
	batches       prometheus.Histogram
	cleanupErrors prometheus.Counter

	load  load
	parts []prometheus.Collector // everything that is collected

	mu     sync.RWMutex
	routes map[routeID]*route
}

// New returns a Collector that has to be registered.
func New(c Config) *Collector {
	m := &Collector{
		requests:   counters("requests_total", "Requests that the middleware governs, by what became of them.", "result"),
		conflicts:  counters("conflicts_total", "Requests answered with a conflict, by its reason.", "reason"),
		waited:     histograms("wait_duration_seconds", "How long requests waited for an attempt in flight. Those that did not wait are left out."),
		handled:    histograms("handler_duration_seconds", "How long the handler ran for a request that executed it."),
		restarts:   counters("handler_restarts_total", "Runs of the handler beyond the first within a request, because nothing of the one before was durable."),
		extensions: counters("lease_extensions_total", "Extensions of leases while the handler ran."),
		leasesLost: counters("leases_lost_total", "Leases that ended while the handler ran."),
		takeovers:  counters("takeovers_total", "Attempts that took over from one that was lost."),
		late:       counters("late_completions_total", "Answers that could not be recorded when they were sent, by what became of them.", "result"),

		deleted:       prometheus.NewCounter(opts("cleanup_deleted_total", "Expired records that were deleted.")),
		batches:       prometheus.NewHistogram(histogramOpts("cleanup_duration_seconds", "How long the deletion of a batch of expired records took.")),
		cleanupErrors: prometheus.NewCounter(opts("cleanup_errors_total", "Batches of expired records that could not be deleted.")),

		routes: make(map[routeID]*route),
	}
	m.parts = []prometheus.Collector{
		m.requests, m.conflicts, m.waited, m.handled, m.restarts, m.extensions, m.leasesLost, m.takeovers, m.late,
		m.deleted, m.batches, m.cleanupErrors, &m.load,
	}
	if c.Store != nil {
		m.parts = append(m.parts, newStoreStats(c))
	}
	return m
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, part := range c.parts {
		part.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, part := range c.parts {
		part.Collect(ch)
	}
}

// ObserveCleanup counts what became of a batch of expired records. It is made
// for [server.Cleanup.Observe] and for the ObserveCleanup of a pgstore.
func (c *Collector) ObserveCleanup(ctx context.Context, e server.CleanupEvent) {
	c.deleted.Add(float64(e.Deleted))
	c.batches.Observe(e.Took.Seconds())
	if e.Err != nil && ctx.Err() == nil { // unless the process stops
		c.cleanupErrors.Inc()
	}
}

const namespace = "idem"

func opts(name, help string) prometheus.CounterOpts {
	return prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}
}

func histogramOpts(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help,
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		// A tenth between neighbours, and bounded whatever is observed.
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

// counters returns counters by method, route and perhaps one label more.
func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(opts(name, help), append([]string{"method", "route"}, labels...))
}

func histograms(name, help string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(histogramOpts(name, help), []string{"method", "route"})
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}
