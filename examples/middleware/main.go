// Command middleware is a shop whose orders are safe to retry. It charges a
// payment provider, which no transaction of the shop can reach; the downstream
// key makes that safe too. The reference server plays the provider:
//
//	go run ./server/cmd/refserver &
//	go run ./examples/middleware http://127.0.0.1:8080
//	curl -i -X POST http://127.0.0.1:8081/orders -H 'Idempotency-Key: order-1042' -H 'X-Account-Id: anna' \
//	    -H 'Content-Type: application/json' -d '{"amount":1200,"currency":"RUB"}'
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: middleware PROVIDER-URL")
		os.Exit(2)
	}
	provider := &idem.Client{BaseURL: os.Args[1], Header: http.Header{"Authorization": {"Bearer demo-acme"}}}
	shop := &http.Server{Addr: "127.0.0.1:8081", Handler: newShop(provider), ReadHeaderTimeout: time.Second}
	fmt.Fprintln(os.Stderr, "middleware:", shop.ListenAndServe())
	os.Exit(1)
}

func newShop(provider *idem.Client) http.Handler {
	guard := &server.Middleware{
		Store: new(memstore.Store),
		Account: func(r *http.Request) (string, error) {
			return r.Header.Get("X-Account-Id"), nil // a real shop asks its authentication
		},
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", guard.Handler(createOrder(provider)))
	return mux
}

func createOrder(provider *idem.Client) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		op, _ := server.OperationFrom(r.Context())
		charge := idem.Operation{
			Key:    idem.Key(op.DownstreamKey("charge")), // the same whenever this order is attempted
			Method: "POST",
			URL:    "/payments",
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   body,
		}
		res, err := idem.Send[map[string]any](r.Context(), provider, charge)
		switch idem.OutcomeOf(err) {
		case idem.Done:
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "ordered by %s, payment %s\n", op.Account, res.Value["payment_id"])
		case idem.Rejected: // final: it is kept and replayed
			http.Error(w, "the provider refuses the payment", http.StatusUnprocessableEntity)
		default: // not kept: when the client tries again, so does this handler
			http.Error(w, "the provider does not answer", http.StatusBadGateway)
		}
	})
}
