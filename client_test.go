package idem_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jarcoal/httpmock"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
)

func TestPostSendsTheMintedKeyOnEveryAttempt(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Steps(status(503), status(503), ok201()))
	result, err := post(t, quick(srv))
	require.NoError(t, err)
	require.Equal(t, payment{ID: "p1"}, result.Value)
	require.Equal(t, 201, result.StatusCode)
	require.Equal(t, 3, result.Attempts)
	require.False(t, result.Replayed)

	id, err := uuid.Parse(string(result.Key))
	require.NoError(t, err)
	require.Equal(t, uuid.Version(4), id.Version())
	key := string(result.Key)
	require.Equal(t, []string{key, key, key}, srv.Keys())
}

func TestKeyIsTheSameWhileTheServerIsStillWorking(t *testing.T) {
	t.Parallel()
	progress := status(202, "Retry-After: 0")
	srv := faultnet.Serve(t, faultnet.Steps(progress, progress, ok201()))
	result, err := post(t, quick(srv))
	require.NoError(t, err)
	require.Equal(t, 201, result.StatusCode)
	key := string(result.Key)
	require.Equal(t, []string{key, key, key}, srv.Keys())
}

func TestKeyOfTheCallerIsKept(t *testing.T) {
	t.Parallel()
	const own = "order-42-pay"
	for name, set := range map[string]func(http.Header){
		"canonical":  func(h http.Header) { h.Set("Idempotency-Key", own) },
		"lower case": func(h http.Header) { h["idempotency-key"] = []string{own} },
		"shouted":    func(h http.Header) { h["IDEMPOTENCY-KEY"] = []string{own} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, faultnet.Steps(status(503), status(503), status(200)))
			req := newRequest(t, "POST", srv.URL, paymentJSON)
			set(req.Header)
			before := req.Header.Clone()
			_, err := quick(srv).Do(req)
			require.NoError(t, err)
			require.Equal(t, []string{own, own, own}, srv.Keys())
			for _, r := range srv.Requests() {
				require.Equal(t, 1, strings.Count(strings.ToLower(r.Head), "idempotency-key:"))
			}
			require.Equal(t, before, req.Header, "the caller's fields are his")
		})
	}
}

func TestWhichRequestsGetAKey(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		method string
		field  any // what the caller puts into Idempotency-Key
		want   string
	}{
		{"POST", nil, "a new one"},
		{"PATCH", nil, "a new one"},
		{"post", nil, "a new one"},
		{"PUT", nil, ""},
		{"DELETE", nil, ""},
		{"PUT", []string{"mine"}, "mine"},
		{"DELETE", []string{"mine"}, "mine"},
		{"POST", []string{"mine"}, "mine"},
		{"POST", []string(nil), ""},
		{"GET", nil, ""},
		{"HEAD", nil, ""},
		{"OPTIONS", nil, ""},
	} {
		t.Run(fmt.Sprintf("%s with %v", tc.method, tc.field), func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, status(200))
			req := newRequest(t, tc.method, srv.URL, "")
			if field, ok := tc.field.([]string); ok {
				req.Header["Idempotency-Key"] = field
			}
			resp, err := quick(srv).Do(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			key := srv.Keys()[0]
			if tc.want == "a new one" {
				require.NoError(t, uuid.Validate(key))
				return
			}
			require.Equal(t, tc.want, key)
		})
	}
}

func TestKeyFieldThatIsNoKeyIsRefused(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	for name, tc := range map[string]struct {
		lines []string
		want  string
	}{
		"two lines": {[]string{"a", "b"}, "idem: Idempotency-Key: the field has 2 values; set one"},
		"empty":     {[]string{""}, "idem: Key: the key is empty; mint one with NewKey or DeriveKey"},
		"too long":  {[]string{strings.Repeat("k", 256)}, "idem: Key: the key has 256 bytes, at most 255 are allowed; mint one with NewKey or DeriveKey"},
	} {
		req := newRequest(t, "POST", srv.URL, paymentJSON)
		req.Header["Idempotency-Key"] = tc.lines
		_, err := quick(srv).Do(req)
		require.EqualError(t, err, tc.want, name)
		require.Equal(t, idem.NotSent, idem.OutcomeOf(err))
	}
	require.Empty(t, srv.Requests())
}

