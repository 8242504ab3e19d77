package dialect_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/dialect"
	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/internal/providertest"
)

// provider is a dialect and what the tests know about it by themselves.
type provider struct {
	name    string // of the variable
	dialect *idem.Dialect
	fake    func() *providertest.API

	// Where the key is: one of these.
	field, member, parameter string
}

var providers = []provider{
	{name: "Stripe", dialect: dialect.Stripe, fake: providertest.Stripe, field: "Idempotency-Key"},
	{name: "YooKassa", dialect: dialect.YooKassa, fake: providertest.YooKassa, field: "Idempotence-Key"},
	{name: "PayPal", dialect: dialect.PayPal, fake: providertest.PayPal, field: "PayPal-Request-Id"},
	{name: "Adyen", dialect: dialect.Adyen, fake: providertest.Adyen, field: "Idempotency-Key"},
	{name: "Square", dialect: dialect.Square, fake: providertest.Square, member: "idempotency_key"},
	{name: "GoCardless", dialect: dialect.GoCardless, fake: providertest.GoCardless, field: "Idempotency-Key"},
	{name: "CheckoutCom", dialect: dialect.CheckoutCom, fake: providertest.CheckoutCom, field: "Cko-Idempotency-Key"},
	{name: "ModernTreasury", dialect: dialect.ModernTreasury, fake: providertest.ModernTreasury, field: "Idempotency-Key"},
	{name: "Mollie", dialect: dialect.Mollie, fake: providertest.Mollie, field: "Idempotency-Key"},
	{name: "Razorpay", dialect: dialect.Razorpay, fake: providertest.Razorpay, field: "X-Payout-Idempotency"},
	{name: "RazorpayRefunds", dialect: dialect.RazorpayRefunds, fake: providertest.RazorpayRefunds, field: "X-Refund-Idempotency"},
	{name: "AWS", dialect: dialect.AWS, fake: providertest.AWS, member: "clientToken"},
	{name: "AWSQuery", dialect: dialect.AWSQuery, fake: providertest.AWSQuery, parameter: "ClientToken"},
	{name: "AWSHeader", dialect: dialect.AWSHeader, fake: providertest.AWSHeader, field: "X-Amzn-Client-Token"},
	{name: "GoogleCloud", dialect: dialect.GoogleCloud, fake: providertest.GoogleCloud, parameter: "requestId"},
	{name: "Azure", dialect: dialect.Azure, fake: providertest.Azure, field: "Repeatability-Request-ID"},
}

// keyOf finds the key in a request, and in no other place than its own.
func (p provider) keyOf(t *testing.T, r faultnet.Request) idem.Key {
	t.Helper()
	places := map[string]string{"field " + p.field: r.Header.Get(p.field)}
	var members map[string]any
	require.NoError(t, json.Unmarshal(r.Body, &members))
	places["member "+p.member], _ = members[p.member].(string)
	target, err := url.Parse(r.Target)
	require.NoError(t, err)
	places["parameter "+p.parameter] = target.Query().Get(p.parameter)
	var keys []string
	for _, key := range places {
		if key != "" {
			keys = append(keys, key)
		}
	}
	require.Len(t, keys, 1, "%v", places)
	return idem.Key(keys[0])
}

// made is what a provider has made.
type made struct {
	ID string `json:"id"`
}

const paymentJSON = `{"amount":1200,"currency":"RUB"}`

// speaking returns a client that speaks d and waits as it is told, no longer.
func speaking(d *idem.Dialect, transport http.RoundTripper) *idem.Client {
	return &idem.Client{
		BaseURL: "http://api.test", Transport: transport, Dialect: d,
		Retry: idem.RetryPolicy{NewBackOff: func() backoff.BackOff { return &backoff.ZeroBackOff{} }},
	}
}

// pay sends the usual payment.
func pay(t *testing.T, client *idem.Client) (idem.Result[made], error) {
	t.Helper()
	return idem.Post[made](t.Context(), client, "/payments", []byte(paymentJSON))
}

// timeline serves the answers one after another, the last for ever, and tells
// when requests arrived. It is for a synctest bubble.
func timeline(t *testing.T, answers ...string) (*faultnet.Server, func() []time.Duration) {
	t.Helper()
	replies := make([]faultnet.Action, len(answers))
	for i, answer := range answers {
		replies[i] = faultnet.Reply(answer)
	}
	srv := faultnet.ServeInMemory(t, faultnet.Steps(replies...))
	return srv, srv.Arrivals
}

func hasA[E error](err error) bool {
	var target E
	return errors.As(err, &target)
}

func asA[E error](t *testing.T, err error) E {
	t.Helper()
	var target E
	require.ErrorAs(t, err, &target)
	return target
}
