package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/pgstore"
	"github.com/idemhttp/idem/server/redisstore"
	"github.com/idemhttp/idem/server/refserver"
	"github.com/idemhttp/idem/server/refserver/pgledger"
)

// backend is where a server keeps its keys and its books.
type backend struct {
	orders, payments server.Store // nil orders: those of payments
	ledger           refserver.Ledger
	provider         refserver.Provider
	health           func(context.Context) error // nil: always well
	cleanup          func(context.Context) error // runs until its context ends
	close            func()                      // after the last use
	// observeCleanup has cleanup tell what became of each batch. Nil: it
	// cannot.
	observeCleanup func(func(context.Context, server.CleanupEvent))
}

func openBackend(ctx context.Context, o options, logger *slog.Logger) (backend, error) {
	switch o.store {
	case "postgres":
		return openPostgres(ctx, o, logger)
	case "redis":
		return openRedis(o, logger)
	}
	return openMemory(logger), nil
}

func openMemory(logger *slog.Logger) backend {
	s := new(memstore.Store)
	cleanup := &server.Cleanup{Store: s, Logger: logger}
	return backend{
		payments:       s,
		cleanup:        cleanup.Run,
		close:          func() {},
		observeCleanup: func(f func(context.Context, server.CleanupEvent)) { cleanup.Observe = f },
	}
}

// openRedis opens Redis. What the API sells is in memory.
func openRedis(o options, logger *slog.Logger) (backend, error) {
	option, err := redisOption(o.redisURL)
	if err != nil {
		return backend{}, err
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		return backend{}, fmt.Errorf("-redis-url: %w", err)
	}
	s := redisstore.New(client)
	s.Logger = logger
	return backend{
		payments: s,
		health:   func(ctx context.Context) error { return client.Do(ctx, client.B().Ping().Build()).Error() },
		cleanup:  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, // Redis does it
		close:    client.Close,
	}, nil
}

// redisOption reads the URL of Redis, which may have a password.
func redisOption(redisURL string) (rueidis.ClientOption, error) {
	option, err := rueidis.ParseURL(redisURL)
	if bad := (*url.Error)(nil); errors.As(err, &bad) {
		err = errors.New("it must be a URL such as redis://127.0.0.1:6379") // the error repeats its own
	}
	if err != nil {
		return option, fmt.Errorf("-redis-url: %w", err)
	}
	return option, nil
}

// behindDoor puts Redis in front of the stores of b, if there is a URL of it. The
// program starts and goes on without Redis.
func (b backend) behindDoor(o options, logger *slog.Logger) (backend, error) {
	if o.redisURL == "" {
		return b, nil
	}
	option, err := redisOption(o.redisURL)
	if err != nil {
		b.close()
		return backend{}, err
	}
	client := &redisstore.LazyClient{Option: option}
	lock := func(s server.Store) server.Store {
		l := redisstore.LockWith(client, s)
		l.Logger = logger
		return l
	}
	b.orders, b.payments = lock(b.orders), lock(b.payments)
	closeDurable := b.close
	b.close = func() { client.Close(); closeDurable() }
	return b, nil
}

// openPostgres opens the database and makes the tables. Those of the API are not
// needed in front of another service.
func openPostgres(ctx context.Context, o options, logger *slog.Logger) (backend, error) {
	pool, err := pgstore.Open(ctx, o.databaseURL)
	if err != nil {
		return backend{}, fmt.Errorf("-database-url: %w", err)
	}
	orders, payments := pgstore.Transactional(pool), pgstore.New(pool)
	orders.Logger, payments.Logger = logger, logger
	for _, prepare := range []func() error{
		func() error { return pgstore.Migrate(ctx, pool) },
		func() error { return payments.Check(ctx) },
		func() error {
			if o.upstream != nil {
				return nil
			}
			return pgledger.Migrate(ctx, pool)
		},
	} {
		if err := prepare(); err != nil {
			pool.Close()
			return backend{}, err
		}
	}
	b := backend{
		orders:   orders,
		payments: payments,
		ledger:   pgledger.New(pool),
		provider: pgledger.NewProvider(pool),
		health:   func(ctx context.Context) error { return takesWrites(ctx, pool) },
		cleanup:  payments.Run, // of the table that both share
		close:    func() { closePool(pool) },
		observeCleanup: func(f func(context.Context, server.CleanupEvent)) {
			payments.ObserveCleanup = f
		},
	}
	return b.behindDoor(o, logger)
}

var errReadOnly = errors.New("the database takes no writes")

// takesWrites returns nil if the database can be reached and is no standby.
func takesWrites(ctx context.Context, pool *pgxpool.Pool) error {
	var readOnly string
	if err := pool.QueryRow(ctx, "SHOW transaction_read_only").Scan(&readOnly); err != nil {
		return err
	}
	if readOnly == "on" {
		return errReadOnly
	}
	return nil
}

// closePool closes the pool, but does not wait for handlers that were still
// running when the grace period was over.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}