func TestKeyInTheClientsHeaderIsAConfigurationError(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	for _, name := range []string{"Idempotency-Key", "idempotency-key"} {
		client := quick(srv)
		client.Header = http.Header{name: {"k1"}}
		_, err := post(t, client)
		require.EqualError(t, err, "idem: Client.Header: it holds a key field with 1 values; a key belongs to one operation, not to a client")
		_, err = client.Do(newRequest(t, "POST", srv.URL, paymentJSON))
		require.Equal(t, "Client.Header", asA[*idem.UsageError](t, err).Field)
	}
	require.Empty(t, srv.Requests())
}

func TestKeyInAnOperationsHeaderIsRefused(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	op, err := idem.NewOperation("POST", "/payments", rub1200)
	require.NoError(t, err)
	op.Header.Set("Idempotency-Key", "another")
	_, err = idem.Send[payment](t.Context(), quick(srv), op)
	require.Equal(t, "Operation.Header", asA[*idem.UsageError](t, err).Field)
	require.Empty(t, srv.Requests())
}

func TestTwoOperationsNeverShareAKey(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	client := quick(srv)
	ctx := context.WithValue(t.Context(), http.ServerContextKey, "the same context")
	first, err := idem.Post[payment](ctx, client, "/payments", paymentRequest{Amount: 100})
	require.NoError(t, err)
	second, err := idem.Post[payment](ctx, client, "/payments", paymentRequest{Amount: 200})
	require.NoError(t, err)
	require.NotEqual(t, first.Key, second.Key)
	require.Equal(t, []string{string(first.Key), string(second.Key)}, srv.Keys())
}

func TestSuccessAfterFailuresIsASuccess(t *testing.T) {
	t.Parallel()
	other := faultnet.Answer(201, `{"id":"other"}`, "X-Old: 1")
	for name, steps := range map[string][]faultnet.Action{
		"unavailable, reset, created": {
			faultnet.Reply(faultnet.Answer(503, "old", "X-Old: 1", "Retry-After: 0", "Connection: close")), faultnet.Reset(), ok201(),
		},
		"in progress, unavailable, created": {status(202, "Retry-After: 0", "X-Old: 1"), status(503, "X-Old: 1"), ok201()},
		"cut, cut in the head, created": {
			faultnet.Cut(other, len(other)-1), faultnet.Cut(other, 9), ok201(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, faultnet.Steps(steps...))
			result, err := post(t, quick(srv))
			require.NoError(t, err)
			require.Equal(t, 201, result.StatusCode)
			require.Equal(t, 3, result.Attempts)
			sameBytes(t, created, result.Body)
			require.Equal(t, payment{ID: "p1"}, result.Value)
			require.Empty(t, result.Header.Values("X-Old"), "nothing of an earlier answer is left")
			require.Empty(t, result.Header.Values("Retry-After"))
		})
	}
}

