package idem_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
)

func TestOutcomeSaysWhetherTheOperationMayHaveHappened(t *testing.T) {
	t.Parallel()
	conflict := func(code string) faultnet.Action { return problem(409, `{"code":"`+code+`"}`) }
	for name, tc := range map[string]struct {
		server faultnet.Action
		want   idem.Outcome
	}{
		"done":                             {ok201(), idem.Done},
		"the answer was lost":              {faultnet.Close(), idem.Unknown},
		"unavailable on every attempt":     {status(503), idem.Unknown},
		"key used for another request":     {conflict("IDEMPOTENCY_KEY_REUSE"), idem.Rejected},
		"a conflict of the handler's own":  {status(409), idem.Rejected},
		"done, but the answer is not kept": {conflict("RESPONSE_NOT_KEPT"), idem.Done},
		"the owner was lost":               {conflict("OPERATION_INDETERMINATE"), idem.Unknown},
		"refused":                          {status(422), idem.Rejected},
		"not implemented":                  {status(501), idem.Unknown},
		"redirected":                       {status(303), idem.Unknown},
		"done, but the answer is not JSON": {faultnet.Reply(faultnet.Answer(200, "<html>")), idem.Done},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, tc.server)
			_, err := post(t, quick(srv))
			require.Equal(t, tc.want, idem.OutcomeOf(err))
			if err != nil {
				require.Equal(t, tc.want, idem.OutcomeOf(fmt.Errorf("paying: %w", err)), "also where it is wrapped")
			}
		})
	}
	require.Equal(t, idem.Done, idem.OutcomeOf(nil))
	require.Equal(t, idem.Unknown, idem.OutcomeOf(errors.New("from elsewhere")))
	require.Equal(t, idem.Unknown, idem.OutcomeOf(context.Canceled))
}

func TestOutcomeIsNotSentOnlyIfThatIsProved(t *testing.T) {
	t.Parallel()
	refused := &idem.Client{BaseURL: closedPort(t), Retry: idem.RetryPolicy{NewBackOff: at(0)}}
	_, err := post(t, refused)
	require.Equal(t, idem.NotSent, idem.OutcomeOf(err))

	srv := faultnet.Serve(t, faultnet.Close())
	client := quick(srv)
	client.Transport = refuseFirst(srv.Transport, 4)
	_, err = post(t, client)
	require.Equal(t, idem.Unknown, idem.OutcomeOf(err), "one of the attempts had a connection")

	silent := quick(srv)
	silent.Transport = roundTripperFunc(func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") })
	_, err = post(t, silent)
	require.Equal(t, idem.Unknown, idem.OutcomeOf(err), "a transport that reports no connection proves nothing")
}

func TestOutcomeIsUnknownWhenTheDeadlineEndsAnAttemptInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, faultnet.Hang())
		_, err := postFor(t, quick(srv), 50*time.Millisecond)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, idem.Unknown, idem.OutcomeOf(err))
		require.Len(t, srv.Requests(), 1)
	})
}

func TestKeyOfEveryErrorSendsTheSameOperationAgain(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]faultnet.Action{
		"conflict": status(409), "status": status(422), "incomplete": status(503), "decode": faultnet.Reply(faultnet.Answer(200, "<")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, server)
			op, err := idem.NewOperation("POST", "/payments", rub1200)
			require.NoError(t, err)
			_, err = idem.Send[payment](t.Context(), quick(srv), op)
			require.ErrorContains(t, err, "key "+string(op.Key))
			require.Equal(t, op.Key, keyOf(err))
		})
	}
}

func keyOf(err error) idem.Key {
	var conflict *idem.ConflictError
	var incomplete *idem.IncompleteError
	var status *idem.StatusError
	var decode *idem.DecodeError
	switch {
	case errors.As(err, &conflict):
		return conflict.Key
	case errors.As(err, &incomplete):
		return incomplete.Key
	case errors.As(err, &decode):
		return decode.Key
	case errors.As(err, &status):
		return status.Key
	}
	return ""
}

func TestErrorsReadWell(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Hang())
	op := idem.Operation{Key: "order-42-pay", Method: "POST", URL: "/payments"}
	send := func(server faultnet.Action, change func(*idem.Client)) error {
		srv.Play(server)
		client := quick(srv)
		if change != nil {
			change(client)
		}
		_, err := idem.Send[payment](t.Context(), client, op)
		return err
	}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{
			send(status(503), nil),
			"given up after 5 attempts: MaxAttempts is reached: 503 Service Unavailable (key order-42-pay: it may have happened, try again with the same key only)",
		},
		{
			send(faultnet.Close(), func(c *idem.Client) { c.Retry.MaxAttempts = 1 }),
			"given up after 1 attempts: MaxAttempts is reached: EOF (key order-42-pay: it may have happened, try again with the same key only)",
		},
		{
			send(status(202, "Retry-After: 600"), nil),
			"given up after 1 attempts: the operation is still in progress after MaxWait: 202 Accepted (key order-42-pay: it is in progress, ask again with the same key)",
		},
		{
			send(problem(409, `{"title":"Key reused","code":"IDEMPOTENCY_KEY_REUSE","detail":"Use a new key."}`), nil),
			"409 Conflict: IDEMPOTENCY_KEY_REUSE: Key reused: Use a new key. (key order-42-pay: rejected)",
		},
		{send(faultnet.Reply(faultnet.Answer(422, "no such card 4242")), nil), "422 Unprocessable Entity (key order-42-pay)"},
	} {
		require.EqualError(t, tc.err, "idem: POST "+srv.URL+"/payments: "+tc.want)
	}
}

func TestOutcomesAndUsageErrorsPrint(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[idem.Outcome]string{
		idem.Unknown: "unknown", idem.NotSent: "not sent", idem.Pending: "pending", idem.Rejected: "rejected", idem.Done: "done",
	} {
		require.Equal(t, want, outcome.String())
	}
	require.EqualError(t, &idem.UsageError{Field: "URL", Reason: "no", Err: errors.New("why")}, "idem: URL: no: why")
}

func TestFinalRefusalBeyondMaxResponseBytesIsStillARefusal(t *testing.T) {
	t.Parallel()
	for _, code := range []int{409, 422} {
		srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(code, strings.Repeat("x", 101))))
		client := quick(srv)
		client.MaxResponseBytes = 100
		_, err := post(t, client)
		require.Equal(t, idem.Rejected, idem.OutcomeOf(err), "%d: %v", code, err)
	}
}

func TestRefusalAtTheGateAfterALostAnswerProvesNothing(t *testing.T) {
	t.Parallel()
	for _, code := range []int{401, 403, 404, 405, 407, 413, 414, 421, 423, 426, 431} {
		srv := faultnet.Serve(t, faultnet.Steps(faultnet.Reset(), status(code)))
		_, err := post(t, quick(srv))
		require.Equal(t, idem.Unknown, idem.OutcomeOf(err), "%d: %v", code, err)

		srv = faultnet.Serve(t, status(code))
		_, err = post(t, quick(srv))
		require.Equal(t, idem.Rejected, idem.OutcomeOf(err), "%d at once: %v", code, err)
	}
}
