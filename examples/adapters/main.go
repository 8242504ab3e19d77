// Command adapters is a shop whose orders are safe to retry, written with chi,
// with echo or with gin. There is a file for each, to copy from: chi takes the
// middleware as it is, and the other two need a few lines in between.
//
//	go run . gin &
//	curl -i -X POST http://127.0.0.1:8081/shops/berlin/orders -H 'Idempotency-Key: order-1042' -H 'X-Account-Id: anna' \
//	    -H 'Content-Type: application/json' -d '{"amount":1200}'
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// frameworks make the shop.
var frameworks = map[string]func(*server.Middleware, placeOrder) http.Handler{
	"chi": newChi, "echo": newEcho, "gin": newGin,
}

func main() {
	if len(os.Args) != 2 || frameworks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: adapters chi|echo|gin")
		os.Exit(2)
	}
	shop := &http.Server{Addr: "127.0.0.1:8081", Handler: frameworks[os.Args[1]](newGuard(), order), ReadHeaderTimeout: time.Second}
	fmt.Fprintln(os.Stderr, "adapters:", shop.ListenAndServe())
	os.Exit(1)
}

func newGuard() *server.Middleware {
	return &server.Middleware{
		Store: new(memstore.Store),
		Account: func(r *http.Request) (string, error) {
			return r.Header.Get("X-Account-Id"), nil // a real shop asks its authentication
		},
	}
}

// An orderRequest is what clients send.
type orderRequest struct {
	Amount int `json:"amount"`
}

// An orderReply is what they get.
type orderReply struct {
	Order string `json:"order"`
	Shop  string `json:"shop"`
}

// errRefused says that an order will never be accepted as it is. All other errors
// may pass.
var errRefused = errors.New("there is nothing to pay")

// placeOrder is the effect that must happen once.
type placeOrder func(ctx context.Context, shop string, amount int) (orderReply, error)

func order(ctx context.Context, shop string, amount int) (orderReply, error) {
	if amount <= 0 {
		return orderReply{}, errRefused
	}
	op, _ := server.OperationFrom(ctx)
	return orderReply{Order: op.DownstreamKey("order"), Shop: shop}, nil
}