func TestConflictIsFinal(t *testing.T) {
	t.Parallel()
	const reuse = `{"type":"https://example.com/reuse","title":"Key reused","status":409,"code":"IDEMPOTENCY_KEY_REUSE","detail":"other amount"}`
	for name, tc := range map[string]struct {
		steps    []faultnet.Action
		requests int
	}{
		"at once":                    {[]faultnet.Action{problem(409, reuse)}, 1},
		"even with Retry-After":      {[]faultnet.Action{problem(409, reuse, "Retry-After: 1")}, 1},
		"after a failure and a poll": {[]faultnet.Action{status(503), status(202, "Retry-After: 0"), problem(409, reuse)}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, faultnet.Steps(tc.steps...))
			result, err := post(t, quick(srv))
			conflict := asA[*idem.ConflictError](t, err)
			require.Len(t, srv.Requests(), tc.requests)
			require.Equal(t, 409, conflict.StatusCode)
			require.JSONEq(t, reuse, string(conflict.Body))
			require.Equal(t, srv.Keys()[0], string(conflict.Key))
			require.Equal(t, tc.requests, conflict.Attempts)
			require.Equal(t, "IDEMPOTENCY_KEY_REUSE", conflict.Problem.Code)
			require.Equal(t, "other amount", conflict.Problem.Detail)
			require.Equal(t, conflict.Response, result.Response)
		})
	}
}

func TestDoReturnsEveryFinalAnswerButAConflict(t *testing.T) {
	t.Parallel()
	for _, code := range []int{200, 201, 204, 301, 303, 304, 307, 400, 401, 403, 404, 410, 413, 422, 423, 501, 505} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, status(code, "X-Mark: 1", "Location: /elsewhere"))
			resp, err := quick(srv).Do(newRequest(t, "POST", srv.URL, paymentJSON))
			require.NoError(t, err)
			require.Equal(t, code, resp.StatusCode)
			require.Equal(t, "1", resp.Header.Get("X-Mark"))
			require.Len(t, srv.Requests(), 1)
		})
	}
	srv := faultnet.Serve(t, status(409))
	resp, err := quick(srv).Do(newRequest(t, "POST", srv.URL, paymentJSON))
	require.Nil(t, resp)
	require.Equal(t, 409, asA[*idem.ConflictError](t, err).StatusCode)
}

func TestSendTurnsAFinalFailureIntoAStatusError(t *testing.T) {
	t.Parallel()
	for _, code := range []int{301, 307, 400, 401, 403, 404, 422, 501} {
		srv := faultnet.Serve(t, problem(code, `{"title":"No","code":"NOPE","detail":"not like this","limit":5}`))
		result, err := post(t, quick(srv))
		e := asA[*idem.StatusError](t, err)
		require.Equal(t, code, e.StatusCode)
		require.Equal(t, &idem.Problem{Title: "No", Code: "NOPE", Detail: "not like this", Members: map[string]any{"limit": 5.0}}, e.Problem)
		require.Equal(t, result.Key, e.Key)
		require.EqualError(t, err, fmt.Sprintf("idem: POST %s/payments: %d %s: NOPE: No: not like this (key %s)", srv.URL, code, http.StatusText(code), e.Key))
		require.Len(t, srv.Requests(), 1)
	}
}

func TestAcceptedIsFinalUnlessItAsksToWait(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]faultnet.Action{
		"without Retry-After":        faultnet.Reply(faultnet.Answer(202, created)),
		"with the mark of a replay":  faultnet.Reply(faultnet.Answer(202, created, "Retry-After: 1", "Idempotent-Replayed: true")),
		"with another's mark of one": faultnet.Reply(faultnet.Answer(202, created, "Retry-After: 1", "X-Idempotency-Replayed: 1")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, answer)
			result, err := post(t, quick(srv))
			require.NoError(t, err)
			require.Equal(t, 202, result.StatusCode)
			require.Equal(t, "p1", result.Value.ID)
			require.Len(t, srv.Requests(), 1)
		})
	}
}

func TestReplayIsRecognisedInItsKnownSpellings(t *testing.T) {
	t.Parallel()
	for _, field := range []string{
		"Idempotent-Replayed: true", "idempotent-replayed: TRUE", "Idempotency-Replayed: true", "X-Idempotency-Replayed: true",
		"X-Idempotent-Replayed: 1", "Idempotency-Replay: ?1", "Idempotent-Replay: true",
	} {
		srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(201, created, field)))
		result, err := post(t, quick(srv))
		require.NoError(t, err)
		require.True(t, result.Replayed, field)
	}
	for _, field := range []string{"Idempotent-Replayed: false", "Idempotent-Replayed:", "X-Replayed: true"} {
		srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(201, created, field)))
		result, err := post(t, quick(srv))
		require.NoError(t, err)
		require.False(t, result.Replayed, field)
	}
}

