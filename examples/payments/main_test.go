package main

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/refserver"
	"github.com/idemhttp/idem/server/servertest"
)

func TestAnOrderIsPaidOnceHoweverOftenTheProgramIsRun(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t)
	s.FaultNext("drop")
	var out bytes.Buffer
	for range 2 {
		require.NoError(t, pay(t.Context(), &out, s.URL, "order-1042"))
	}
	require.Len(t, s.Ledger("acme"), 1)
	id := s.Ledger("acme")[0].PaymentID
	require.Equal(t, fmt.Sprintf(`order-1042 is paid by payment %s (attempts: 2, replayed: true)
order-1042 is paid by payment %s (attempts: 1, replayed: true)
`, id, id), out.String())
	require.Equal(t, 1, s.Executions())
}

func TestARefusedPaymentIsNotPaid(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t)
	s.FaultNext("fail=422")
	var out bytes.Buffer
	var refused *idem.StatusError
	require.ErrorAs(t, pay(t.Context(), &out, s.URL, "order-1042"), &refused)
	require.Equal(t, "order-1042 is not paid\n", out.String())
}

func TestAPaymentThatIsCutShortMayBePaid(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := servertest.StartConfig(t, refserver.Config{Payments: &server.Middleware{
		Observe: func(context.Context, server.Event) { cancel() }, // the process dies before the answer arrives
	}})
	s.FaultNext("drop")
	var out bytes.Buffer
	require.ErrorIs(t, pay(ctx, &out, s.URL, "order-1042"), context.Canceled)
	require.Equal(t, "order-1042 may be paid: run this again to find out\n", out.String())
	require.Len(t, s.Ledger("acme"), 1)

	// The next run reaches nobody, and so learns nothing.
	soon, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	out.Reset()
	err := pay(soon, &out, "http://127.0.0.1:1", "order-1042")
	require.Equal(t, idem.NotSent, idem.OutcomeOf(err))
	require.Equal(t, "order-1042 may be paid: run this again to find out\n", out.String())
}
