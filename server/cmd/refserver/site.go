package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/internal/accesslog"
	"github.com/idemhttp/idem/server/internal/probe"
	"github.com/idemhttp/idem/server/refserver"
	"github.com/idemhttp/idem/server/sidecar"
)

// site is what the program serves: its own API, or a service behind it.
type site struct {
	http.Handler

	probes      http.Handler // GET /healthz and /readyz
	middlewares []*server.Middleware
	setReady    func(bool)
	close       func() // ends what requests wait for without need
}

// drain waits until every answer has been recorded.
func (s site) drain(ctx context.Context) error {
	var errs []error
	for _, m := range s.middlewares {
		errs = append(errs, m.Drain(ctx))
	}
	return errors.Join(errs...)
}

// newSite returns the site on b. Its middlewares tell observe what becomes of
// requests, if that is not nil.
func newSite(o options, b backend, observe func(context.Context, server.Event), logger *slog.Logger) (site, error) {
	if o.upstream != nil {
		return newSidecar(o, b, observe, logger)
	}
	return newAPI(o, b, observe, logger)
}

func newAPI(o options, b backend, observe func(context.Context, server.Event), logger *slog.Logger) (site, error) {
	config := refserver.Config{
		Payments: o.middleware(b.payments),
		Ledger:   b.ledger,
		Provider: b.provider,
		Health:   b.health,
		Chances:  o.chances,
		Logger:   logger,
	}
	middlewares := []*server.Middleware{config.Payments}
	if b.orders != nil {
		config.Orders = o.middleware(b.orders)
		middlewares = append(middlewares, config.Orders)
	}
	for _, m := range middlewares {
		m.Observe = observe
	}
	api, err := refserver.New(config)
	if err != nil {
		return site{}, err
	}
	return site{
		Handler: api, probes: api, middlewares: middlewares, setReady: api.SetReady,
		close: func() { api.Close() },
	}, nil
}

func newSidecar(o options, b backend, observe func(context.Context, server.Event), logger *slog.Logger) (site, error) {
	m := o.middleware(b.payments)
	m.Optional, m.Methods, m.MaxBody, m.Logger = !o.requireKey, o.methods, o.maxBody, logger
	m.Account = sidecar.AccountFromField(o.accountHeader)
	if o.accountClaim != "" {
		logger.Warn("accounts are taken from tokens that are NOT verified here; whoever stands in front must have done so", "claim", o.accountClaim)
		m.Account = sidecar.AccountFromUnverifiedToken(o.accountClaim)
	}
	m.Observe = func(ctx context.Context, e server.Event) {
		accesslog.Observe(ctx, e)
		if observe != nil {
			observe(ctx, e)
		}
	}
	proxy, err := sidecar.New(sidecar.Config{Upstream: o.upstream, Middleware: m, Logger: logger})
	if err != nil {
		return site{}, err
	}
	ready := &probe.Readiness{Health: b.health, Logger: logger}
	probes := http.NewServeMux()
	probes.HandleFunc("GET /healthz", probe.Alive)
	probes.Handle("GET /readyz", ready)
	return site{
		Handler: accesslog.Handler(proxy, logger), probes: probes, middlewares: []*server.Middleware{m}, setReady: ready.Set,
		close: func() {},
	}, nil
}