func TestErrorPageOfAProxyDoesNotHideTheStatus(t *testing.T) {
	t.Parallel()
	const page = "<html>Bad gateway</html>"
	badGateway := faultnet.Reply(faultnet.Answer(502, page, "Content-Type: text/html"))

	srv := faultnet.Serve(t, faultnet.Steps(badGateway, ok201()))
	result, err := post(t, quick(srv))
	require.NoError(t, err)
	require.Equal(t, 2, result.Attempts)

	srv = faultnet.Serve(t, badGateway)
	_, err = post(t, quick(srv))
	given := asA[*idem.IncompleteError](t, err)
	require.Equal(t, 502, given.Response.StatusCode)
	require.Equal(t, page, string(given.Response.Body))
	require.NotContains(t, err.Error(), page)

	srv = faultnet.Serve(t, faultnet.Reply(faultnet.Answer(200, "<html>Log in to the hotel</html>", "Content-Type: text/html")))
	_, err = post(t, quick(srv))
	decode := asA[*idem.DecodeError](t, err)
	require.Equal(t, 200, decode.StatusCode)
	require.Equal(t, "text/html", decode.Header.Get("Content-Type"))
	require.Contains(t, err.Error(), `cannot decode the answer 200 of type "text/html": invalid character '<'`)
	require.Len(t, srv.Requests(), 1)
}

func TestAnswerIsDecodedIntoWhatTheCallerAskedFor(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	asBytes, err := idem.Post[[]byte](t.Context(), quick(srv), "/payments", rub1200)
	require.NoError(t, err)
	sameBytes(t, created, asBytes.Value)
	asString, err := idem.Post[string](t.Context(), quick(srv), "/payments", rub1200)
	require.NoError(t, err)
	require.Equal(t, string(asBytes.Value), asString.Value)
	asMap, err := idem.Post[map[string]any](t.Context(), quick(srv), "/payments", rub1200)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"id": "p1"}, asMap.Value)

	srv.Play(faultnet.Reply("HTTP/1.1 204 No Content\r\n\r\n"))
	nothing, err := post(t, quick(srv))
	require.NoError(t, err)
	require.Zero(t, nothing.Value)
}

func TestAnswerBeyondMaxResponseBytesIsDoneButNotReturned(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(201, strings.Repeat("x", 101))))
	client := quick(srv)
	client.MaxResponseBytes = 100
	_, err := post(t, client)
	require.EqualError(t, asA[*idem.DecodeError](t, err).Err, "it is larger than 100 bytes")
	require.Equal(t, idem.Done, idem.OutcomeOf(err))
	_, err = client.Do(newRequest(t, "POST", srv.URL, paymentJSON))
	require.True(t, hasA[*idem.DecodeError](err))
	require.Len(t, srv.Requests(), 2)

	client.MaxResponseBytes = 101
	result, err := idem.Post[string](t.Context(), client, "/payments", rub1200)
	require.NoError(t, err)
	require.Len(t, result.Value, 101)
}

