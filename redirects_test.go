package idem_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
)

var redirects = []int{301, 302, 303, 307, 308}

func TestKeyedWritesAreNeverRedirected(t *testing.T) {
	t.Parallel()
	for _, code := range redirects {
		other := faultnet.Serve(t, ok201())
		for name, location := range map[string]string{
			"within the origin": "/moved", "to another origin": other.URL + "/payments", "in a circle": "/payments",
		} {
			t.Run(fmt.Sprint(code, " ", name), func(t *testing.T) {
				t.Parallel()
				srv := faultnet.Serve(t, status(code, "Location: "+location))
				_, err := post(t, quick(srv))
				require.Equal(t, code, asA[*idem.StatusError](t, err).StatusCode)
				require.Equal(t, idem.Unknown, idem.OutcomeOf(err))
				resp, err := quick(srv).Do(newRequest(t, "POST", srv.URL+"/payments", paymentJSON))
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, code, resp.StatusCode)
				require.Len(t, srv.Requests(), 2)
				require.Empty(t, other.Requests())
			})
		}
	}
}

// The caller's client ends the circle. Where it repeats the write, it is under
// the same key; where it goes on reading, without one.
func TestRoundTripperKeepsKeysApartInACircleOfRedirects(t *testing.T) {
	t.Parallel()
	for _, code := range redirects {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, status(code, "Location: /payments"))
			_, err := (&http.Client{Transport: quick(srv).RoundTripper()}).Do(newRequest(t, "POST", srv.URL+"/payments", paymentJSON))
			require.ErrorContains(t, err, "stopped after 10 redirects")
			requests := srv.Requests()
			require.Len(t, requests, 10)
			key := requests[0].Key()
			require.NoError(t, uuid.Validate(key))
			for _, r := range requests[1:] {
				if code == 307 || code == 308 {
					require.Equal(t, []string{"POST", key, paymentJSON}, []string{r.Method, r.Key(), string(r.Body)})
				} else {
					require.Equal(t, []string{"GET", "", ""}, []string{r.Method, r.Key(), string(r.Body)})
				}
			}
		})
	}
}

// What lies between the caller's client and the network may rewrite the request
// that an answer names, or not name any.
func TestRoundTripperSendsNoKeyedWriteToAnotherOriginWhateverTheAnswerNames(t *testing.T) {
	t.Parallel()
	other := faultnet.Serve(t, ok201())
	for name, named := range map[string]func(*http.Request) *http.Request{
		"no request": func(*http.Request) *http.Request { return nil },
		"a request of fewer fields": func(r *http.Request) *http.Request {
			bare := r.Clone(r.Context())
			bare.Header = http.Header{"Idempotency-Key": r.Header["Idempotency-Key"]}
			return bare
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := &idem.Client{Transport: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				if r.URL.Host != "bank.test" {
					return http.DefaultTransport.RoundTrip(r)
				}
				header := http.Header{"Location": {other.URL + "/away"}}
				return &http.Response{StatusCode: 307, Header: header, Body: http.NoBody, Request: named(r)}, nil
			})}
			_, err := (&http.Client{Transport: client.RoundTripper()}).Do(newRequest(t, "POST", "http://bank.test/", paymentJSON))
			require.ErrorContains(t, err, "a keyed write is not sent on to another origin")
			require.Empty(t, other.Requests())
		})
	}
}

// A write that the caller sent without a key is not given one by the redirect,
// under which the service could take it for another.
func TestRoundTripperMintsNoKeyForARedirect(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, faultnet.Steps(status(307, "Location: /moved"), ok201()))
	req := newRequest(t, "POST", srv.URL, paymentJSON)
	req.Header["Idempotency-Key"] = nil
	resp, err := (&http.Client{Transport: quick(srv).RoundTripper()}).Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, []string{"", ""}, srv.Keys())
	require.Equal(t, []string{paymentJSON, paymentJSON}, srv.Bodies())
}
