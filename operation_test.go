package idem_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
)

// reader hides everything of a strings.Reader but Read, or is nil for "".
func reader(s string) io.Reader {
	if s == "" {
		return nil
	}
	return strings.NewReader(s)
}

func file(t *testing.T, content string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "body")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestBodyIsTheSameBytesOnEveryAttempt(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]any{
		"bytes":         []byte(paymentJSON),
		"string":        paymentJSON,
		"bytes.Buffer":  bytes.NewBufferString(paymentJSON),
		"strings":       strings.NewReader(paymentJSON),
		"JSON value":    rub1200,
		"file":          file(t, paymentJSON),
		"bare reader":   io.MultiReader(strings.NewReader(paymentJSON)),
		"byte by byte":  iotest.OneByteReader(strings.NewReader(paymentJSON)),
		"raw JSON":      json.RawMessage(paymentJSON),
		"pointer":       &rub1200,
		"JSON from map": map[string]any{"amount": 1200, "currency": "RUB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, faultnet.Steps(status(503), status(503), ok201()))
			result, err := idem.Post[payment](t.Context(), quick(srv), "/payments", body)
			require.NoError(t, err)
			require.Equal(t, payment{ID: "p1"}, result.Value)
			require.Equal(t, 3, result.Attempts)
			require.Equal(t, []string{paymentJSON, paymentJSON, paymentJSON}, srv.Bodies())
			for _, r := range srv.Requests() {
				require.Equal(t, []string{"32"}, r.Header["Content-Length"])
				require.Equal(t, []string{string(result.Key)}, r.Header["Idempotency-Key"])
			}
		})
	}
}

func TestDoFreezesAnyBodyOfAKeyedRequest(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]io.Reader{
		"replayable": strings.NewReader(paymentJSON),
		"bare":       io.MultiReader(strings.NewReader(paymentJSON)),
		"file":       file(t, paymentJSON),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, faultnet.Steps(status(503), faultnet.Reset(), ok201()))
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/payments", body)
			require.NoError(t, err)
			resp, err := quick(srv).Do(req)
			require.NoError(t, err)
			answer, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.JSONEq(t, created, string(answer))
			require.Equal(t, []string{paymentJSON, paymentJSON, paymentJSON}, srv.Bodies())
			for _, r := range srv.Requests() {
				require.Equal(t, []string{"32"}, r.Header["Content-Length"])
			}
		})
	}
}

func TestBodyThatCannotBeReadIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	broken := errors.New("disk on fire")

	_, err := idem.NewOperation("POST", "/payments", iotest.ErrReader(broken))
	require.ErrorIs(t, err, broken)
	require.Equal(t, "Operation.Body", asA[*idem.UsageError](t, err).Field)

	req, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL, iotest.ErrReader(broken))
	require.NoError(t, err)
	_, err = quick(srv).Do(req)
	require.ErrorIs(t, err, broken)
	require.Equal(t, "Request.Body", asA[*idem.UsageError](t, err).Field)
	require.Equal(t, idem.NotSent, idem.OutcomeOf(err))
	require.Empty(t, srv.Requests())
}

