package server

import (
	"bytes"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/digest"
)

func TestStoredStatuses(t *testing.T) {
	t.Parallel()
	passing := map[int]bool{401: true, 403: true, 408: true, 423: true, 425: true, 429: true}
	for status := range 1100 {
		require.Equal(t, status >= 200 && status < 500 && !passing[status], stored(status), status)
	}
}

func TestStoredFieldsAreWhatTheHandlerSet(t *testing.T) {
	t.Parallel()
	before := http.Header{
		"Cache-Control": {"private"}, "Vary": {"Origin"}, "X-Frame-Options": {"DENY"}, "X-Trace": {"1"},
		"Content-Type": {"text/plain"},
	}
	sent := http.Header{
		// as before
		"X-Frame-Options": {"DENY"}, "X-Trace": {"1"},
		// changed
		"Cache-Control": {"no-store"}, "Vary": {"Origin", "Accept"},
		// kept whoever set it
		"Content-Type": {"text/plain"},
		// set
		"Link": {"</b>", "</a>"}, "Location": {"/1"}, "Etag": {`"v"`}, "X-Empty": {""}, "x-lower": {"\xff"},
		"Content-Disposition": {`attachment; filename="a,b.txt"`}, "Content-Digest": {"sha-512=:AAAA:"}, "Retry-After": {"3"},
		// set to nothing
		"X-Nothing": nil,
		// of this answer alone
		"Set-Cookie": {"a=1"}, "Www-Authenticate": {"Basic"}, "Proxy-Authenticate": {"Basic"}, "Authentication-Info": {"x"},
		"Proxy-Authentication-Info": {"x"}, "Date": {"x"}, "Server-Timing": {"x"}, "X-Request-Id": {"x"}, "Request-Id": {"x"},
		"X-Correlation-Id": {"x"}, "Correlation-Id": {"x"}, "X-Trace-Id": {"x"}, "Traceparent": {"x"}, "Tracestate": {"x"},
		"Traceresponse": {"x"}, "X-Amzn-Requestid": {"x"}, "X-Amzn-Trace-Id": {"x"}, "X-Cloud-Trace-Context": {"x"},
		"Ratelimit": {"x"}, "Ratelimit-Policy": {"x"}, "X-Ratelimit-Remaining": {"x"}, "X-Rate-Limit-Reset": {"x"}, "x-ratelimit-limit": {"x"},
		"Content-Length": {"1"}, "Idempotency-Key": {"k"}, "Idempotent-Replayed": {"true"}, "Trailer:X-Sum": {"1"},
		// of this connection alone
		"Connection": {"close, X-Hop", "x-hop-two"}, "X-Hop": {"1"}, "X-Hop-Two": {"1"}, "Keep-Alive": {"x"}, "Proxy-Connection": {"x"},
		"Te": {"x"}, "Trailer": {"X-Sum"}, "Transfer-Encoding": {"chunked"}, "Upgrade": {"x"},
	}
	require.Equal(t, []Field{
		{"Cache-Control", "no-store"},
		{"Content-Digest", "sha-512=:AAAA:"},
		{"Content-Disposition", `attachment; filename="a,b.txt"`},
		{"Content-Type", "text/plain"},
		{"Etag", `"v"`},
		{"Link", "</b>"},
		{"Link", "</a>"},
		{"Location", "/1"},
		{"Retry-After", "3"},
		{"Vary", "Origin"},
		{"Vary", "Accept"},
		{"X-Empty", ""},
		{"x-lower", "\xff"},
	}, storedFields(before, sent))
	require.Empty(t, storedFields(before, before.Clone())[1:])
}

func replayed(t *testing.T, header http.Header, accept []string, resp Response) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	maps.Copy(w.Header(), header)
	r := httptest.NewRequest("POST", "/", nil)
	if accept != nil {
		r.Header["Accept-Encoding"] = accept
	}
	require.NoError(t, replay(w, r, resp, Field{"Idempotent-Replayed", "true"}))
	return w.Result()
}

func TestReplayReplacesFieldsByName(t *testing.T) {
	t.Parallel()
	outer := http.Header{"Vary": {"Origin"}, "X-Trace": {"2"}, "Content-Type": {"application/json"}, "Idempotent-Replayed": {"x", "y"}}
	got := replayed(t, outer, nil, Response{
		StatusCode: http.StatusCreated,
		Fields:     []Field{{"Content-Type", "text/csv"}, {"Vary", "Accept"}, {"Vary", "Origin"}},
		Body:       []byte("1\n"),
	})
	require.Equal(t, http.StatusCreated, got.StatusCode)
	require.Equal(t, http.Header{
		"Content-Type": {"text/csv"}, "Vary": {"Accept", "Origin"}, "X-Trace": {"2"}, "Idempotent-Replayed": {"true"},
		"Content-Length": {"2"}, "Content-Digest": {digest.Of([]byte("1\n"))},
	}, got.Header)
}

