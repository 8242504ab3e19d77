package idem_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
)

// speaking returns a client for s that retries at once and speaks d.
func speaking(s *faultnet.Server, d *idem.Dialect) *idem.Client {
	client := quick(s)
	client.Dialect = d
	return client
}

func TestIETFQuotesTheKey(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	client := speaking(srv, idem.IETF)
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

func TestQuotesAreTheCallersOwnOutsideAQuotingDialect(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	req := newRequest(t, "POST", srv.URL, paymentJSON)
	req.Header.Set("Idempotency-Key", `"mine"`)
	_, err := quick(srv).Do(req)
	require.NoError(t, err)
	require.Equal(t, `"mine"`, srv.Keys()[0])
}

func TestIETFTakes409ForInProgressAnd422ForReuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(409, "Retry-After: 2"), status(409), ok201())
		result, err := post(t, speaking(srv, idem.IETF))
		require.NoError(t, err)
		require.Equal(t, 3, result.Attempts)
		require.Equal(t, []time.Duration{0, 2 * time.Second, 2250 * time.Millisecond}, arrivals())
	})
	for code, want := range map[string]idem.Outcome{"RESPONSE_NOT_KEPT": idem.Done, "OPERATION_INDETERMINATE": idem.Unknown} {
		srv := faultnet.Serve(t, problem(409, `{"code":"`+code+`"}`))
		_, err := post(t, speaking(srv, idem.IETF))
		require.Equal(t, 409, asA[*idem.ConflictError](t, err).StatusCode)
		require.Equal(t, want, idem.OutcomeOf(err))
	}
	srv := faultnet.Serve(t, faultnet.Steps(
		problem(422, `{"code":"IDEMPOTENCY_KEY_REUSE"}`), problem(422, `{"code":"CARD_EXPIRED"}`), problem(400, `{"title":"Idempotency-Key is missing"}`),
	))
	client := speaking(srv, idem.IETF)
	_, err := post(t, client)
	require.Equal(t, 422, asA[*idem.ConflictError](t, err).StatusCode)
	_, err = post(t, client)
	require.Equal(t, "CARD_EXPIRED", asA[*idem.StatusError](t, err).Problem.Code)
	_, err = post(t, client)
	require.Equal(t, 400, asA[*idem.StatusError](t, err).StatusCode)
	require.Equal(t, idem.Rejected, idem.OutcomeOf(err))
	require.Len(t, srv.Requests(), 3)
}

func TestKeyGoesIntoAFieldOfAnyName(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Steps(status(503), ok201()))
	client := speaking(srv, &idem.Dialect{KeyField: "x-acme-once"})
	result, err := post(t, client)
	require.NoError(t, err)
	for _, r := range srv.Requests() {
		require.Equal(t, []string{string(result.Key)}, r.Header["X-Acme-Once"])
		require.NotContains(t, strings.ToLower(r.Head), "idempotency-key")
	}
}

func TestKeyGoesIntoTheBody(t *testing.T) {
	t.Parallel()
	inBody := &idem.Dialect{Name: "Acme", KeyMember: "idempotency_key"}
	for body, want := range map[string]string{
		`{"amount":1200}`:                  `{"idempotency_key":"mine","amount":1200}`,
		"{ }":                              `{"idempotency_key":"mine" }`,
		" \n{\"a\" : 1.50 }":               " \n{\"idempotency_key\":\"mine\",\"a\" : 1.50 }",
		"":                                 `{"idempotency_key":"mine"}`,
		`{"a":1,"idempotency_key":"mine"}`: `{"a":1,"idempotency_key":"mine"}`,
	} {
		srv := faultnet.Serve(t, faultnet.Steps(status(503), ok201()))
		op := idem.Operation{Key: "mine", Method: "POST", URL: "/payments", Body: []byte(body)}
		_, err := idem.Send[payment](t.Context(), speaking(srv, inBody), op)
		require.NoError(t, err)
		require.Equal(t, []string{want, want}, srv.Bodies())
		require.Equal(t, []string{"", ""}, srv.Keys())
		require.Equal(t, body, string(op.Body), "the operation keeps its own bytes")
	}
	srv := faultnet.Serve(t, ok201())
	for body, want := range map[string]string{
		`[1]`:                           "idem: Body: it must be a JSON object, in which Acme wants the key as idempotency_key",
		`null`:                          "idem: Body: it must be a JSON object, in which Acme wants the key as idempotency_key",
		`{"idempotency_key":"another"}`: "idem: Body: its member idempotency_key is not the key",
		`{"idempotency_key":7}`:         "idem: Body: its member idempotency_key is not the key",
	} {
		_, err := idem.Send[payment](t.Context(), speaking(srv, inBody), idem.Operation{Key: "mine", Method: "POST", URL: "/", Body: []byte(body)})
		require.EqualError(t, err, want)
	}
	require.Empty(t, srv.Requests())
}

