// Command payments pays for an order, once, however often it is run. It is
// written to be copied. Run the reference server beside it:
//
//	go run ./server/cmd/refserver &
//	go run ./examples/payments http://127.0.0.1:8080 order-1042
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/idemhttp/idem"
)

// Payment is what the API takes and returns.
type Payment struct {
	ID       string `json:"payment_id,omitempty"`
	Amount   int64  `json:"amount"` // in minor units: 1200 is 12.00
	Currency string `json:"currency"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: payments URL ORDER")
		os.Exit(2)
	}
	if err := pay(context.Background(), os.Stdout, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "payments:", err)
		os.Exit(1)
	}
}

func pay(ctx context.Context, w io.Writer, url, order string) error {
	client := &idem.Client{BaseURL: url, Header: http.Header{"Authorization": {"Bearer demo-acme"}}}
	op, err := idem.NewOperation("POST", "/payments", Payment{Amount: 1200, Currency: "RUB"})
	if err != nil {
		return err
	}
	op.Key = idem.DeriveKey("payment", order) // the same after a crash, with nothing stored

	res, err := idem.Send[Payment](ctx, client, op)
	switch idem.OutcomeOf(err) {
	case idem.Done:
		fmt.Fprintf(w, "%s is paid by payment %s (attempts: %d, replayed: %t)\n", order, res.Value.ID, res.Attempts, res.Replayed)
	case idem.Rejected:
		fmt.Fprintf(w, "%s is not paid\n", order)
	default: // Unknown or Pending; NotSent is about this run, an earlier one may have paid
		fmt.Fprintf(w, "%s may be paid: run this again to find out\n", order)
	}
	return err
}
