// Command stripe pays for an order at Stripe, once, although the first answer is
// lost. It brings a stand-in for Stripe; without Transport it is the real thing.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/dialect"
	"github.com/idemhttp/idem/internal/providertest"
)

func main() {
	if err := pay(context.Background(), os.Stdout, providertest.Stripe().Transport(1)); err != nil {
		fmt.Fprintln(os.Stderr, "stripe:", err)
		os.Exit(1)
	}
}

func pay(ctx context.Context, w io.Writer, network http.RoundTripper) error {
	auth := http.Header{"Authorization": {"Bearer sk_test_123"}}
	client := &idem.Client{BaseURL: "https://api.stripe.com", Header: auth, Dialect: dialect.Stripe, Transport: network}

	op, err := idem.NewOperation("POST", "/v1/payment_intents", url.Values{"amount": {"1200"}, "currency": {"eur"}})
	if err != nil {
		return err
	}
	op.Key = idem.DeriveKey("order", "1042") // the same after a crash, with nothing stored
	res, err := idem.Send[struct{ ID string }](ctx, client, op)
	fmt.Fprintf(w, "%s: %s after %d attempts\n", idem.OutcomeOf(err), res.Value.ID, res.Attempts)
	return err
}