func TestWritesWithoutAKeyAreNotRepeatedBlindly(t *testing.T) {
	t.Parallel()
	none := func(r *http.Request) *http.Request {
		r.Header["Idempotency-Key"] = nil
		return r
	}
	t.Run("a lost answer ends it", func(t *testing.T) {
		t.Parallel()
		for _, method := range []string{"POST", "PATCH"} {
			srv := faultnet.Serve(t, faultnet.Reset())
			_, err := quick(srv).Do(none(newRequest(t, method, srv.URL, paymentJSON)))
			require.Equal(t, idem.ReasonUnkeyed, asA[*idem.IncompleteError](t, err).Reason)
			require.Equal(t, idem.Unknown, idem.OutcomeOf(err))
			require.Len(t, srv.Requests(), 1)
		}
	})
	t.Run("a connection that was never made is tried again", func(t *testing.T) {
		t.Parallel()
		srv := faultnet.Serve(t, ok201())
		client := quick(srv)
		client.Transport = refuseFirst(srv.Transport, 2)
		resp, err := client.Do(none(newRequest(t, "POST", srv.URL, paymentJSON)))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 201, resp.StatusCode)
		require.Equal(t, []string{paymentJSON}, srv.Bodies())
	})
	t.Run("a transient status is the answer", func(t *testing.T) {
		t.Parallel()
		for _, method := range []string{"POST", "PATCH"} {
			srv := faultnet.Serve(t, status(503))
			resp, err := quick(srv).Do(none(newRequest(t, method, srv.URL, paymentJSON)))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 503, resp.StatusCode)
			require.Len(t, srv.Requests(), 1)
		}
	})
	t.Run("idempotent methods are repeated", func(t *testing.T) {
		t.Parallel()
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE"} {
			srv := faultnet.Serve(t, faultnet.Steps(status(503), faultnet.Reset(), status(200)))
			resp, err := quick(srv).Do(newRequest(t, method, srv.URL, ""))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 200, resp.StatusCode)
			require.Len(t, srv.Requests(), 3)
		}
	})
	t.Run("a body that is gone is not repeated", func(t *testing.T) {
		t.Parallel()
		srv := faultnet.Serve(t, faultnet.Steps(faultnet.Reset(), status(200)))
		req, err := http.NewRequestWithContext(t.Context(), "PUT", srv.URL, io.MultiReader(strings.NewReader(paymentJSON)))
		require.NoError(t, err)
		_, err = quick(srv).Do(req)
		require.Equal(t, idem.ReasonUnkeyed, asA[*idem.IncompleteError](t, err).Reason)
		require.Equal(t, []string{paymentJSON}, srv.Bodies())
	})
}

func TestBodiesOfRequestsWithoutAKeyAreNotBuffered(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Trickle("HTTP/1.1 200 OK\r\n\r\n", 16<<10, 10*time.Millisecond))
	client := quick(srv)
	client.Retry.AttemptTimeout = 200 * time.Millisecond // the stream goes on beyond it
	resp, err := client.Do(newRequest(t, "GET", srv.URL, ""))
	require.NoError(t, err)
	n, err := io.CopyN(io.Discard, resp.Body, 1<<20)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, n)
	require.NoError(t, resp.Body.Close())
}

func TestOperationsDoNotShareStateOrBuffers(t *testing.T) {
	t.Parallel()
	const workers, each = 64, 50
	var mu sync.Mutex
	seen := map[string][]string{} // by key: attempt and body
	bank := faultnet.Handle(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key := r.Header.Get("Idempotency-Key")
		mu.Lock()
		seen[key] = append(seen[key], r.Header.Get("X-Attempt")+" "+string(body))
		n := len(seen[key])
		mu.Unlock()
		if n < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Write(body)
	}))
	bank.MaxIdleConnsPerHost = workers
	client := &idem.Client{
		BaseURL: "http://bank.test",
		Retry:   idem.RetryPolicy{NewBackOff: at(0), Budget: unlimited()},
		Trace: idem.Trace{AttemptStart: func(ctx context.Context, a idem.Attempt) context.Context {
			return context.WithValue(ctx, attemptNumber{}, a.Number)
		}},
		Transport: markAttempt(bank),
	}
	shared := http.Header{"X-Tenant": {"acme"}}
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for i := range each {
				body := fmt.Sprintf(`{"n":%d}`, worker*each+i)
				req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://bank.test/", strings.NewReader(body))
				req.Header = shared
				resp, err := client.Do(req)
				if !errors.Is(err, nil) {
					t.Error(err)
					return
				}
				if answer, _ := io.ReadAll(resp.Body); string(answer) != body {
					t.Errorf("sent %s, the answer is to %s", body, answer)
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, workers*each)
	bodies := map[string]bool{}
	for _, attempts := range seen {
		_, body, _ := strings.Cut(attempts[0], " ")
		require.Equal(t, []string{"1 " + body, "2 " + body, "3 " + body}, attempts)
		bodies[body] = true
	}
	require.Len(t, bodies, workers*each)
	require.Equal(t, http.Header{"X-Tenant": {"acme"}}, shared)
}