func TestKeyGoesIntoTheQuery(t *testing.T) {
	t.Parallel()
	inQuery := &idem.Dialect{KeyParameter: "requestId"}
	for url, want := range map[string]string{
		"/payments":                "/payments?requestId=mine",
		"/payments?a=b":            "/payments?a=b&requestId=mine",
		"/payments?requestId=mine": "/payments?requestId=mine",
	} {
		srv := faultnet.Serve(t, faultnet.Steps(status(503), ok201()))
		_, err := idem.Send[payment](t.Context(), speaking(srv, inQuery), idem.Operation{Key: "mine", Method: "POST", URL: url})
		require.NoError(t, err)
		require.Equal(t, want, srv.Requests()[0].Target)
		require.Equal(t, want, srv.Requests()[1].Target)
	}
	_, err := idem.Send[payment](t.Context(), &idem.Client{Dialect: inQuery}, idem.Operation{Key: "mine", Method: "POST", URL: "http://a/?requestId=another"})
	require.EqualError(t, err, "idem: URL: its parameter requestId is not the key")
}

func TestDoKeepsAKeyThatIsAlreadyInItsPlace(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Steps(status(503), ok201()))
	client := speaking(srv, &idem.Dialect{KeyMember: "idempotency_key"})
	_, err := client.Do(newRequest(t, "POST", srv.URL, `{"idempotency_key":"theirs"}`))
	require.NoError(t, err)
	require.Equal(t, []string{`{"idempotency_key":"theirs"}`, `{"idempotency_key":"theirs"}`}, srv.Bodies())

	srv.Play(faultnet.Steps(status(503), ok201()))
	client.Dialect = &idem.Dialect{KeyParameter: "requestId"}
	_, err = client.Do(newRequest(t, "POST", srv.URL+"/?requestId=theirs", paymentJSON))
	require.NoError(t, err)
	require.Equal(t, "/?requestId=theirs", srv.Requests()[3].Target)

	srv.Play(faultnet.Steps(status(503), ok201()))
	_, err = client.Do(newRequest(t, "POST", srv.URL, paymentJSON))
	require.NoError(t, err)
	minted := strings.TrimPrefix(srv.Requests()[4].Target, "/?requestId=")
	require.NoError(t, uuid.Validate(minted))
	require.Equal(t, srv.Requests()[4].Target, srv.Requests()[5].Target)
}

func TestTimeOfTheFirstAttemptIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, status(503, "Retry-After: 5"), ok201())
		client := speaking(srv, &idem.Dialect{FirstSentField: "Repeatability-First-Sent"})
		<-time.After(time.Hour)
		_, err := post(t, client)
		require.NoError(t, err)
		for _, r := range srv.Requests() {
			require.Equal(t, []string{"Sat, 01 Jan 2000 01:00:00 GMT"}, r.Header["Repeatability-First-Sent"])
		}
		op := idem.Operation{Key: "k", Method: "POST", URL: "/", Header: http.Header{"Repeatability-First-Sent": {"Fri, 31 Dec 1999 23:59:59 GMT"}}}
		_, err = idem.Send[payment](t.Context(), client, op)
		require.NoError(t, err)
		require.Equal(t, []string{"Fri, 31 Dec 1999 23:59:59 GMT"}, srv.Requests()[2].Header["Repeatability-First-Sent"])

		op = idem.Operation{Key: "k", Method: "POST", URL: "/", Created: time.Now()}
		<-time.After(time.Minute) // a crash
		_, err = idem.Send[payment](t.Context(), client, op)
		require.NoError(t, err)
		require.Equal(t, []string{"Sat, 01 Jan 2000 01:00:05 GMT"}, srv.Requests()[3].Header["Repeatability-First-Sent"])
	})
}

