// Command transactional is a shop whose orders and their answers commit
// together. With a PostgreSQL database that may be written to:
//
//	go run ./examples/transactional postgres://postgres@127.0.0.1/postgres
//	curl -i -X POST http://127.0.0.1:8081/orders -H 'Idempotency-Key: order-1042' -H 'X-Account-Id: anna' \
//	    -H 'Content-Type: application/json' -d '{"item":"book","pieces":2}'
//
// However often the second is repeated, and whatever dies in between, the stock
// falls by two.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: transactional DATABASE-URL")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "transactional:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, database string) error {
	pool, err := pgstore.Open(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	handler, err := newShop(ctx, pool)
	if err != nil {
		return err
	}
	shop := &http.Server{Addr: "127.0.0.1:8081", Handler: handler, ReadHeaderTimeout: time.Second}
	return shop.ListenAndServe()
}

const schema = `
CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, pieces integer NOT NULL CHECK (pieces >= 0));
CREATE TABLE IF NOT EXISTS orders (id uuid PRIMARY KEY, item text NOT NULL, pieces integer NOT NULL);
INSERT INTO stock VALUES ('book', 10) ON CONFLICT DO NOTHING;`

func newShop(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	if err := pgstore.Migrate(ctx, pool); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return nil, err
	}
	guard := &server.Middleware{
		Store: pgstore.Transactional(pool),
		Account: func(r *http.Request) (string, error) {
			return r.Header.Get("X-Account-Id"), nil // a real shop asks its authentication
		},
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", guard.Handler(http.HandlerFunc(createOrder)))
	return mux, nil
}

var errSoldOut = errors.New("sold out")

func createOrder(w http.ResponseWriter, r *http.Request) {
	var order struct {
		Item   string `json:"item"`
		Pieces int    `json:"pieces"`
	}
	if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Pieces < 1 {
		http.Error(w, "an order has an item and at least one piece", http.StatusBadRequest)
		return
	}
	op, _ := server.OperationFrom(r.Context())
	tx := pgstore.Tx(r.Context()) // commits with the answer below, or not at all
	err := take(r.Context(), tx, order.Item, order.Pieces)
	if err == nil {
		_, err = tx.Exec(r.Context(), "INSERT INTO orders VALUES ($1, $2, $3)", op.ID, order.Item, order.Pieces)
	}
	switch {
	case errors.Is(err, errSoldOut): // 4xx: kept and replayed, without effects
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case err != nil: // 5xx: not kept; when the client tries again, so does this handler
		http.Error(w, "the order could not be taken", http.StatusInternalServerError)
	default: // 2xx: kept with its effects
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %s\n", op.ID)
	}
}

func take(ctx context.Context, tx pgx.Tx, item string, pieces int) error {
	taken, err := tx.Exec(ctx, "UPDATE stock SET pieces = pieces - $2 WHERE item = $1 AND pieces >= $2", item, pieces)
	if err == nil && taken.RowsAffected() == 0 {
		return errSoldOut
	}
	return err
}
