package idem_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
)

// A write that the caller sent without a key is not given one by the redirect,
// under which the service could take it for another.
func TestRoundTripperMintsNoKeyForARedirect(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Steps(status(307, "Location: /moved"), ok201()))
	req := newRequest(t, "POST", srv.URL, paymentJSON)
	req.Header["Idempotency-Key"] = nil
	resp, err := (&http.Client{Transport: quick(srv).RoundTripper()}).Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, []string{"", ""}, srv.Keys())
	require.Equal(t, []string{paymentJSON, paymentJSON}, srv.Bodies())
}
