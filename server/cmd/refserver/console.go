package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof" // what it registers by itself is not served

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/admin"
	"github.com/idemhttp/idem/server/metrics"
)

// console is what operators get to see.
type console struct {
	metrics *metrics.Collector
	page    *admin.Page
}

// newConsole returns a console that watches the store of b and its cleanup.
func newConsole(b backend, logger *slog.Logger) *console {
	stater, _ := b.payments.(server.Stater)
	c := &console{
		metrics: metrics.New(metrics.Config{Store: stater, Logger: logger}),
		page:    &admin.Page{Store: b.payments, Logger: logger},
	}
	if b.observeCleanup != nil {
		b.observeCleanup(c.metrics.ObserveCleanup)
	}
	return c
}

func (c *console) observe(ctx context.Context, e server.Event) {
	c.metrics.Observe(ctx, e)
	c.page.Observe(ctx, e)
}

// handler serves the console of s.
func (c *console) handler(s site) http.Handler {
	c.metrics.Watch(s.middlewares...)
	c.page.Middlewares = s.middlewares
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.metrics, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}))
	mux.Handle("/debug/idempotency", c.page)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /healthz", s.probes)
	mux.Handle("GET /readyz", s.probes)
	return mux
}
