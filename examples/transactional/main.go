// Command transactional sells cups. An order, the cups that it takes from the
// shelf, and the answer that says so are one transaction of one database:
//
//	go run ./examples/transactional postgres://user@host/database
//
// The handler, [shop.order], is all that a service has to write. The tables of
// the shop are in a schema called cups, made anew with every run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: transactional DATABASE-URL")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "transactional:", err)
		os.Exit(1)
	}
}

const schema = `
DROP SCHEMA IF EXISTS cups CASCADE;
CREATE SCHEMA cups;
CREATE TABLE cups.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cups int NOT NULL);
CREATE TABLE cups.shelf (cups int NOT NULL CHECK (cups >= 0));
INSERT INTO cups.shelf VALUES (5)`

// run opens a shop on the database, and buys there.
func run(ctx context.Context, out io.Writer, url string) error {
	pool, err := pgstore.Open(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := pgstore.Migrate(ctx, pool); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: newShop(pool), ReadHeaderTimeout: time.Second}
	go func() { _ = web.Serve(listener) }() // until Close
	defer web.Close()
	return buy(ctx, out, "http://"+listener.Addr().String(), pool)
}

func newShop(pool *pgxpool.Pool) http.Handler {
	guard := &server.Middleware{
		Store: pgstore.Transactional(pool),
		Account: func(r *http.Request) (string, error) {
			return r.Header.Get("X-Account-Id"), nil // a real shop asks its authentication
		},
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", guard.Handler(http.HandlerFunc(new(shop).order)))
	return mux
}

type shop struct{ courierCalled atomic.Bool }

// Order is what the shop takes and returns.
type Order struct {
	ID   int64 `json:"id,omitempty"`
	Cups int   `json:"cups"`
	Rush bool  `json:"rush,omitempty"`
}

// order sells cups. Nobody has to undo anything here: what is done through tx
// is durable if the answer is 201, and never was if it is anything else.
func (s *shop) order(w http.ResponseWriter, r *http.Request) {
	var o Order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Cups < 1 {
		http.Error(w, "say how many cups", http.StatusBadRequest)
		return
	}
	tx := pgstore.Tx(r.Context())
	err := tx.QueryRow(r.Context(), `INSERT INTO cups.orders (cups) VALUES ($1) RETURNING id`, o.Cups).Scan(&o.ID)
	if err == nil {
		_, err = tx.Exec(r.Context(), `UPDATE cups.shelf SET cups = cups - $1`, o.Cups)
	}
	switch {
	case soldOut(err): // kept and replayed, like 201
		http.Error(w, "not so many cups are left", http.StatusUnprocessableEntity)
	case err != nil || o.Rush && !s.callCourier(): // not kept: the client's retry runs again
		http.Error(w, "try again", http.StatusServiceUnavailable)
	default:
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(o) // the client asks again for what it did not get
	}
}

// soldOut reports whether the check of cups.shelf was what failed.
func soldOut(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "23514"
}

// callCourier fails the first time.
func (s *shop) callCourier() bool { return s.courierCalled.Swap(true) }

// buy sends some orders, each of them twice, and then looks into the books.
func buy(ctx context.Context, out io.Writer, url string, pool *pgxpool.Pool) error {
	client := &idem.Client{BaseURL: url, Header: http.Header{"X-Account-Id": {"anna"}}}
	for _, o := range []Order{{Cups: 2}, {Cups: 9}, {Cups: 1, Rush: true}} {
		op, err := idem.NewOperation("POST", "/orders", o)
		if err != nil {
			return err
		}
		for range 2 {
			res, err := idem.Send[Order](ctx, client, op)
			if err != nil && idem.OutcomeOf(err) != idem.Rejected {
				return err
			}
			fmt.Fprintf(out, "cups: %d, status: %d, attempts: %d, replayed: %t\n", o.Cups, res.StatusCode, res.Attempts, res.Replayed)
		}
	}
	var orders, sold, left int
	err := pool.QueryRow(ctx, `SELECT count(*), sum(o.cups), min(s.cups) FROM cups.orders o, cups.shelf s`).Scan(&orders, &sold, &left)
	fmt.Fprintf(out, "orders: %d, cups sold: %d, cups left: %d\n", orders, sold, left)
	return err
}
