package idem_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
)

func TestCredentialsGoToTheSchemeHostAndPortOfBaseURL(t *testing.T) {
	t.Parallel()
	for url, sent := range map[string]bool{
		"/payments":                      true,
		"https://bank.test/payments":     true,
		"https://BANK.test:443/payments": true,
		"http://bank.test/payments":      false,
		"https://bank.test:8443/":        false,
		"https://pay.bank.test/":         false,
		"https://bank.test.evil.test/":   false,
	} {
		var got http.Header
		client := &idem.Client{
			BaseURL: "https://bank.test", Header: http.Header{"X-Api-Key": {"sk_7"}},
			Transport: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				got = r.Header
				return &http.Response{StatusCode: 201, Body: http.NoBody}, nil
			}),
		}
		_, err := idem.Post[payment](t.Context(), client, url, rub1200)
		require.NoError(t, err)
		require.Equal(t, sent, got.Get("X-Api-Key") == "sk_7", url)
		require.Equal(t, sent, got["X-Api-Key"] != nil, url)
	}
}