func TestKeysThatTheServiceWouldNotTakeAreRefused(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	for name, tc := range map[string]struct {
		dialect idem.Dialect
		key     idem.Key
		want    string
	}{
		"too long":   {idem.Dialect{Name: "Acme", MaxKeyLength: 10}, "12345678901", "idem: Key: a key for Acme must have at most 10 bytes"},
		"too short":  {idem.Dialect{Name: "Acme", MinKeyLength: 10}, "123456789", "idem: Key: a key for Acme must have at least 10 bytes"},
		"not a UUID": {idem.Dialect{Name: "Acme", UUIDKeys: true}, "order-42", "idem: Key: a key for Acme must be a UUID"},
		"a UUID in another form": {
			idem.Dialect{Name: "Acme", UUIDKeys: true}, "urn:uuid:820f3509-aefe-84b8-8588-e53113a1b2f0", "idem: Key: a key for Acme must be a UUID",
		},
		"of other letters": {idem.Dialect{Name: "Acme", KeyAlphabet: "abc-"}, "a-b_c", `idem: Key: a key for Acme must consist of "abc-"`},
	} {
		_, err := idem.Send[payment](t.Context(), speaking(srv, &tc.dialect), idem.Operation{Key: tc.key, Method: "POST", URL: "/"})
		require.EqualError(t, err, tc.want, name)
	}
	require.Empty(t, srv.Requests())
	strict := &idem.Dialect{UUIDKeys: true, MinKeyLength: 36, MaxKeyLength: 36, KeyAlphabet: "0123456789abcdef-"}
	for _, key := range []idem.Key{idem.NewKey(), idem.DeriveKey("order", "42")} {
		_, err := idem.Send[payment](t.Context(), speaking(srv, strict), idem.Operation{Key: key, Method: "POST", URL: "/"})
		require.NoError(t, err)
	}
}

func TestRulesGiveAnswersTheirMeaning(t *testing.T) {
	t.Parallel()
	const body = `{"error":{"code":"in_use","n":7}}`
	for name, tc := range map[string]struct {
		rule    idem.Rule
		matches bool
	}{
		"status":                    {idem.Rule{Status: 418}, true},
		"another status":            {idem.Rule{Status: 419}, false},
		"class":                     {idem.Rule{Status: 4}, true},
		"another class":             {idem.Rule{Status: 5}, false},
		"value in the body":         {idem.Rule{Pointer: "/error/code", Value: "in_use"}, true},
		"number in the body":        {idem.Rule{Pointer: "/error/n", Value: "7"}, true},
		"another value":             {idem.Rule{Pointer: "/error/code", Value: "other"}, false},
		"any value":                 {idem.Rule{Pointer: "/error/code"}, true},
		"a place that is not there": {idem.Rule{Pointer: "/code"}, false},
		"field":                     {idem.Rule{Field: "should-retry", FieldValue: "false"}, true},
		"field in another case":     {idem.Rule{Field: "Should-Retry", FieldValue: "FALSE"}, true},
		"another field value":       {idem.Rule{Field: "Should-Retry", FieldValue: "true"}, false},
		"any field value":           {idem.Rule{Field: "Should-Retry"}, true},
		"a field that is not there": {idem.Rule{Field: "X-None"}, false},
		"a mark of a replay":        {idem.Rule{Replayed: true}, true},
		"all of it":                 {idem.Rule{Status: 418, Pointer: "/error/n", Value: "7", Field: "Should-Retry", Replayed: true}, true},
		"all of it but one":         {idem.Rule{Status: 418, Pointer: "/error/n", Value: "8", Field: "Should-Retry", Replayed: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.rule.Verdict = idem.VerdictExists
			srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(418, body, "Should-Retry: false", "Idempotent-Replayed: true")))
			_, err := post(t, speaking(srv, &idem.Dialect{Rules: []idem.Rule{tc.rule}}))
			require.Equal(t, tc.matches, hasA[*idem.ConflictError](err))
			require.Equal(t, tc.matches, idem.OutcomeOf(err) == idem.Done)
		})
	}
}

