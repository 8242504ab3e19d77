package idem_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
)

func TestIETFQuotesTheKey(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	client := quick(srv)
	client.Dialect = idem.IETF
	result, err := post(t, client)
	require.NoError(t, err)
	require.Equal(t, `"`+string(result.Key)+`"`, srv.Keys()[0])

	req := newRequest(t, "POST", srv.URL, paymentJSON)
	req.Header.Set("Idempotency-Key", `"mine"`)
	_, err = client.Do(req)
	require.NoError(t, err)
	require.Equal(t, `"mine"`, srv.Keys()[1])

	req.Header.Set("Idempotency-Key", `"mine`)
	_, err = client.Do(req)
	require.EqualError(t, err, "idem: Idempotency-Key: the quoted key has no closing quote")
}

func TestIETFTakes409ForInProgressAnd422ForReuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(409, "Retry-After: 2"), status(409), ok201())
		client := quick(srv)
		client.Dialect = idem.IETF
		result, err := post(t, client)
		require.NoError(t, err)
		require.Equal(t, 3, result.Attempts)
		require.Equal(t, []time.Duration{0, 2 * time.Second, 2250 * time.Millisecond}, arrivals())
	})
	for code, want := range map[string]idem.Outcome{"RESPONSE_NOT_KEPT": idem.Done, "OPERATION_INDETERMINATE": idem.Unknown} {
		srv := faultnet.Serve(t, problem(409, `{"code":"`+code+`"}`))
		client := quick(srv)
		client.Dialect = idem.IETF
		_, err := post(t, client)
		require.Equal(t, 409, asA[*idem.ConflictError](t, err).StatusCode)
		require.Equal(t, want, idem.OutcomeOf(err))
	}
	srv := faultnet.Serve(t, faultnet.Steps(problem(422, `{"code":"IDEMPOTENCY_KEY_REUSE"}`), problem(422, `{"code":"CARD_EXPIRED"}`)))
	client := quick(srv)
	client.Dialect = idem.IETF
	_, err := post(t, client)
	require.Equal(t, 422, asA[*idem.ConflictError](t, err).StatusCode)
	_, err = post(t, client)
	require.Equal(t, "CARD_EXPIRED", asA[*idem.StatusError](t, err).Problem.Code)
}

func TestDialectIsData(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Steps(status(423, "Retry-After: 0"), status(418), faultnet.Reply(faultnet.Answer(409, created, "X-Seen: true"))))
	client := quick(srv)
	client.Dialect = &idem.Dialect{
		Name: "acme", KeyField: "x-acme-once", ReplayFields: []string{"X-Seen"},
		Rules: []idem.Rule{
			{Status: 423, Verdict: idem.VerdictInProgress}, {Status: 418, Verdict: idem.VerdictTransient}, {Status: 409, Verdict: idem.VerdictDone},
		},
	}
	result, err := post(t, client)
	require.Equal(t, 409, asA[*idem.ConflictError](t, err).StatusCode)
	require.Equal(t, idem.Done, idem.OutcomeOf(err))
	require.Equal(t, 3, result.Attempts)
	require.True(t, result.Replayed)
	for _, r := range srv.Requests() {
		require.Equal(t, []string{string(result.Key)}, r.Header["X-Acme-Once"])
		require.NotContains(t, r.Header, "Idempotency-Key")
	}
}

func TestQuotesAreTheCallersOwnOutsideAQuotingDialect(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	req := newRequest(t, "POST", srv.URL, paymentJSON)
	req.Header.Set("Idempotency-Key", `"mine"`)
	_, err := quick(srv).Do(req)
	require.NoError(t, err)
	require.Equal(t, `"mine"`, srv.Keys()[0])
}