func TestReplayHasNoContentTypeIfTheFirstAnswerHadNone(t *testing.T) {
	t.Parallel()
	got := replayed(t, http.Header{"Content-Type": {"application/json"}}, nil, Response{StatusCode: 200, Body: []byte("<html>")})
	require.Empty(t, got.Header["Content-Type"])
}

func TestReplayOfAnEmptyBodyHasALengthIfItMayHaveABody(t *testing.T) {
	t.Parallel()
	for status, length := range map[int][]string{200: {"0"}, 201: {"0"}, 303: {"0"}, 404: {"0"}, 204: nil, 304: nil} {
		got := replayed(t, nil, nil, Response{StatusCode: status})
		require.Equal(t, length, got.Header["Content-Length"], status)
		require.Equal(t, length != nil, got.Header.Get("Content-Digest") == digest.Of(nil), status)
	}
}

func TestReplayKeepsADigestThatTheHandlerSet(t *testing.T) {
	t.Parallel()
	got := replayed(t, nil, nil, Response{StatusCode: 200, Fields: []Field{{"Content-Digest", "sha-512=:AAAA:"}}, Body: []byte("x")})
	require.Equal(t, []string{"sha-512=:AAAA:"}, got.Header["Content-Digest"])
}

func TestReplayIsDecodedForAClientThatRefusesGzip(t *testing.T) {
	t.Parallel()
	const content = `{"id":1}`
	coded := gzipped(t, content, 9)
	for name, tt := range map[string]struct {
		accept  []string
		coding  string
		body    string
		decoded bool
	}{
		"no preference":                   {nil, "gzip", coded, false},
		"gzip":                            {[]string{"gzip"}, "gzip", coded, false},
		"gzip among others":               {[]string{"br;q=1.0, GZIP;q=0.2", "deflate"}, "gzip", coded, false},
		"by its old name":                 {[]string{"x-gzip"}, "gzip", coded, false},
		"anything":                        {[]string{"*"}, "gzip", coded, false},
		"anything else":                   {[]string{"*, gzip;q=0"}, "gzip", coded, true},
		"gzip, but nothing else":          {[]string{"*;q=0, gzip"}, "gzip", coded, false},
		"identity":                        {[]string{"identity"}, "gzip", coded, true},
		"nothing":                         {[]string{""}, "gzip", coded, true},
		"other codings":                   {[]string{"br, deflate"}, "gzip", coded, true},
		"gzip refused":                    {[]string{"gzip;q=0"}, "gzip", coded, true},
		"gzip refused, spelled at length": {[]string{"br, gzip ; Q = 0.000"}, "gzip", coded, true},
		"the old name is stored":          {[]string{"identity"}, "X-Gzip", coded, true},
		"a coding that is not understood": {[]string{"identity"}, "br", coded, false},
		"two codings":                     {[]string{"identity"}, "gzip, gzip", coded, false},
		"gzip that is none":               {[]string{"identity"}, "gzip", content, false},
		"gzip that is cut":                {[]string{"identity"}, "gzip", coded[:len(coded)-3], false},
		"gzip that is a bomb":             {[]string{"identity"}, "gzip", gzipped(t, strings.Repeat("0", maxDecoded+1), 9), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stored := Response{StatusCode: 200, Body: []byte(tt.body), Fields: []Field{
				{"Content-Encoding", tt.coding}, {"Content-Type", "application/json"}, {"Etag", `"v"`}, {"Vary", "Accept-Encoding"},
			}}
			got := replayed(t, nil, tt.accept, stored)
			body := new(bytes.Buffer)
			_, err := body.ReadFrom(got.Body)
			require.NoError(t, err)
			want := tt.body
			if tt.decoded {
				want = content
			}
			require.Equal(t, want, body.String())
			require.Equal(t, digest.Of([]byte(want)), got.Header.Get("Content-Digest"))
			require.Equal(t, int64(len(want)), got.ContentLength)
			require.Equal(t, tt.decoded, got.Header["Content-Encoding"] == nil)
			require.Equal(t, tt.decoded, got.Header["Etag"] == nil, "it names the bytes as they were")
			require.Equal(t, "Accept-Encoding", got.Header.Get("Vary"))
			require.Len(t, stored.Fields, 4)
		})
	}
}
