package idem_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/digest"
	"github.com/idemhttp/idem/internal/faultnet"
)

func TestErrorsThatNoRetryHealsEndTheOperation(t *testing.T) {
	t.Parallel()
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, created) })
	selfSigned := httptest.NewTLSServer(ok)
	t.Cleanup(selfSigned.Close)
	selfSigned.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	plain := httptest.NewServer(ok)
	t.Cleanup(plain.Close)
	mutual := httptest.NewUnstartedServer(ok)
	mutual.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	mutual.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	mutual.StartTLS()
	t.Cleanup(mutual.Close)
	otherName := selfSigned.Client().Transport.(*http.Transport).Clone()
	otherName.TLSClientConfig.ServerName = "bank.test"

	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	for name, tc := range map[string]struct {
		url       string
		transport http.RoundTripper
		kept      func(error) bool
	}{
		"unknown authority":         {selfSigned.URL, &http.Transport{}, hasA[*tls.CertificateVerificationError]},
		"another host's name":       {selfSigned.URL, otherName, hasA[x509.HostnameError]},
		"https to a plain port":     {strings.Replace(plain.URL, "http:", "https:", 1), &http.Transport{}, is(http.ErrSchemeMismatch)},
		"a certificate is demanded": {mutual.URL, mutual.Client().Transport, hasA[*net.OpError]},
		"a port that cannot be":     {"http://127.0.0.1:99999", &http.Transport{}, hasA[*net.AddrError]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := &idem.Client{BaseURL: tc.url, Transport: tc.transport}
			_, err := post(t, client)
			given := asA[*idem.IncompleteError](t, err)
			require.Equal(t, idem.ReasonPermanent, given.Reason)
			require.Len(t, given.Attempts, 1)
			require.True(t, tc.kept(err), "the original error: %v", err)
			if tr, ok := tc.transport.(*http.Transport); ok {
				tr.CloseIdleConnections()
			}
		})
	}
}

func TestErrorsThatMayPassAreRetried(t *testing.T) {
	t.Parallel()
	dnsDown := &net.DNSError{Err: "server misbehaving", Name: "bank.test", IsTemporary: true}
	for name, failure := range map[string]error{
		"refused":               &net.OpError{Op: "dial", Err: errors.New("connection refused")},
		"reset":                 &net.OpError{Op: "read", Err: errors.New("connection reset by peer")},
		"end of file":           io.EOF,
		"cut off":               io.ErrUnexpectedEOF,
		"TLS handshake timeout": timeoutError{},
		"DNS":                   dnsDown,
		"anything unknown":      errors.New("?"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			srv := faultnet.Serve(t, ok201())
			client := quick(srv)
			client.Transport = roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				if calls++; calls == 1 {
					return nil, failure
				}
				return srv.Transport.RoundTrip(r)
			})
			result, err := post(t, client)
			require.NoError(t, err)
			require.Equal(t, 2, result.Attempts)
		})
	}
}

type timeoutError struct{}

func (timeoutError) Error() string { return "net/http: TLS handshake timeout" }
func (timeoutError) Timeout() bool { return true }

func TestFailedAnswersDoNotUseUpConnections(t *testing.T) {
	t.Parallel()
	large := faultnet.Reply(faultnet.Answer(503, strings.Repeat("x", 5000)))
	srv := faultnet.Serve(t, faultnet.Steps(large, large, large, ok201()))
	srv.Transport.MaxConnsPerHost = 1
	result, err := postFor(t, quick(srv), 10*time.Second)
	require.NoError(t, err)
	require.Equal(t, 4, result.Attempts)

	srv.Play(large)
	_, err = postFor(t, quick(srv), 10*time.Second)
	require.Equal(t, idem.ReasonAttempts, asA[*idem.IncompleteError](t, err).Reason)
	srv.Play(ok201())
	_, err = postFor(t, quick(srv), 10*time.Second)
	require.NoError(t, err)
	for _, r := range srv.Requests() {
		require.Equal(t, 1, r.Conn)
	}
}