type attemptNumber struct{}

// markAttempt is a transport that breaks the rule not to touch the request.
func markAttempt(next http.RoundTripper) http.RoundTripper {
	return roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		r.Header.Add("X-Attempt", fmt.Sprint(r.Context().Value(attemptNumber{})))
		return next.RoundTrip(r)
	})
}

type roundTripperFunc func(*http.Request) (*http.Response, error)

func (f roundTripperFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestHooksCanReadEverythingWhenThereIsNoAnswer(t *testing.T) {
	t.Parallel()
	var r recorder
	client := &idem.Client{Trace: r.trace(), Retry: idem.RetryPolicy{NewBackOff: at(0), MaxAttempts: 2}}
	_, err := idem.Post[payment](t.Context(), client, closedPort(t)+"/payments?token=tok_live_9", rub1200)
	require.Error(t, err)

	require.Len(t, r.done, 2)
	for i, a := range r.done {
		require.Equal(t, i+1, a.Number)
		require.Equal(t, "POST", a.Method)
		require.Regexp(t, `^http://127\.0\.0\.1:\d+/payments$`, a.URL)
		require.Zero(t, a.Status)
		require.Empty(t, a.Header.Get("Retry-After"))
		require.ErrorContains(t, a.Err, "connection refused")
		require.Zero(t, a.Sends)
		require.Positive(t, a.Duration)
		require.Equal(t, asA[*idem.IncompleteError](t, err).Key, a.Key)
	}
	require.Len(t, r.waits, 1)
	require.Len(t, r.end, 1)
	require.Equal(t, err, r.end[0].Err)
}

func TestPanicOfAHookGoesThroughWithNothingLeftOpen(t *testing.T) {
	t.Parallel()
	boom := func(context.Context, idem.Attempt) { panic("boom") }
	start := func(context.Context, idem.Attempt) context.Context { panic("boom") }
	for name, trace := range map[string]idem.Trace{
		"OperationStart": {OperationStart: start}, "AttemptStart": {AttemptStart: start},
		"AttemptDone": {AttemptDone: boom}, "Waiting": {Waiting: boom}, "OperationDone": {OperationDone: boom},
	} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(name+" of a "+method, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left at its end
					var bodies closeCounter
					srv, _ := timeline(t, status(503), ok201())
					client := quick(srv)
					client.Trace, client.Transport = trace, bodies.of(srv.Transport)
					body := &closeRecorder{Reader: strings.NewReader(paymentJSON)}
					req, err := http.NewRequestWithContext(t.Context(), method, srv.URL, body)
					require.NoError(t, err)
					req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(paymentJSON)), nil }
					require.PanicsWithValue(t, "boom", func() { client.Do(req) })
					require.Equal(t, bodies.opened.Load(), bodies.closed.Load())
					require.True(t, body.closed.Load())
				})
			})
		}
	}
}

