package providertest_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/providertest"
)

// send sends body to Stripe under key and returns the status and body of the
// answer.
func send(ctx context.Context, t *testing.T, network http.RoundTripper, key, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.stripe.com/v1/payment_intents", strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Idempotency-Key", key)
	resp, err := network.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	read, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(read), resp.Body.Close()
}

func TestOneThingIsMadeForEachKey(t *testing.T) {
	t.Parallel()
	api := providertest.Stripe()
	network := api.Transport(1)
	_, _, err := send(t.Context(), t, network, "k1", "amount=1")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, 1, api.Effects(), "only the answer is lost")
	for key, id := range map[string]string{"k1": "pi_1", "k2": "pi_2"} {
		status, body, err := send(t.Context(), t, network, key, "amount=1")
		require.NoError(t, err)
		require.Equal(t, 200, status)
		require.Contains(t, body, id)
	}
	status, body, err := send(t.Context(), t, network, "k1", "amount=2")
	require.NoError(t, err)
	require.Equal(t, 400, status)
	require.Contains(t, body, "idempotency_error")
	status, _, err = send(t.Context(), t, network, "", "amount=1")
	require.NoError(t, err)
	require.Equal(t, 400, status, "no key")
	require.Equal(t, 2, api.Effects())
}

func TestRepetitionFindsTheFirstRequestRunning(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		busy providertest.Answer
		want int
		took time.Duration
	}{
		"and is told so":   {providertest.Answer{Status: 409}, 409, time.Second},
		"and waits for it": {providertest.Answer{}, 200, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api := providertest.Stripe()
				api.Takes, api.Busy = 3*time.Second, tc.busy
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, _, err := send(ctx, t, api.Transport(0), "k", "amount=1")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				status, _, err := send(t.Context(), t, api.Transport(0), "k", "amount=1")
				require.NoError(t, err)
				require.Equal(t, tc.want, status)
				require.Equal(t, tc.took, time.Since(start))
				require.Equal(t, 1, api.Effects())
				<-time.After(api.Takes) // nothing runs on after the test
			})
		})
	}
}