func TestEndlessErrorPageIsLeft(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		page  faultnet.Action
		after time.Duration
	}{
		"a page without end":    {faultnet.Trickle("HTTP/1.1 503 Service Unavailable\r\n\r\n", 1<<20, time.Nanosecond), 0},
		"1 KiB every 10 ms":     {faultnet.Trickle("HTTP/1.1 503 Service Unavailable\r\n\r\n", 1<<10, 10*time.Millisecond), 250 * time.Millisecond},
		"one byte every second": {faultnet.Trickle("HTTP/1.1 503 Service Unavailable\r\n\r\n", 1, time.Second), 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left at its end
				srv, arrivals := timeline(t, tc.page, ok201())
				client := quick(srv)
				result, err := post(t, client)
				require.NoError(t, err)
				require.Equal(t, 2, result.Attempts)
				require.InDelta(t, tc.after, arrivals()[1], float64(time.Millisecond))
			})
		})
	}
}

func TestGivingUpDoesNotReadAnEndlessErrorPageEither(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, faultnet.Trickle("HTTP/1.1 503 Service Unavailable\r\n\r\n", 64, time.Millisecond))
		client := quick(srv)
		client.Retry.MaxAttempts = 1
		start := time.Now()
		_, err := post(t, client)
		require.Equal(t, 250*time.Millisecond, time.Since(start))
		body := asA[*idem.IncompleteError](t, err).Response.Body
		require.NotEmpty(t, body)
		require.LessOrEqual(t, len(body), 64<<10)
	})
}

func TestNoErrorOrLogHoldsASecret(t *testing.T) {
	t.Parallel()
	secrets := []string{"hunter2", "tok_live_9", "sk_7", "frag"}
	base := strings.Replace(closedPort(t), "http://", "http://user:hunter2@", 1)
	leak := roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		inner := &url.Error{Op: "Post", URL: r.URL.String(), Err: fmt.Errorf("proxy said no to %s: %w", r.Header.Get("Authorization"), io.EOF)}
		return nil, fmt.Errorf("cannot reach %s: %w", r.URL, inner)
	})
	for name, transport := range map[string]http.RoundTripper{
		"net/http":                       &http.Transport{},
		"a transport that tells the URL": leak,
		"a transport that tells it in another error": roundTripperFunc(func(r *http.Request) (*http.Response, error) {
			return nil, &url.Error{Op: "Post", URL: r.URL.String(), Err: timeoutError{}}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			client := &idem.Client{
				Transport: transport,
				Header:    http.Header{"Authorization": {"Bearer sk_7"}},
				Retry:     idem.RetryPolicy{NewBackOff: at(0)},
				Logger:    slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			}
			target := base + "/p?token=tok_live_9#frag"
			_, sendErr := idem.Post[payment](t.Context(), client, target, rub1200)
			_, doErr := client.Do(newRequest(t, "POST", target, paymentJSON))
			_, getErr := client.Do(newRequest(t, "GET", target, ""))
			for _, err := range []error{sendErr, doErr, getErr} {
				require.Error(t, err)
				for _, secret := range secrets {
					for _, text := range append(texts(err), log.String()) {
						require.NotContains(t, text, secret)
					}
				}
				require.Contains(t, err.Error(), strings.TrimPrefix(base, "http://user:hunter2@")+"/p")
				require.Contains(t, asA[*url.Error](t, err).URL, "/p")
			}
			require.NotEmpty(t, log.String())
		})
	}
	_, err := idem.Post[payment](t.Context(), &idem.Client{Transport: leak, Retry: idem.RetryPolicy{MaxAttempts: 1}}, base+"/p?token=tok_live_9", rub1200)
	require.ErrorIs(t, err, io.EOF, "what is wrapped can still be found")
	require.ErrorContains(t, err, "REDACTED")
}