func TestStatusLogicOverAMockedTransport(t *testing.T) {
	t.Parallel()
	mock := httpmock.NewMockTransport()
	mock.RegisterResponder("POST", "https://api.example.com/v1/payments",
		httpmock.NewStringResponder(503, "").Then(httpmock.NewStringResponder(201, created)))
	client := &idem.Client{BaseURL: "https://api.example.com/v1/", Transport: mock, Retry: idem.RetryPolicy{NewBackOff: at(0)}}
	result, err := post(t, client)
	require.NoError(t, err)
	require.Equal(t, "p1", result.Value.ID)
	require.Equal(t, 2, mock.GetTotalCallCount())
}

func TestRelativeURLsAreAppendedToBaseURL(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ base, url, want string }{
		{"", "/payments", "/payments"},
		{"", "payments", "/payments"},
		{"/", "/payments", "/payments"},
		{"/v1", "/payments", "/v1/payments"},
		{"/v1/", "payments", "/v1/payments"},
		{"/v1", "", "/v1"},
		{"/v1", "?dry=1", "/v1?dry=1"},
		{"/v1", "/a%2Fb/../c//d/?q=%20x", "/v1/a%2Fb/../c//d/?q=%20x"},
		{"/v%2F1", "/a b", "/v%2F1/a%20b"},
	} {
		srv := faultnet.Serve(t, ok201())
		client := quick(srv)
		client.BaseURL += tc.base
		_, err := idem.Post[payment](t.Context(), client, tc.url, nil)
		require.NoError(t, err)
		require.Equal(t, tc.want, srv.Requests()[0].Target)
	}
}

func TestWrongUseIsToldBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	const zeroOrNoLimit = "it is negative; zero means the default and idem.NoLimit means no limit"
	for name, tc := range map[string]struct {
		url    string
		change func(*idem.Client)
		want   string
	}{
		"a relative URL without BaseURL": {"/payments", func(c *idem.Client) { c.BaseURL = "" }, "idem: URL: it is relative; give an absolute URL or set Client.BaseURL"},
		"a URL without a scheme":         {"//bank.test/payments", nil, `idem: URL: its scheme is ""; it must be http or https`},
		"another scheme":                 {"ftp://bank.test/", nil, `idem: URL: its scheme is "ftp"; it must be http or https`},
		"no host":                        {"http:///payments", nil, "idem: URL: it has no host"},
		"no host but a port":             {"http://:80/payments", nil, "idem: URL: it has no host"},
		"not a URL":                      {"http://user:hunter2@bank.test/%zz", nil, `idem: Operation.URL: it is not a URL: invalid URL escape "%zz"`},
		"a password with a slash":        {"/p", func(c *idem.Client) { c.BaseURL = "http://user:hunter2/3@bank.test" }, "idem: Client.BaseURL: it is not a URL: invalid port, or a password in which a / is not written as %2F"},
		"a BaseURL without a scheme":     {"/p", func(c *idem.Client) { c.BaseURL = "127.0.0.1:8080" }, "idem: Client.BaseURL: it has no scheme; begin it with https://"},
		"a BaseURL with a query":         {"/p", func(c *idem.Client) { c.BaseURL += "?token=hunter2" }, "idem: Client.BaseURL: it has a query or a fragment; give them with the URL of each operation"},
		"a BaseURL that is none":         {"/p", func(c *idem.Client) { c.BaseURL = "http://user:hunter2@%zz" }, `idem: Client.BaseURL: it is not a URL: invalid URL escape "%zz"`},
		"a field value with a newline": {
			"/p", func(c *idem.Client) { c.Header = http.Header{"X-Note": {"a\nb"}} },
			"idem: Header: a value of X-Note holds a control character such as a newline",
		},
		"a field name with a blank":   {"/p", func(c *idem.Client) { c.Header = http.Header{"X Note": {"a"}} }, `idem: Header: "X Note" is not a field name`},
		"negative MaxAttempts":        {"/p", func(c *idem.Client) { c.Retry.MaxAttempts = -1 }, "idem: RetryPolicy.MaxAttempts: " + zeroOrNoLimit},
		"negative AttemptTimeout":     {"/p", func(c *idem.Client) { c.Retry.AttemptTimeout = -1 }, "idem: RetryPolicy.AttemptTimeout: " + zeroOrNoLimit},
		"negative MaxElapsed":         {"/p", func(c *idem.Client) { c.Retry.MaxElapsed = -1 }, "idem: RetryPolicy.MaxElapsed: " + zeroOrNoLimit},
		"negative MaxRetryAfter":      {"/p", func(c *idem.Client) { c.Retry.MaxRetryAfter = -1 }, "idem: RetryPolicy.MaxRetryAfter: " + zeroOrNoLimit},
		"negative MaxWait":            {"/p", func(c *idem.Client) { c.Retry.MaxWait = -1 }, "idem: RetryPolicy.MaxWait: " + zeroOrNoLimit},
		"negative Budget":             {"/p", func(c *idem.Client) { c.Retry.Budget = &idem.Budget{Burst: -1} }, "idem: Budget.Burst: " + zeroOrNoLimit},
		"negative share of a Budget":  {"/p", func(c *idem.Client) { c.Retry.Budget = &idem.Budget{PerOperation: -1} }, "idem: Budget.PerOperation: " + zeroOrNoLimit},
		"negative refill of a Budget": {"/p", func(c *idem.Client) { c.Retry.Budget = &idem.Budget{PerSecond: -1} }, "idem: Budget.PerSecond: " + zeroOrNoLimit},
		"negative MaxResponseBytes":   {"/p", func(c *idem.Client) { c.MaxResponseBytes = -1 }, "idem: Client.MaxResponseBytes: " + zeroOrNoLimit},
	} {
		client := quick(srv)
		if tc.change != nil {
			tc.change(client)
		}
		_, err := idem.Post[payment](t.Context(), client, tc.url, rub1200)
		require.EqualError(t, err, tc.want, name)
		require.True(t, hasA[*idem.UsageError](err))
		require.Equal(t, idem.NotSent, idem.OutcomeOf(err))
		require.NotContains(t, err.Error(), "hunter2")
	}
	require.Empty(t, srv.Requests())
}

