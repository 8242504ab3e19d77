package idem_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
)

// An operation without limits must not grow for ever.
func TestErrorRemembersTheLastThousandAttempts(t *testing.T) {
	t.Parallel()
	client := &idem.Client{
		BaseURL: "http://bank.test", Retry: idem.RetryPolicy{MaxAttempts: 1500, NewBackOff: at(0), Budget: unlimited()},
		Transport: roundTripperFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
		}),
	}
	_, err := post(t, client)
	given := asA[*idem.IncompleteError](t, err)
	require.Equal(t, idem.ReasonAttempts, given.Reason)
	require.Equal(t, 1500, given.Response.Attempts)
	require.Len(t, given.Attempts, 1000)
	require.Equal(t, 501, given.Attempts[0].Number)
	require.Equal(t, 1500, given.Attempts[999].Number)
}