func TestWhatEachVerdictLeadsTo(t *testing.T) {
	t.Parallel()
	for verdict, tc := range map[idem.Verdict]struct {
		conflict bool
		outcome  idem.Outcome
		requests int
	}{
		idem.VerdictDone:       {false, idem.Done, 1},
		idem.VerdictInProgress: {false, idem.Pending, 41}, // every 250 ms for 10 s
		idem.VerdictTransient:  {false, idem.Unknown, 5},
		idem.VerdictUncertain:  {false, idem.Unknown, 1},
		idem.VerdictExists:     {true, idem.Done, 1},
		idem.VerdictKeyReused:  {true, idem.Rejected, 1},
		idem.VerdictRejected:   {false, idem.Rejected, 1},
		idem.VerdictExpired:    {true, idem.Expired, 1},
	} {
		t.Run(fmt.Sprint(verdict), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv, arrivals := timeline(t, status(418))
				client := speaking(srv, &idem.Dialect{Rules: []idem.Rule{{Status: 418, Verdict: verdict}}})
				client.Retry.MaxWait = 10 * time.Second
				_, err := post(t, client)
				require.Equal(t, tc.outcome, idem.OutcomeOf(err))
				require.Equal(t, tc.conflict, hasA[*idem.ConflictError](err))
				require.Len(t, arrivals(), tc.requests)
			})
		})
	}
}

func TestReplayOfAFailureIsFinal(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]idem.Outcome{500: idem.Unknown, 503: idem.Unknown, 429: idem.Rejected, 202: idem.Done} {
		srv := faultnet.Serve(t, status(code, "Idempotent-Replayed: true", "Retry-After: 1"))
		_, err := post(t, quick(srv))
		require.Equal(t, want, idem.OutcomeOf(err), code)
		require.Len(t, srv.Requests(), 1)
	}
}

func TestHintsAreWaitedFor(t *testing.T) {
	t.Parallel()
	hints := []idem.Hint{{Pointer: "/retry_after", Unit: time.Millisecond}, {Field: "Retry-After-Ms", Unit: time.Millisecond}}
	for name, tc := range map[string]struct {
		answer string
		want   time.Duration
	}{
		"in the body":           {faultnet.Answer(500, `{"retry_after":1800}`), 1800 * time.Millisecond},
		"as a text in the body": {faultnet.Answer(503, `{"retry_after":"1800.5"}`), 1800500 * time.Microsecond},
		"in a field":            {faultnet.Answer(503, "", "Retry-After-Ms: 700"), 700 * time.Millisecond},
		"the longest":           {faultnet.Answer(503, `{"retry_after":1}`, "Retry-After: 2", "Retry-After-Ms: 700"), 2 * time.Second},
		"of progress":           {faultnet.Answer(202, `{"retry_after":1800}`, "Retry-After: 1"), 1800 * time.Millisecond},
		"negative":              {faultnet.Answer(503, `{"retry_after":-5}`), 0},
		"not a number":          {faultnet.Answer(503, `{"retry_after":"soon"}`, "Retry-After-Ms: NaN"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv, arrivals := timeline(t, faultnet.Reply(tc.answer), ok201())
				_, err := post(t, speaking(srv, &idem.Dialect{Hints: hints}))
				require.NoError(t, err)
				require.Equal(t, []time.Duration{0, tc.want}, arrivals())
			})
		})
	}
	srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(503, `{"retry_after":1e300}`)))
	_, err := post(t, speaking(srv, &idem.Dialect{Hints: hints}))
	require.Equal(t, idem.ReasonRetryAfter, asA[*idem.IncompleteError](t, err).Reason)
}