// texts returns what err and all that it wraps prints.
func texts(err error) []string {
	if err == nil {
		return nil
	}
	list := []string{err.Error(), fmt.Sprintf("%v %+v", err, err)}
	switch err := err.(type) { //nolint:errorlint // it walks the chain itself
	case interface{ Unwrap() []error }:
		for _, e := range err.Unwrap() {
			list = append(list, texts(e)...)
		}
	case interface{ Unwrap() error }:
		list = append(list, texts(err.Unwrap())...)
	}
	return list
}

func TestTimeoutOfARedactedErrorIsStillATimeout(t *testing.T) {
	t.Parallel()
	client := &idem.Client{
		Retry: idem.RetryPolicy{MaxAttempts: 1},
		Transport: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
			return nil, fmt.Errorf("%s: %w", r.URL, timeoutError{})
		}),
	}
	_, err := idem.Post[payment](t.Context(), client, "http://bank.test/p?token=tok_live_9", nil)
	require.NotContains(t, err.Error(), "tok_live_9")
	var timeout net.Error
	require.True(t, errors.As(err, &timeout) && timeout.Timeout())
}

func TestCredentialsInTheURLAreSentAsHTTPClientDoes(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	client := quick(srv)
	client.BaseURL = strings.Replace(srv.URL, "http://", "http://user:hunter2@", 1)
	_, err := post(t, client)
	require.NoError(t, err)
	require.Equal(t, "Basic dXNlcjpodW50ZXIy", srv.Requests()[0].Header.Get("Authorization"))
}

func TestCredentialsGoToTheOriginOfBaseURLOnly(t *testing.T) {
	t.Parallel()
	own, other := faultnet.Serve(t, ok201()), faultnet.Serve(t, ok201())
	client := quick(own)
	client.Transport = &http.Transport{}
	client.Header = http.Header{"X-Api-Key": {"sk_7"}}
	for _, srv := range []*faultnet.Server{own, other} {
		_, err := idem.Post[payment](t.Context(), client, srv.URL+"/payments", rub1200)
		require.NoError(t, err)
	}
	require.Equal(t, "sk_7", own.Requests()[0].Header.Get("X-Api-Key"))
	require.NotContains(t, other.Requests()[0].Head, "sk_7")
}

func TestRequestsWithoutAKeyFollowRedirectsWithoutLosingSecrets(t *testing.T) {
	t.Parallel()
	other := faultnet.Serve(t, status(200))
	srv := faultnet.Serve(t, faultnet.Steps(status(302, "Location: /moved"), status(307, "Location: "+other.URL+"/away")))
	client := quick(srv)
	client.Transport = &http.Transport{}
	client.Header = http.Header{"X-Api-Key": {"sk_7"}}
	req := newRequest(t, "GET", srv.URL, "")
	req.Header.Set("Idempotency-Key", "k1")
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "/moved", srv.Requests()[1].Target)
	require.Equal(t, "sk_7", srv.Requests()[1].Header.Get("X-Api-Key"))
	require.Equal(t, "/away", other.Requests()[0].Target)
	require.NotContains(t, other.Requests()[0].Head, "sk_7")
	require.Empty(t, other.Keys()[0])
}

func TestRedirectsThatGoInCirclesEnd(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, status(302, "Location: /again"))
	_, err := quick(srv).Do(newRequest(t, "GET", srv.URL, ""))
	require.Equal(t, idem.ReasonPermanent, asA[*idem.IncompleteError](t, err).Reason)
	require.Len(t, srv.Requests(), 10)
}

func TestRoundTripperMakesEveryCallOneOperation(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Steps(status(503), faultnet.Reset(), ok201(), ok201()))
	sdk := &http.Client{Transport: quick(srv).RoundTripper()}
	for range 2 {
		resp, err := sdk.Post(srv.URL, "application/json", strings.NewReader(paymentJSON))
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.JSONEq(t, created, string(body))
	}
	keys := srv.Keys()
	require.Len(t, keys, 4)
	require.Equal(t, []string{keys[0], keys[0], keys[0], keys[3]}, keys)
	require.NotEqual(t, keys[0], keys[3])
}

func TestRoundTripperReturnsAnswersAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, code := range []int{200, 303, 400, 409, 422} {
		srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(code, "as it is", "X-Mark: 1")))
		req := newRequest(t, "POST", srv.URL, paymentJSON)
		before := req.Header.Clone()
		resp, err := quick(srv).RoundTripper().RoundTrip(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, code, resp.StatusCode)
		require.Equal(t, "as it is", string(body))
		require.Equal(t, "1", resp.Header.Get("X-Mark"))
		require.Equal(t, before, req.Header, "a RoundTripper does not touch the request")
		require.Len(t, srv.Requests(), 1)
	}
}

func TestRoundTripperReturnsTheLastAnswerWhenItGivesUp(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(503, "down", "X-Mark: 1")))
	resp, err := quick(srv).RoundTripper().RoundTrip(newRequest(t, "POST", srv.URL, paymentJSON))
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "down", string(body))
	require.Len(t, srv.Requests(), 5)
}

func TestRoundTripperNeverPassesProgressForAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, status(202, "Retry-After: 1"))
		client := quick(srv)
		client.Retry.MaxWait = 10 * time.Second
		_, err := (&http.Client{Transport: client.RoundTripper()}).Do(newRequest(t, "POST", srv.URL, paymentJSON))
		require.Equal(t, idem.ReasonMaxWait, asA[*idem.IncompleteError](t, err).Reason)
		require.Equal(t, idem.Pending, idem.OutcomeOf(err))
	})
}

func TestRoundTripperLetsNoKeyedWriteBeRedirectedToAnotherOrigin(t *testing.T) {
	t.Parallel()
	for _, code := range []int{307, 308} {
		for _, key := range []string{"", "mine"} {
			other := faultnet.Serve(t, ok201())
			srv := faultnet.Serve(t, status(code, "Location: "+other.URL+"/away"))
			client := quick(srv)
			client.Transport = &http.Transport{}
			req := newRequest(t, "POST", srv.URL, paymentJSON)
			if key != "" {
				req.Header.Set("Idempotency-Key", key)
			}
			_, err := (&http.Client{Transport: client.RoundTripper()}).Do(req)
			require.ErrorContains(t, err, "idem: redirect: a keyed write is not sent on to another origin, "+other.URL)
			require.Empty(t, other.Requests())
		}
	}
}

func TestRoundTripperKeepsTheKeyOnARedirectWithinTheOrigin(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "mine"} {
		srv := faultnet.Serve(t, faultnet.Steps(status(307, "Location: /moved"), status(503), ok201()))
		req := newRequest(t, "POST", srv.URL, paymentJSON)
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		resp, err := (&http.Client{Transport: quick(srv).RoundTripper()}).Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		keys := srv.Keys()
		require.Equal(t, []string{keys[0], keys[0], keys[0]}, keys)
		require.Equal(t, []string{paymentJSON, paymentJSON, paymentJSON}, srv.Bodies())
		require.Equal(t, "/moved", srv.Requests()[2].Target)
	}
}

func TestRoundTripperTakesTheKeyOffARedirectThatReads(t *testing.T) {
	t.Parallel()
	other := faultnet.Serve(t, status(200))
	srv := faultnet.Serve(t, status(303, "Location: "+other.URL+"/receipt"))
	client := quick(srv)
	client.Transport = &http.Transport{}
	req := newRequest(t, "POST", srv.URL, paymentJSON)
	req.Header.Set("Idempotency-Key", "mine")
	resp, err := (&http.Client{Transport: client.RoundTripper()}).Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "GET", other.Requests()[0].Method)
	require.Empty(t, other.Keys()[0])
}

