package idem_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
)

// Of a failed answer the first 64 KiB are read. A longer one is not passed on,
// because what is left of it would look like all of it.
func TestRoundTripperNeverPassesTheBeginningOfAnAnswerForAllOfIt(t *testing.T) {
	t.Parallel()
	const read = 64 << 10
	srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(503, strings.Repeat("x", read))))
	resp, err := quick(srv).RoundTripper().RoundTrip(newRequest(t, "POST", srv.URL, paymentJSON))
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Len(t, body, read)

	srv.Play(faultnet.Reply(faultnet.Answer(503, strings.Repeat("x", read+1))))
	resp, err = quick(srv).RoundTripper().RoundTrip(newRequest(t, "POST", srv.URL, paymentJSON))
	require.Nil(t, resp)
	given := asA[*idem.IncompleteError](t, err)
	require.Equal(t, idem.ReasonAttempts, given.Reason)
	require.Equal(t, 503, given.Response.StatusCode)
	require.Len(t, given.Response.Body, read)
}

// Whoever cancels a call does not want to be told about an earlier failure
// only.
func TestRoundTripperReportsTheEndOfTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, status(503, "Retry-After: 30"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		resp, err := quick(srv).RoundTripper().RoundTrip(newRequest(t, "POST", srv.URL, paymentJSON).WithContext(ctx))
		require.Nil(t, resp)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 503, asA[*idem.StatusError](t, err).StatusCode)
	})
}
