package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/idemhttp/idem/internal/keyfield"
	"github.com/idemhttp/idem/server"
)

func (c *adminCall) inspect(ctx context.Context) error {
	e, err := c.find(ctx)
	if err != nil {
		return err
	}
	return c.printEntry(e)
}

// find returns the record of the key, which must exist.
func (c *adminCall) find(ctx context.Context) (server.Entry, error) {
	e, err := c.records.Inspect(ctx, c.id)
	if err == nil && e.Status == 0 {
		err = fmt.Errorf("there is no record of the key %q of the account %q", c.id.Key, c.id.Account)
	}
	return e, err
}

// findOwnerless returns the record of the key, of an operation that nobody works
// on and that has no answer yet.
func (c *adminCall) findOwnerless(ctx context.Context) (server.Entry, error) {
	e, err := c.find(ctx)
	switch {
	case err != nil:
		return e, err
	case e.Expired():
		return e, errors.New("the record has expired: the next request with this key is a new operation")
	case e.Status == server.Completed:
		return e, fmt.Errorf("the operation is completed, its client gets %d", e.ResponseStatus)
	case e.Status == server.Processing && !e.Lost():
		return e, fmt.Errorf("an attempt or a worker is at it: its lease lasts for another %v", e.LeaseLeft().Round(time.Millisecond))
	default:
		return e, nil
	}
}

func (c *adminCall) stuck(ctx context.Context) error {
	entries, err := c.records.Lost(ctx, c.limit)
	if err != nil {
		return err
	}
	return c.printEntries(entries)
}

func (c *adminCall) release(ctx context.Context) error {
	e, err := c.findOwnerless(ctx)
	if err == nil && e.Status == server.Failed {
		err = errors.New("the operation has failed: the next request with its key executes it anyway")
	}
	if err != nil {
		return err
	}
	if err := c.confirm(ctx, fmt.Sprintf("%s\nThe next request with this key will EXECUTE IT AGAIN. Release it?", describe(e))); err != nil {
		return err
	}
	released, err := c.records.ReleaseLost(ctx, e.Operation)
	if err == nil && !released {
		err = errChanged
	}
	c.audit(ctx, err, entryAttrs(e)...)
	return c.printAfter(ctx, err)
}

func (c *adminCall) complete(ctx context.Context) error {
	e, err := c.findOwnerless(ctx)
	if err != nil {
		return err
	}
	response := c.answer()
	if err := c.confirm(ctx, fmt.Sprintf("%s\nIts client will get %d with %d bytes of body, and it will never be executed again. Complete it?",
		describe(e), response.StatusCode, len(response.Body))); err != nil {
		return err
	}
	err = c.finish(ctx, e, response)
	c.audit(ctx, err, append(entryAttrs(e), slog.Int("status", response.StatusCode))...)
	return c.printAfter(ctx, err)
}

// answer is what the client is to get.
func (c *adminCall) answer() server.Response {
	r := c.response
	typed := slices.ContainsFunc(r.Fields, func(f server.Field) bool { return f.Name == "Content-Type" })
	if len(r.Body) > 0 && !typed {
		r.Fields = append(r.Fields, server.Field{Name: "Content-Type", Value: "application/json"})
	}
	return r
}

// finish completes the operation of e, unless a request has taken it over while
// the question was open.
func (c *adminCall) finish(ctx context.Context, e server.Entry, r server.Response) error {
	current, err := c.records.Inspect(ctx, c.id)
	if err == nil && (current.Operation != e.Operation || current.Status != e.Status) {
		err = errChanged
	}
	if err != nil {
		return err
	}
	rec, err := c.records.Finish(ctx, server.Ticket{Operation: e.Operation}, r, c.ttl)
	if errors.Is(err, server.ErrLeaseLost) ||
		err == nil && (rec.Response.StatusCode != r.StatusCode || !bytes.Equal(rec.Response.Body, r.Body)) {
		err = errChanged
	}
	return err
}

func (c *adminCall) cleanup(ctx context.Context) error {
	if err := c.confirm(ctx, "Delete the records that have expired?"); err != nil {
		return err
	}
	cleaner, ok := c.records.(server.Cleaner)
	if !ok {
		return errors.ErrUnsupported
	}
	const batch = 1000
	deleted := 0
	for {
		n, err := cleaner.Cleanup(ctx, batch)
		deleted += n
		if err == nil && n == batch {
			continue
		}
		c.audit(ctx, err, slog.Int("deleted", deleted))
		return errors.Join(err, c.printDeleted(deleted))
	}
}

var errChanged = errors.New("the operation has changed meanwhile; nothing was done, look at it again")

// confirm asks whether to go on. An interrupt says no.
func (c *adminCall) confirm(ctx context.Context, question string) error {
	if c.yes {
		return nil
	}
	fmt.Fprintf(c.stderr, "%s [y/N] ", question)
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(c.stdin).ReadString('\n')
		answered <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answered:
		if answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return errors.New("not confirmed, nothing was done; with -yes it is not asked")
}

// audit logs who has changed what, or has tried to.
func (c *adminCall) audit(ctx context.Context, err error, attrs ...slog.Attr) {
	level := slog.LevelInfo
	attrs = append([]slog.Attr{slog.String("action", c.command), slog.String("who", who())}, attrs...)
	if err != nil {
		level = slog.LevelError
		attrs = append(attrs, slog.Any("error", err))
	}
	options{log: c.log}.logger(c.stderr).LogAttrs(ctx, level, "audit", attrs...)
}

// who names the user that called the program, also through sudo, and the host.
func who() string {
	name := os.Getenv("SUDO_USER")
	if u, err := user.Current(); err == nil {
		name = cmp.Or(name, u.Username)
	}
	host, _ := os.Hostname()
	return cmp.Or(name, "unknown") + "@" + cmp.Or(host, "unknown")
}

func entryAttrs(e server.Entry) []slog.Attr {
	return []slog.Attr{
		slog.String("account", e.Account),
		slog.String("idempotency_key", keyfield.Shorten(e.Key)),
		slog.String("operation_id", e.ID.String()),
		slog.Int("attempt", e.Attempt),
	}
}