func TestEveryAttemptCanBeReplayedByTheTransport(t *testing.T) {
	t.Parallel()
	var attempts atomic.Int32
	client := &idem.Client{
		BaseURL: "http://bank.test", Retry: idem.RetryPolicy{NewBackOff: at(0)},
		Transport: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
			attempts.Add(1)
			for range 2 {
				body, err := r.GetBody()
				require.NoError(t, err)
				replay, err := io.ReadAll(body)
				require.NoError(t, err)
				sameBytes(t, paymentJSON, replay)
			}
			return nil, io.EOF
		}),
	}
	_, err := post(t, client)
	require.Error(t, err)
	require.EqualValues(t, 5, attempts.Load())
}

func TestSendsOfTheTransportItselfAreCounted(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Steps(ok201(), faultnet.Close(), ok201()))
	var r recorder
	client := quick(srv)
	client.Retry.MaxAttempts = 1
	client.Trace = r.trace()
	_, err := post(t, client)
	require.NoError(t, err)
	result, err := post(t, client) // on the connection that the server closes
	require.NoError(t, err)
	require.Equal(t, 1, result.Attempts)
	require.Equal(t, []int{1, 2}, []int{r.done[0].Sends, r.done[1].Sends})
	require.Equal(t, []string{string(result.Key), string(result.Key)}, srv.Keys()[1:], "net/http repeats the key")
	require.Equal(t, []string{paymentJSON, paymentJSON, paymentJSON}, srv.Bodies())
}

func TestTransportThatReturnsNothingIsAnError(t *testing.T) {
	t.Parallel()
	client := &idem.Client{
		BaseURL: "http://bank.test", Retry: idem.RetryPolicy{NewBackOff: at(0)},
		Transport: roundTripperFunc(func(*http.Request) (*http.Response, error) { return nil, nil }), //nolint:nilnil // on purpose
	}
	_, err := post(t, client)
	require.ErrorContains(t, err, "the transport returned neither an answer nor an error")
	require.Equal(t, idem.Unknown, idem.OutcomeOf(err))
}

func TestContextOfTheHooksReachesTheTransport(t *testing.T) {
	t.Parallel()
	type span struct{}
	srv := faultnet.Serve(t, ok201())
	client := quick(srv)
	client.Trace = idem.Trace{
		OperationStart: func(ctx context.Context, _ idem.Attempt) context.Context { return context.WithValue(ctx, span{}, "op") },
		AttemptStart: func(ctx context.Context, a idem.Attempt) context.Context {
			return context.WithValue(ctx, span{}, fmt.Sprintf("%s/%d", ctx.Value(span{}), a.Number))
		},
		AttemptDone: func(ctx context.Context, _ idem.Attempt) {
			require.Equal(t, "op/1", ctx.Value(span{}))
			require.NoError(t, ctx.Err())
		},
		OperationDone: func(ctx context.Context, _ idem.Attempt) { require.Equal(t, "op", ctx.Value(span{})) },
	}
	client.Transport = roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		require.Equal(t, "op/1", r.Context().Value(span{}))
		return srv.Transport.RoundTrip(r)
	})
	_, err := post(t, client)
	require.NoError(t, err)
}

func TestAnswerThatDoesNotMatchItsDigestIsAskedForAgain(t *testing.T) {
	t.Parallel()
	whole := "HTTP/1.1 201 Created\r\nContent-Digest: " + digest.Of([]byte(created)) + "\r\nConnection: close\r\n\r\n" + created
	srv := faultnet.Serve(t, faultnet.Steps(faultnet.Cut(whole, len(whole)-1), faultnet.Cut(whole, len(whole))))
	result, err := post(t, quick(srv))
	require.NoError(t, err)
	require.Equal(t, 2, result.Attempts)
	require.Equal(t, payment{ID: "p1"}, result.Value)
	require.Equal(t, []string{string(result.Key), string(result.Key)}, srv.Keys())
}