func TestRuleSaysHowLongToWaitIfTheAnswerDoesNot(t *testing.T) {
	t.Parallel()
	for verdict, name := range map[idem.Verdict]string{idem.VerdictInProgress: "in progress", idem.VerdictTransient: "transient"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv, arrivals := timeline(t, status(409), status(409, "Retry-After: 2"), ok201())
				_, err := post(t, speaking(srv, &idem.Dialect{Rules: []idem.Rule{{Status: 409, Verdict: verdict, Wait: 30 * time.Second}}}))
				require.NoError(t, err)
				require.Equal(t, []time.Duration{0, 30 * time.Second, 32 * time.Second}, arrivals())
			})
		})
	}
}

func TestKeyIsNotUsedBeyondItsLifetime(t *testing.T) {
	t.Parallel()
	short := &idem.Dialect{KeyLifetime: time.Hour}
	t.Run("by a retry", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			srv, arrivals := timeline(t, status(503, "Retry-After: 1500"))
			client := speaking(srv, short)
			client.Retry.MaxRetryAfter, client.Retry.MaxElapsed = idem.NoLimit, idem.NoLimit
			_, err := post(t, client)
			require.Equal(t, idem.ReasonExpired, asA[*idem.IncompleteError](t, err).Reason)
			require.Equal(t, idem.Expired, idem.OutcomeOf(err))
			require.Equal(t, []time.Duration{0, 1500 * time.Second, 3000 * time.Second}, arrivals())
		})
	})
	t.Run("after a crash", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			srv, arrivals := timeline(t, ok201())
			op, err := idem.NewOperation("POST", "/payments", rub1200)
			require.NoError(t, err)
			stored, err := json.Marshal(op)
			require.NoError(t, err)
			<-time.After(time.Hour)
			require.NoError(t, json.Unmarshal(stored, &op))
			_, err = idem.Send[payment](t.Context(), speaking(srv, short), op)
			require.Equal(t, idem.Expired, idem.OutcomeOf(err))
			require.ErrorContains(t, err, "look up whether it happened, do not send it again")
			require.Empty(t, arrivals())

			op.Created = time.Time{} // of an age that nobody knows
			_, err = idem.Send[payment](t.Context(), speaking(srv, short), op)
			require.NoError(t, err)
		})
	})
}

