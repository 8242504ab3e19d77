package main

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/providertest"
)

func TestASlowPaymentIsWaitedForAndMadeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := providertest.YooKassa()
		slow.Takes = time.Second
		var out bytes.Buffer
		start := time.Now()
		require.NoError(t, pay(t.Context(), &out, slow))
		require.Equal(t, "attempt 1: 0\nattempt 2: 202\nattempt 3: 200\ndone: payment-1 is pending, made 1 times\n", out.String())
		require.GreaterOrEqual(t, time.Since(start), 1900*time.Millisecond, "100 ms for the first attempt, and the 1.8 s it was told")
	})
}
