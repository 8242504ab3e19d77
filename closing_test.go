package idem_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
)

// The answer to a request without a key is the caller's to read; closing it
// ends what belongs to its attempt.
func TestClosingAnAnswerEndsItsAttempt(t *testing.T) {
	t.Parallel()
	var attempt *http.Request
	client := &idem.Client{Transport: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		attempt = r
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(created))}, nil
	})}
	resp, err := client.Do(newRequest(t, "GET", "http://bank.test/", ""))
	require.NoError(t, err)
	require.NoError(t, attempt.Context().Err())
	require.NoError(t, resp.Body.Close())
	require.ErrorIs(t, attempt.Context().Err(), context.Canceled)
}