func TestSendWithoutContextOrClientIsRefused(t *testing.T) {
	t.Parallel()
	op := idem.Operation{Key: "k", Method: "POST", URL: "http://bank.test/"}
	var nobody context.Context
	_, err := idem.Send[payment](nobody, &idem.Client{}, op)
	require.EqualError(t, err, "idem: Send: it needs a context and a client; &idem.Client{} works")
	_, err = idem.Send[payment](t.Context(), nil, op)
	require.True(t, hasA[*idem.UsageError](err))
}

func TestMethodThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	for method, want := range map[string]string{
		"":       "idem: Operation.Method: it is empty; it must be an HTTP method such as POST",
		"PO ST":  "idem: Method: it must be an HTTP method such as POST",
		"POST\n": "idem: Method: it must be an HTTP method such as POST",
	} {
		op := idem.Operation{Key: "k", Method: method, URL: "/payments"}
		_, err := idem.Send[payment](t.Context(), quick(srv), op)
		require.EqualError(t, err, want)
	}
	require.Empty(t, srv.Requests())
}

func TestDoClosesTheBodyOfARequestThatIsRefused(t *testing.T) {
	t.Parallel()
	body := &closeRecorder{Reader: strings.NewReader(paymentJSON)}
	req, err := http.NewRequestWithContext(t.Context(), "POST", "ftp://bank.test/", body)
	require.NoError(t, err)
	_, err = (&idem.Client{}).Do(req)
	require.True(t, hasA[*idem.UsageError](err))
	require.True(t, body.closed.Load())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	body = &closeRecorder{Reader: strings.NewReader(paymentJSON)}
	req, err = http.NewRequestWithContext(ctx, "PUT", "http://bank.test/", body)
	require.NoError(t, err)
	_, err = (&idem.Client{}).Do(req)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, body.closed.Load())
}
