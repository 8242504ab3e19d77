package main

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server/servertest"
)

// order sends an order to a shop that charges the given provider, trying the
// provider once per attempt.
func order(t *testing.T, provider *servertest.Server, body string) (idem.Result[string], error) {
	t.Helper()
	shop := httptest.NewServer(newShop(&idem.Client{
		BaseURL: provider.URL, Transport: provider.Transport, Header: servertest.As("shop"),
		Retry: idem.RetryPolicy{MaxAttempts: 1},
	}))
	t.Cleanup(shop.Close)
	client := &idem.Client{BaseURL: shop.URL, Header: servertest.As("anna")}
	return idem.Post[string](t.Context(), client, "/orders", []byte(body))
}

func TestAChargeWhoseAnswerIsLostIsChargedOnce(t *testing.T) {
	t.Parallel()
	provider := servertest.Start(t)
	provider.FaultNext("drop", "truncate")
	res, err := order(t, provider, `{"amount":1200,"currency":"RUB"}`)
	require.NoError(t, err)
	require.Equal(t, 3, res.Attempts, "two attempts ended with a 502")
	require.Equal(t, 3, provider.Requests())
	require.Equal(t, 1, provider.Executions())
	require.Len(t, provider.Ledger("shop"), 1)
	require.Equal(t, "ordered by anna, payment "+provider.Ledger("shop")[0].PaymentID+"\n", res.Value)
}

func TestAChargeThatIsRefusedIsFinal(t *testing.T) {
	t.Parallel()
	provider := servertest.Start(t)
	_, err := order(t, provider, `{"amount":0,"currency":"RUB"}`)
	var refused *idem.StatusError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 422, refused.StatusCode)
	require.Equal(t, "the provider refuses the payment\n", string(refused.Body))
	require.Equal(t, 1, provider.Requests())
}
