package idem_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
)

func TestErrorOfAContextNamesItsCauseIfThatSaysMore(t *testing.T) {
	t.Parallel()
	op := idem.Operation{Key: "order-42-pay", Method: "POST", URL: "https://bank.test/payments"}
	for _, tc := range []struct {
		cause error
		want  string
	}{
		{nil, "(context canceled)"},
		{errors.New("shutting down"), "(context canceled: shutting down)"},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(tc.cause)
		_, err := idem.Send[payment](ctx, &idem.Client{}, op)
		require.EqualError(t, err, "idem: POST https://bank.test/payments: given up after 0 attempts: "+
			"the context ended, or would end before the next attempt "+tc.want+" (key order-42-pay: it was not sent)")
	}
}
