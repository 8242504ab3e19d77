// Command yookassa makes a payment at YooKassa, which takes longer than the
// client waits for an answer. It brings a stand-in for YooKassa that is slow;
// without Transport it is the real thing.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/dialect"
	"github.com/idemhttp/idem/internal/providertest"
)

func main() {
	slow := providertest.YooKassa()
	slow.Takes = time.Second
	if err := pay(context.Background(), os.Stdout, slow); err != nil {
		fmt.Fprintln(os.Stderr, "yookassa:", err)
		os.Exit(1)
	}
}

func pay(ctx context.Context, w io.Writer, yookassa *providertest.API) error {
	client := &idem.Client{BaseURL: "https://api.yookassa.ru/v3", Dialect: dialect.YooKassa, Transport: yookassa.Transport(0)}
	client.Retry.AttemptTimeout = 100 * time.Millisecond
	client.Trace.AttemptDone = func(_ context.Context, a idem.Attempt) { fmt.Fprintf(w, "attempt %d: %d\n", a.Number, a.Status) } // 0: no answer

	payment := map[string]any{"amount": map[string]string{"value": "1200.00", "currency": "RUB"}, "capture": true}
	res, err := idem.Post[struct{ ID, Status string }](ctx, client, "/payments", payment)
	fmt.Fprintf(w, "%s: %s is %s, made %d times\n", idem.OutcomeOf(err), res.Value.ID, res.Value.Status, yookassa.Effects())
	return err
}
