package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/providertest"
)

func TestAnOrderIsPaidOnceAlthoughTheFirstAnswerIsLost(t *testing.T) {
	t.Parallel()
	stripe := providertest.Stripe()
	var out bytes.Buffer
	require.NoError(t, pay(t.Context(), &out, stripe.Transport(1)))
	require.NoError(t, pay(t.Context(), &out, stripe.Transport(0)), "run again")
	require.Equal(t, "done: pi_1 after 2 attempts\ndone: pi_1 after 1 attempts\n", out.String())
	require.Equal(t, 1, stripe.Effects())
}

func TestADeclinedCardPaysNothing(t *testing.T) {
	t.Parallel()
	stripe := providertest.Stripe()
	stripe.First = providertest.Answer{Status: 402, Body: `{"error":{"type":"card_error","code":"card_declined"}}`}
	var out bytes.Buffer
	var refused *idem.StatusError
	require.ErrorAs(t, pay(t.Context(), &out, stripe.Transport(0)), &refused)
	require.Equal(t, 402, refused.StatusCode)
	require.Equal(t, "rejected:  after 1 attempts\n", out.String())
}
