// Command quickstart shows what idem is for: six short stories in which the
// network and the server do their worst, and every payment happens once. It
// brings its own server:
//
//	go run ./examples/quickstart
//
// It exits with 1 if a claim that it makes does not hold.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/refserver"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run serves the reference server on a free port and tells the stories.
func run(ctx context.Context, w io.Writer) error {
	api, err := newAPI()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: api, ReadHeaderTimeout: time.Second}
	go func() { _ = web.Serve(listener) }() // until Close
	defer web.Close()
	s := &stories{timeline: timeline{w: w}, url: "http://" + listener.Addr().String(), counts: api.Counts}
	return s.tell(ctx)
}

func newAPI() (*refserver.Server, error) {
	return refserver.New(refserver.Config{
		Payments: &server.Middleware{Wait: 100 * time.Millisecond}, // short, so that a slow payment meets a 202
		Logger:   slog.New(slog.DiscardHandler),
	})
}
