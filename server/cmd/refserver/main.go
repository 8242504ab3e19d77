// Command refserver runs the reference server: orders and payments behind the
// idempotency middleware, with faults to switch on. See package refserver for
// what it serves, and run it with -h for its flags.
//
// With -store=memory everything is forgotten when it ends. With -store=postgres
// keys, orders and payments are kept in a database, and any number of servers
// behind one database behave as one. An order and its answer are one commit
// there; payments are charged at a provider, which is simulated, under a lease.
// Redis is a quick door in front of that with -redis-url. With -store=redis it
// has the keys alone, and orders and payments are in memory: that is for
// -upstream.
//
// It is for tests and demonstrations. The accounts are not authenticated:
// whoever reaches it may be anybody.
//
// With -upstream it is a sidecar: it stands in front of a service of any kind, and
// everything that follows is true of that too. See package sidecar.
//
// With -admin-addr operators get metrics, profiles and a page of their own. The
// command admin looks at the operations in a database and settles those whose
// owner was lost:
//
//	refserver admin stuck -database-url postgres://...
//	refserver admin release -database-url postgres://... -account acme -key k-1
//
// On SIGTERM or an interrupt it says that it is not ready, stops listening,
// lets the running requests finish, records the answers that could not be
// recorded before, stops the cleanup, closes the store and exits with 0. A
// second signal ends it at once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal has its usual effect
	if len(os.Args) > 1 && os.Args[1] == "admin" {
		os.Exit(runAdmin(ctx, os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run serves until ctx is done and returns the exit code: 0, 1 if something
// went wrong, 2 if the flags are wrong.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "refserver: %v\nRun refserver -h for the flags.\n", err)
		return 2
	}
	logger := o.logger(stderr)
	b, err := openBackend(ctx, o, logger)
	if err == nil {
		err = serve(ctx, o, b, stdout, logger)
	}
	if err != nil {
		fmt.Fprintf(stderr, "refserver: %v\n", err)
		return 1
	}
	return 0
}
