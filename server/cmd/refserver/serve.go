package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/idemhttp/idem/server"
)

// serve serves until ctx is done, stops in order and closes the backend. What
// operators see is there until the end.
func serve(ctx context.Context, o options, b backend, stdout io.Writer, logger *slog.Logger) error {
	defer b.close()
	var c *console
	var observe func(context.Context, server.Event)
	if o.adminAddr != "" {
		c = newConsole(b, logger)
		observe = c.observe
	}
	s, err := newSite(o, b, observe, logger)
	if err != nil {
		return err
	}
	web, err := listen(ctx, "-addr", o.addr, s, logger)
	if err != nil {
		return err
	}
	defer web.Close()
	greeting, failed := fmt.Sprintf("refserver listens on http://%s\n", web.Addr), make(chan error, 2)
	if c != nil {
		operators, err := listen(ctx, "-admin-addr", o.adminAddr, c.handler(s), logger)
		if err != nil {
			return err
		}
		defer operators.Close()
		greeting += fmt.Sprintf("operators: http://%s/debug/idempotency\n", operators.Addr)
		go func() { failed <- operators.serve() }()
	}
	stopCleanup := startCleanup(ctx, b.cleanup)
	defer stopCleanup()

	go func() { failed <- web.serve() }()
	fmt.Fprint(stdout, greeting)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	return stop(context.WithoutCancel(ctx), o, s, web)
}

// listening is an HTTP server and its listener.
type listening struct {
	http.Server

	listener net.Listener
}

// listen opens the address that a flag gives.
func listen(ctx context.Context, flag, addr string, h http.Handler, logger *slog.Logger) (*listening, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return &listening{listener: listener, Server: http.Server{
		Addr:              listener.Addr().String(),
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelError),
	}}, nil
}

func (l *listening) serve() error { return l.Serve(l.listener) }

// stop stops taking requests, then waits for those that are running and for
// the answers that are still to be recorded.
func stop(ctx context.Context, o options, s site, web *listening) error {
	s.setReady(false)
	<-time.After(o.unreadyFor)
	ctx, cancel := context.WithTimeoutCause(ctx, o.grace, fmt.Errorf("the grace period of %v is over", o.grace))
	defer cancel()
	shutdown := web.Shutdown(ctx)
	if shutdown != nil {
		shutdown = fmt.Errorf("requests were still running: %w", context.Cause(ctx))
		web.Close()
		s.close()
	}
	return errors.Join(shutdown, s.drain(ctx))
}

// startCleanup deletes expired records until the function that it returns is
// called, which waits for the end.
func startCleanup(ctx context.Context, cleanup func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = cleanup(ctx) }) // ends with ctx only
	return func() {
		cancel()
		running.Wait()
	}
}
