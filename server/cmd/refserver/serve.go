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

	"github.com/idemhttp/idem/server/refserver"
)

// serve serves until ctx is done, stops in order and closes the backend.
func serve(ctx context.Context, o options, b backend, stdout io.Writer, logger *slog.Logger) error {
	defer b.close()
	api, err := refserver.New(o.config(b, logger))
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.addr)
	if err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	web := &http.Server{
		Handler:           api,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelError),
	}
	stopCleanup := startCleanup(ctx, b.cleanup)
	defer stopCleanup()

	failed := make(chan error, 1)
	go func() { failed <- web.Serve(listener) }()
	fmt.Fprintf(stdout, "refserver listens on http://%s\n", listener.Addr())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	return stop(context.WithoutCancel(ctx), o, api, web)
}

// stop stops taking requests, then waits for those that are running and for
// the answers that are still to be recorded.
func stop(ctx context.Context, o options, api *refserver.Server, web *http.Server) error {
	api.SetReady(false)
	<-time.After(o.unreadyFor)
	ctx, cancel := context.WithTimeoutCause(ctx, o.grace, fmt.Errorf("the grace period of %v is over", o.grace))
	defer cancel()
	shutdown := web.Shutdown(ctx)
	if shutdown != nil {
		shutdown = fmt.Errorf("requests were still running: %w", context.Cause(ctx))
		web.Close()
		api.Close()
	}
	return errors.Join(shutdown, api.Drain(ctx))
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
