package idem_test

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server/refserver"
	"github.com/idemhttp/idem/server/servertest"
)

// These tests drive the client against the reference server: what the two
// promise together.

// order is what the reference server answers to a payment.
type order struct {
	PaymentID string `json:"payment_id"`
	Amount    int    `json:"amount"`
}

// through returns a client whose requests pass a proxy that plays action, and
// the proxy's upstream.
func through(t *testing.T, api *servertest.Server) (*idem.Client, *faultnet.Server, faultnet.Upstream) {
	t.Helper()
	up := faultnet.Upstream(api.URL[len("http://"):])
	proxy := faultnet.Serve(t, up.Forward())
	client := quick(proxy)
	client.Header = servertest.As("acme")
	return client, proxy, up
}

func TestCutAtAnyByteOfAnAnswerIsHealed(t *testing.T) {
	t.Parallel()
	api := servertest.Start(t)
	client, proxy, up := through(t, api)
	client.Transport.(*http.Transport).DisableKeepAlives = true // so that every send is an attempt of ours

	var answer []byte
	length := 1
	for cut := 0; cut < length; cut++ {
		op, err := idem.NewOperation("POST", "/payments", rub1200)
		require.NoError(t, err)
		proxy.Play(faultnet.Steps(up.CutAnswer(cut), up.Forward()))
		result, err := idem.Send[order](t.Context(), client, op)
		require.NoError(t, err, "cut after %d bytes", cut)
		require.Equal(t, 2, result.Attempts, "cut after %d bytes", cut)
		require.True(t, result.Replayed)
		require.Equal(t, 1200, result.Value.Amount)
		if answer == nil {
			answer = result.Body
			length = len(headOf(result)) + len(answer)
		}
		require.Len(t, result.Body, len(answer))
		require.Equal(t, cut+1, api.Executions(), "one execution for each operation")
	}
	require.Greater(t, length, 300, "the test cut a whole answer")
}

// headOf is about as long as the head of the first answer was; the replay has
// one field more.
func headOf(r idem.Result[order]) []byte {
	head := []byte("HTTP/1.1 201 Created\r\n\r\n")
	for name, values := range r.Header {
		if name != "Idempotent-Replayed" {
			head = append(head, name+": "+values[0]+"\r\n"...)
		}
	}
	return head
}

func TestKeyFromAnErrorFindsOutWhatHappened(t *testing.T) {
	t.Parallel()
	api := servertest.Start(t)
	client, proxy, up := through(t, api)
	client.Retry.MaxAttempts = 2
	proxy.Play(up.LoseAnswer())
	op, err := idem.NewOperation("POST", "/payments", rub1200)
	require.NoError(t, err)
	_, err = idem.Send[order](t.Context(), client, op)
	given := asA[*idem.IncompleteError](t, err)
	require.Equal(t, idem.Unknown, idem.OutcomeOf(err))
	require.Equal(t, 1, api.Executions(), "it has happened, but the client cannot know")

	proxy.Play(up.Forward())
	op.Key = given.Key
	result, err := idem.Send[order](t.Context(), client, op)
	require.NoError(t, err)
	require.Equal(t, 201, result.StatusCode)
	require.True(t, result.Replayed)
	require.Equal(t, 1, api.Executions())
	require.Len(t, api.Ledger("acme"), 1)
}

func TestFinishedOperationWithAnotherBodyIsRefused(t *testing.T) {
	t.Parallel()
	api := servertest.Start(t)
	client, _, _ := through(t, api)
	op, err := idem.NewOperation("POST", "/payments", rub1200)
	require.NoError(t, err)
	first, err := idem.Send[order](t.Context(), client, op)
	require.NoError(t, err)

	other, err := idem.NewOperation("POST", "/payments", paymentRequest{Amount: 200, Currency: "RUB"})
	require.NoError(t, err)
	other.Key = op.Key
	_, err = idem.Send[order](t.Context(), client, other)
	conflict := asA[*idem.ConflictError](t, err)
	require.Equal(t, "IDEMPOTENCY_KEY_REUSE", conflict.Problem.Code)
	require.Equal(t, idem.Rejected, idem.OutcomeOf(err))

	again, err := idem.Send[order](t.Context(), client, op)
	require.NoError(t, err)
	require.Equal(t, first.Value, again.Value)
	require.Equal(t, 1, api.Executions())
}

func TestManyCopiesOfAnOperationAreOne(t *testing.T) {
	t.Parallel()
	api := servertest.Start(t)
	client := &idem.Client{BaseURL: api.URL, Transport: api.Transport, Header: servertest.As("acme")}
	client.Header.Set("X-Fault", "delay=50ms")
	op, err := idem.NewOperation("POST", "/payments", rub1200)
	require.NoError(t, err)

	var wg sync.WaitGroup
	results := make([]idem.Result[order], 50)
	for i := range results {
		wg.Go(func() {
			var err error
			if results[i], err = idem.Send[order](t.Context(), client, op); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, r := range results {
		require.Equal(t, results[0].Body, r.Body)
	}
	require.Equal(t, 1, api.Executions())
	require.Len(t, api.Ledger("acme"), 1)
}

func TestClientThatGivesUpEarlyFindsTheAnswerLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := servertest.StartInMemory(t, refserver.Config{})
		client := func(policy idem.RetryPolicy) *idem.Client {
			header := servertest.As("acme")
			header.Set("X-Fault", "delay=200ms")
			return &idem.Client{BaseURL: api.URL, Transport: api.Transport, Header: header, Retry: policy}
		}
		op, err := idem.NewOperation("POST", "/payments", rub1200)
		require.NoError(t, err)
		_, err = idem.Send[order](t.Context(), client(idem.RetryPolicy{MaxAttempts: 1, AttemptTimeout: 50 * time.Millisecond}), op)
		require.Equal(t, idem.Unknown, idem.OutcomeOf(err))

		result, err := idem.Send[order](t.Context(), client(idem.RetryPolicy{}), op)
		require.NoError(t, err)
		require.True(t, result.Replayed)
		require.Equal(t, 1, api.Executions(), "hanging up did not cancel the work")
	})
}