func TestWhichDigestsAreCompared(t *testing.T) {
	t.Parallel()
	wrong := "Content-Digest: " + digest.Of([]byte("another body"))
	for name, tc := range map[string]struct {
		answer   string
		attempts int
	}{
		"the same mismatch twice is an answer":          {faultnet.Answer(201, created, wrong), 2},
		"one of an error, too":                          {faultnet.Answer(422, created, wrong), 2},
		"not of content that is coded":                  {faultnet.Answer(201, created, wrong, "Content-Encoding: identity"), 1},
		"not by an algorithm that is not known":         {faultnet.Answer(201, created, "Content-Digest: md5=:AAAA:"), 1},
		"not one that is not well-formed":               {faultnet.Answer(201, created, "Content-Digest: sha-256=AAAA"), 1},
		"not of an answer that can have no body":        {"HTTP/1.1 204 No Content\r\n" + wrong + "\r\n\r\n", 1},
		"and one that is right is right the first time": {faultnet.Answer(201, created, "Content-Digest: "+digest.Of([]byte(created))), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, faultnet.Reply(tc.answer))
			result, _ := post(t, quick(srv))
			require.Equal(t, tc.attempts, result.Attempts)
			require.Len(t, srv.Requests(), tc.attempts)
		})
	}
}

func TestDigestOfAnAnswerThatWasDecompressedIsNotCompared(t *testing.T) {
	t.Parallel()
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	io.WriteString(z, created)
	require.NoError(t, z.Close())
	srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(201, compressed.String(),
		"Content-Encoding: gzip", "Content-Digest: "+digest.Of(compressed.Bytes()))))
	result, err := post(t, quick(srv))
	require.NoError(t, err)
	require.Equal(t, 1, result.Attempts)
	require.Equal(t, payment{ID: "p1"}, result.Value)
}

func TestAnswerWithoutABodyIsAnEmptyOne(t *testing.T) {
	t.Parallel()
	for _, code := range []int{201, 503} {
		client := &idem.Client{
			BaseURL: "http://bank.test", Retry: idem.RetryPolicy{NewBackOff: at(0)},
			Transport: roundTripperFunc(func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: code}, nil }),
		}
		require.NotPanics(t, func() { _, _ = post(t, client) })
		require.NotPanics(t, func() {
			resp, err := client.RoundTripper().RoundTrip(newRequest(t, "GET", "http://bank.test/", ""))
			require.NoError(t, err)
			require.NotNil(t, resp.Body)
			require.NoError(t, resp.Body.Close())
		})
	}
}

func TestRoundTripperNeverReturnsAnAnswerWithoutItsBody(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(201, strings.Repeat("x", 101))))
	client := quick(srv)
	client.MaxResponseBytes = 100
	resp, err := client.RoundTripper().RoundTrip(newRequest(t, "POST", srv.URL, paymentJSON))
	if err == nil {
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Len(t, body, 101)
	}
	require.True(t, hasA[*idem.DecodeError](err))
}

func TestAnAnswerThatSwitchesProtocolsDoesNotHangAKeyedRequest(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, func(x *faultnet.Exchange) {
		x.Read()
		x.Write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		x.Wait(5 * time.Second)
	})
	client := quick(srv)
	client.Retry.AttemptTimeout, client.Retry.MaxAttempts = 200*time.Millisecond, 1
	ended := make(chan error, 1)
	go func() {
		_, err := postFor(t, client, time.Second)
		ended <- err
	}()
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(3 * time.Second):
		t.Fatal("neither AttemptTimeout nor the caller's deadline ends it")
	}
}