func TestBodyBeyondTheBoundIsRefusedAndNotCutOff(t *testing.T) {
	t.Parallel()
	endless := iotest.DataErrReader(io.LimitReader(zeros{}, math.MaxInt64))
	_, err := idem.NewOperation("POST", "/payments", endless)
	require.EqualError(t, err, "idem: Operation.Body: the body cannot be made into bytes: it is larger than 33554432 bytes")

	op, err := idem.NewOperation("POST", "/payments", io.LimitReader(zeros{}, 32<<20))
	require.NoError(t, err)
	require.Len(t, op.Body, 32<<20)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestBodyThatJSONCannotSayIsRefused(t *testing.T) {
	t.Parallel()
	_, err := idem.NewOperation("POST", "/payments", map[string]any{"f": func() {}})
	require.Equal(t, "Operation.Body", asA[*idem.UsageError](t, err).Field)
	require.True(t, hasA[*json.UnsupportedTypeError](err))
}

func TestBodyShorterThanItsContentLengthIsRefused(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	req := newRequest(t, "POST", srv.URL, paymentJSON)
	req.ContentLength = 40
	_, err := quick(srv).Do(req)
	require.EqualError(t, err, "idem: Request.Body: ContentLength is 40 but the body has 32 bytes")
	require.Empty(t, srv.Requests())
}

func TestNewOperationSetsTheContentTypeItKnows(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body        any
		contentType string
		bytes       string
	}{
		"value as JSON":  {rub1200, "application/json", paymentJSON},
		"form":           {url.Values{"b": {"2"}, "a": {"1", "0"}}, "application/x-www-form-urlencoded", "a=1&a=0&b=2"},
		"bytes as given": {[]byte(paymentJSON), "", paymentJSON},
		"nothing":        {nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			op, err := idem.NewOperation("POST", "/payments", tc.body)
			require.NoError(t, err)
			require.Equal(t, tc.contentType, op.Header.Get("Content-Type"))
			require.Equal(t, tc.bytes, string(op.Body))
		})
	}
}

func TestNewOperationCopiesItsBytes(t *testing.T) {
	t.Parallel()
	body := []byte(paymentJSON)
	op, err := idem.NewOperation("POST", "/payments", body)
	require.NoError(t, err)
	body[0] = 'X'
	sameBytes(t, paymentJSON, op.Body)
}

func TestOperationSurvivesACrashAsJSON(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	op, err := idem.NewOperation("POST", "/payments", rub1200)
	require.NoError(t, err)
	stored, err := json.Marshal(op)
	require.NoError(t, err)

	var restored idem.Operation
	require.NoError(t, json.Unmarshal(stored, &restored))
	require.Equal(t, op, restored)

	for range 2 {
		result, err := idem.Send[payment](t.Context(), quick(srv), restored)
		require.NoError(t, err)
		require.Equal(t, op.Key, result.Key)
	}
	require.Equal(t, []string{string(op.Key), string(op.Key)}, srv.Keys())
	require.Equal(t, []string{paymentJSON, paymentJSON}, srv.Bodies())
}

func TestCredentialsOfTheClientAreNotPartOfAnOperation(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	client := quick(srv)
	client.Header = http.Header{"Authorization": {"Bearer sk_7"}, "Accept-Language": {"en"}}
	op, err := idem.NewOperation("POST", "/payments", rub1200)
	require.NoError(t, err)
	op.Header.Set("Accept-Language", "ru")
	_, err = idem.Send[payment](t.Context(), client, op)
	require.NoError(t, err)

	sent := srv.Requests()[0].Header
	require.Equal(t, []string{"Bearer sk_7"}, sent["Authorization"])
	require.Equal(t, []string{"ru"}, sent["Accept-Language"], "the operation's own field wins")
	stored, err := json.Marshal(op)
	require.NoError(t, err)
	require.NotContains(t, string(stored), "sk_7")
}

func TestSendRefusesAnOperationWithoutAUsableKey(t *testing.T) {
	t.Parallel()
	srv := faultnet.Serve(t, ok201())
	for name, key := range map[string]idem.Key{
		"none":             "",
		"underived":        idem.DeriveKey("order", ""),
		"256 bytes":        idem.Key(strings.Repeat("k", 256)),
		"a blank":          "order 42",
		"a newline":        "order\n42",
		"not ASCII":        "заказ",
		"beyond the end":   "\x7f",
		"not even text":    "\xff",
		"only white space": " ",
	} {
		_, err := idem.Send[payment](t.Context(), quick(srv), idem.Operation{Key: key, Method: "POST", URL: "/payments"})
		require.Equal(t, "Key", asA[*idem.UsageError](t, err).Field, name)
		require.Contains(t, err.Error(), "mint one with NewKey or DeriveKey")
		require.Equal(t, idem.NotSent, idem.OutcomeOf(err))
	}
	require.Empty(t, srv.Requests())
}
