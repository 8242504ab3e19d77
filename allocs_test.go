package idem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
)

// canned is a transport without a network: what it allocates is the same for
// everybody.
var canned = roundTripperFunc(func(r *http.Request) (*http.Response, error) {
	io.Copy(io.Discard, r.Body)
	r.Body.Close()
	return &http.Response{
		StatusCode: 201, Status: "201 Created", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   io.NopCloser(bytes.NewReader([]byte(created))), ContentLength: int64(len(created)), Request: r,
	}, nil
})

const cannedURL = "https://api.example.com/payments"

// byHand is what a careful caller writes with net/http alone.
func byHand(t *testing.T) payment {
	t.Helper()
	body, err := json.Marshal(rub1200)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, cannedURL, bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Idempotency-Key", string(idem.NewKey()))
	req.Header.Set("Content-Type", "application/json")
	resp, err := canned.RoundTrip(req)
	return read(t, resp, err)
}

// withDo is the same with a Client, which brings the key and the timeout.
func withDo(t *testing.T, client *idem.Client) payment {
	t.Helper()
	body, err := json.Marshal(rub1200)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, cannedURL, bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	return read(t, resp, err)
}

func read(t *testing.T, resp *http.Response, err error) payment {
	t.Helper()
	require.NoError(t, err)
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	var p payment
	require.NoError(t, json.Unmarshal(answer, &p))
	return p
}

func TestAllocationsAreFew(t *testing.T) {
	client := &idem.Client{Transport: canned}
	hand := testing.AllocsPerRun(500, func() { byHand(t) })
	do := testing.AllocsPerRun(500, func() { withDo(t, client) })
	posting := testing.AllocsPerRun(500, func() {
		_, err := idem.Post[payment](t.Context(), client, cannedURL, rub1200)
		require.NoError(t, err)
	})
	t.Logf("by hand %v, Do %v, Post %v", hand, do, posting)
	require.LessOrEqual(t, do, hand+8)
	require.LessOrEqual(t, posting, hand+16)
}