func TestUpgradedConnectionCanBeWrittenTo(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, _ := http.NewResponseController(w).Hijack()
		defer conn.Close()
		fmt.Fprint(buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		buf.Flush()
		line, _ := buf.ReadString('\n')
		fmt.Fprint(buf, "echo ", line)
		buf.Flush()
	}))
	t.Cleanup(srv.Close)
	req := newRequest(t, "GET", srv.URL, "")
	req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}}
	resp, err := (&idem.Client{}).RoundTripper().RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	conn, ok := resp.Body.(io.ReadWriteCloser)
	require.True(t, ok, "as net/http promises for 101")
	_, err = io.WriteString(conn, "hi\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "echo hi\n", string(answer))
}

func TestRequestThatCanNeverBeSentIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	for name, change := range map[string]func(*http.Request, *idem.Client){
		"method": func(r *http.Request, _ *idem.Client) { r.Method = "PO ST"; r.Header.Set("Idempotency-Key", "k") },
		"trailer": func(r *http.Request, _ *idem.Client) {
			r.TransferEncoding, r.Trailer = []string{"chunked"}, http.Header{"Content-Length": {"1"}}
		},
		"key field": func(_ *http.Request, c *idem.Client) { c.Dialect = &idem.Dialect{KeyField: "a b"} },
	} {
		client := quick(srv)
		var r recorder
		client.Trace = r.trace()
		req := newRequest(t, "POST", srv.URL, paymentJSON)
		change(req, client)
		_, err := client.Do(req)
		require.Error(t, err, name)
		require.LessOrEqual(t, len(r.start), 1, name)
		require.Equal(t, idem.NotSent, idem.OutcomeOf(err), name)
	}
	require.Empty(t, srv.Requests())
}

func TestRoundTripperLeavesTheClientsCredentialsAtTheFirstOrigin(t *testing.T) {
	t.Parallel()
	other := faultnet.Serve(t, status(200))
	srv := faultnet.Serve(t, status(302, "Location: "+other.URL+"/away"))
	client := &idem.Client{Header: http.Header{"Authorization": {"Bearer sk_7"}, "X-Api-Key": {"sk_8"}}}
	resp, err := (&http.Client{Transport: client.RoundTripper()}).Get(srv.URL)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NotContains(t, other.Requests()[0].Head, "sk_")
}

func TestCredentialsOfBaseURLStayAtItsOrigin(t *testing.T) {
	t.Parallel()
	other := faultnet.Serve(t, status(200))
	srv := faultnet.Serve(t, status(302, "Location: "+other.URL+"/away"))
	client := &idem.Client{BaseURL: strings.Replace(srv.URL, "http://", "http://user:hunter2@", 1)}
	resp, err := client.Do(newRequest(t, "GET", "/", ""))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NotContains(t, other.Requests()[0].Head, "Authorization")
}

func TestTransportRepeatsAnAttemptOnceHoweverManyConnectionsAreDead(t *testing.T) {
	t.Parallel()
	const dead = 10
	var arrived sync.WaitGroup
	arrived.Add(dead)
	srv := faultnet.Serve(t, func(x *faultnet.Exchange) {
		x.Read()
		arrived.Done()
		arrived.Wait() // so that each has a connection of its own
		x.Write(faultnet.Answer(201, created))
	})
	srv.Transport.MaxIdleConnsPerHost = dead
	client := quick(srv)
	client.Retry.MaxAttempts = 3
	var opening sync.WaitGroup
	for range dead {
		opening.Go(func() {
			if _, err := post(t, client); err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()

	srv.Play(faultnet.Close())
	var r recorder
	client.Trace = r.trace()
	_, err := post(t, client)
	given := asA[*idem.IncompleteError](t, err)
	require.Len(t, given.Attempts, 3)
	for _, a := range r.done {
		require.LessOrEqual(t, a.Sends, 2)
	}
	repeats := srv.Requests()[dead:]
	require.LessOrEqual(t, len(repeats), 2*3)
	for _, request := range repeats {
		require.Equal(t, string(given.Key), request.Key())
		sameBytes(t, paymentJSON, request.Body)
	}
}
