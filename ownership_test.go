package idem_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
)

// A transport that adds to a field must not reach the values that the caller and
// other operations share, not even behind their end.
func TestNothingIsWrittenIntoTheCallersFields(t *testing.T) {
	t.Parallel()
	adding := roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		r.Header.Add("X-Own", "added")
		r.Header.Add("X-Shared", "added")
		return &http.Response{StatusCode: 201, Body: http.NoBody}, nil
	})
	own, shared := append(make([]string, 0, 2), "own"), append(make([]string, 0, 2), "shared")
	client := &idem.Client{Transport: adding, Header: http.Header{"X-Shared": shared}}
	req := newRequest(t, "POST", "http://bank.test/", paymentJSON)
	req.Header["X-Own"] = own
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, []string{"own", ""}, own[:2])
	require.Equal(t, []string{"shared", ""}, shared[:2])
}