func TestOperationInProgressIsWatchedUnderItsStatusURL(t *testing.T) {
	t.Parallel()
	watching := &idem.Dialect{
		StatusField: "Location",
		Rules:       []idem.Rule{{Pointer: "/status", Value: "running", Verdict: idem.VerdictInProgress}},
	}
	accepted := faultnet.Reply(faultnet.Answer(202, `{"operation_id":"op_1"}`, "Location: /operations/op_1?view=full", "Retry-After: 1"))
	running := faultnet.Reply(faultnet.Answer(200, `{"status":"running"}`, "Retry-After: 2"))
	done := faultnet.Reply(faultnet.Answer(200, created))
	client := func(srv *faultnet.Server) *idem.Client {
		c := speaking(srv, watching)
		c.Header = http.Header{"Authorization": {"Bearer sk_7"}}
		return c
	}
	t.Run("until it is done", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			srv, arrivals := timeline(t, accepted, running, status(503), done)
			result, err := post(t, client(srv))
			require.NoError(t, err)
			require.Equal(t, "p1", result.Value.ID)
			require.Equal(t, []time.Duration{0, time.Second, 3 * time.Second, 3 * time.Second}, arrivals())
			for _, r := range srv.Requests()[1:] {
				require.Equal(t, "GET", r.Method)
				require.Equal(t, "/operations/op_1?view=full", r.Target)
				require.Empty(t, r.Body)
				require.Empty(t, r.Key())
				require.NotContains(t, r.Header, "Content-Type")
				require.Equal(t, "Bearer sk_7", r.Header.Get("Authorization"))
			}
		})
	})
	t.Run("though it is not known at first", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			srv, arrivals := timeline(t, accepted, status(404), status(404), done)
			result, err := post(t, client(srv))
			require.NoError(t, err)
			require.Equal(t, "p1", result.Value.ID)
			require.Equal(t, []time.Duration{0, time.Second, 1250 * time.Millisecond, 1500 * time.Millisecond}, arrivals())
		})
	})
	t.Run("also beyond the lifetime of the key, which it does without", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			srv, arrivals := timeline(t, accepted, running, done)
			c := client(srv)
			forgetful := *watching
			forgetful.KeyLifetime = 2 * time.Second
			c.Dialect = &forgetful
			_, err := post(t, c)
			require.NoError(t, err)
			require.Equal(t, []time.Duration{0, time.Second, 3 * time.Second}, arrivals())
		})
	})
	for name, lost := range map[string][]faultnet.Action{
		"and sent again if it stays unknown": slices.Repeat([]faultnet.Action{status(404)}, 5), // after 1 s, and every 250 ms until 2 s
		"and sent again if it is gone":       {status(410)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv, _ := timeline(t, append(append([]faultnet.Action{accepted}, lost...), ok201())...)
				result, err := post(t, client(srv))
				require.NoError(t, err)
				require.Equal(t, "p1", result.Value.ID)
				requests := srv.Requests()
				require.Equal(t, "GET", requests[len(requests)-2].Method)
				last := requests[len(requests)-1]
				require.Equal(t, "POST", last.Method)
				require.Equal(t, string(result.Key), last.Key())
				require.Equal(t, requests[0].Body, last.Body)
			})
		})
	}
	for name, answers := range map[string][]faultnet.Action{
		"but not on another host": {
			faultnet.Reply(faultnet.Answer(202, "", "Location: http://evil.test/operations/op_1", "Retry-After: 1")), ok201(),
		},
		"but not under what is no URL": {faultnet.Reply(faultnet.Answer(202, "", "Location: http://%zz", "Retry-After: 1")), ok201()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv, arrivals := timeline(t, answers...)
				_, err := post(t, client(srv))
				require.Equal(t, idem.ReasonStatusURL, asA[*idem.IncompleteError](t, err).Reason)
				require.LessOrEqual(t, arrivals()[len(arrivals())-1], 3*time.Second)
				for _, r := range srv.Requests() {
					require.Contains(t, []string{"/payments", "/operations/op_1?view=full"}, r.Target)
				}
			})
		})
	}
	t.Run("and otherwise by sending again", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			srv, _ := timeline(t, accepted, ok201())
			_, err := post(t, quick(srv))
			require.NoError(t, err)
			require.Len(t, srv.Bodies()[1], len(paymentJSON))
		})
	})
}

func TestEveryDialectsRequestMayBeRepeatedByTheTransport(t *testing.T) {
	t.Parallel()
	for _, d := range []idem.Dialect{{}, {KeyField: "X-Acme-Once"}, {KeyMember: "key"}, {KeyParameter: "key"}} {
		srv := faultnet.Serve(t, faultnet.Steps(ok201(), faultnet.Close(), ok201()))
		client := speaking(srv, &d)
		client.Retry.MaxAttempts = 1
		for range 2 { // the second time on a connection that the server closes
			_, err := post(t, client)
			require.NoError(t, err)
		}
		requests := srv.Requests()
		require.Len(t, requests, 3)
		require.Equal(t, requests[1].Head, requests[2].Head)
		require.Equal(t, requests[1].Body, requests[2].Body)
		require.NotContains(t, requests[0].Head, "X-Idempotency-Key")
	}
}

func TestTransportWithoutKeepAliveSendsExactlyOnce(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Steps(ok201(), faultnet.Close(), ok201()))
	srv.Transport.DisableKeepAlives = true
	client := quick(srv)
	client.Retry.MaxAttempts = 1
	_, err := post(t, client)
	require.NoError(t, err)
	_, err = post(t, client)
	require.Equal(t, idem.ReasonAttempts, asA[*idem.IncompleteError](t, err).Reason)
	require.Len(t, srv.Requests(), 2)
}
