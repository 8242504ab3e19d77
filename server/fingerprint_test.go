package server

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// request is what a fingerprint depends on. Its zero fields stand for those of
// a plain payment.
type request struct {
	method, target string
	header         http.Header
	body           string
}

func (q request) fingerprint() Fingerprint {
	r := httptest.NewRequest(cmp.Or(q.method, "POST"), cmp.Or(q.target, "/payments"), nil)
	r.Header = q.header
	return fingerprintOf(r, []byte(q.body))
}

// as returns a request with a body of the given media type.
func as(contentType, body string) request {
	return request{header: http.Header{"Content-Type": {contentType}}, body: body}
}

func asJSON(body string) request { return as("application/json", body) }

func asForm(body string) request { return as("application/x-www-form-urlencoded", body) }

func to(target string) request { return request{target: target} }

func TestFingerprintsOfTheSameOperationAreEqual(t *testing.T) {
	t.Parallel()
	const payment = `{"a":1,"b":[1,2],"k":"é","n":{"x":null,"y":"/"}}`
	for _, tt := range []struct {
		name string
		a, b request
	}{
		{"host and scheme", to("http://a.example/payments"), to("https://b.example:8443/payments")},
		{"an absolute target", to("http://a.example/payments?a=1"), to("/payments?a=1")},
		{"a question mark without query", to("/payments?"), to("/payments")},
		{"reordered parameters", to("/payments?a=1&b=2&c=3"), to("/payments?c=3&a=1&b=2")},
		{"reordered parameters beside a repeated one", to("/payments?a=1&b=2&a=3"), to("/payments?a=1&a=3&b=2")},
		{"reordered parameters that are badly escaped", to("/payments?a=1&%zz=2"), to("/payments?%zz=2&a=1")},
		{
			"other fields",
			request{header: http.Header{"Accept": {"*/*"}, "User-Agent": {"a"}, "Idempotency-Key": {"k"}, "Authorization": {"x"}}},
			request{},
		},

		{"JSON: members reordered at every depth", asJSON(payment), asJSON(`{"n":{"y":"/","x":null},"k":"é","b":[1,2],"a":1}`)},
		{"JSON: white space", asJSON(payment), asJSON(" {\n\t\"a\": 1, \"b\": [ 1, 2 ], \"k\": \"é\", \"n\": { \"x\": null, \"y\": \"/\" }\r\n}\n")},
		{"JSON: escapes", asJSON(payment), asJSON(`{"\u0061":1,"b":[1,2],"k":"\u00e9","n":{"x":null,"y":"\/"}}`)},
		{"JSON: charset=utf-8", asJSON(payment), as("application/json; charset=utf-8", payment)},
		{"JSON: charset in capitals and quotes", asJSON(payment), as(`application/json;charset="UTF-8"`, payment)},
		{"JSON: a media type that is JSON by its suffix", as("application/merge-patch+json", `{"a":1,"b":2}`), as("application/merge-patch+json", `{"b":2,"a":1}`)},
		{"JSON: charset=utf-8 on what is none", asJSON(`{"a":`), as("application/json; charset=utf-8", `{"a":`)},
		{"case and space in the media type", as("Text/Plain;Charset=x; a=b", "x"), as("text/plain; a=b; charset=x", "x")},

		{"form: pairs reordered", asForm("a=1&b=2"), asForm("b=2&a=1")},
		{"form: pairs reordered beside a repeated one", asForm("a=1&b=2&a=3"), asForm("a=1&a=3&b=2")},
		{"multipart: another boundary", multipartRequest("one", "text/plain", "1"), multipartRequest("two", "text/plain", "1")},
		{
			"multipart: another preamble and epilogue",
			as("multipart/mixed; boundary=b", "--b\r\n\r\nx\r\n--b--\r\n"),
			as("multipart/mixed; boundary=b", "hello\r\n--b\r\n\r\nx\r\n--b--\r\nbye"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.a.fingerprint(), tt.b.fingerprint())
		})
	}
}

func TestFingerprintsOfOtherOperationsDiffer(t *testing.T) {
	t.Parallel()
	const payment = `{"a":1,"b":[1,2],"k":"é","n":null}`
	for _, tt := range []struct {
		name string
		a, b request
	}{
		{"method", request{method: "POST"}, request{method: "PUT"}},
		{"the spelling of the method", request{method: "POST"}, request{method: "Post"}},
		{"path", to("/payments"), to("/refunds")},
		{"trailing slash", to("/payments"), to("/payments/")},
		{"escaped slash", to("/a%2Fb"), to("/a/b")},
		{"the spelling of an escape", to("/a%2Fb"), to("/a%2fb")},
		{"a value in the query", to("/transfer?to=alice"), to("/transfer?to=mallory")},
		{"a parameter more", to("/payments?dry=1"), to("/payments")},
		{"an empty value", to("/payments?a="), to("/payments?a")},
		{"repeated values reordered", to("/payments?a=1&a=2"), to("/payments?a=2&a=1")},
		{"repeated values under names that read the same", to("/payments?a=1&%61=2"), to("/payments?%61=2&a=1")},
		{"the border between name and value", to("/payments?a=&a=b&c="), to("/payments?a=&b=c&b=")},
		{"the border between path and query", to("/payments/a=1"), to("/payments?a=1")},
		{"an escaped ampersand", to("/payments?a=1%26b=2"), to("/payments?a=1&b=2")},
		{"an empty parameter", to("/payments?a=1"), to("/payments?a=1&")},
		{"the border between path and body", request{target: "/x", body: "y{}"}, request{target: "/xy", body: "{}"}},
		{"an empty body and one of zero bytes", request{}, request{body: "\x00\x00\x00\x00\x00\x00\x00\x00"}},

		{"JSON: elements reordered", asJSON(payment), asJSON(`{"a":1,"b":[2,1],"k":"é","n":null}`)},
		{"JSON: a string for a number", asJSON(payment), asJSON(`{"a":"1","b":[1,2],"k":"é","n":null}`)},
		{"JSON: null for an absent member", asJSON(payment), asJSON(`{"a":1,"b":[1,2],"k":"é"}`)},
		{"JSON: NFD for NFC", asJSON(payment), asJSON(`{"a":1,"b":[1,2],"k":"e\u0301","n":null}`)},
		{"JSON: the case of a name", asJSON(payment), asJSON(`{"A":1,"b":[1,2],"k":"é","n":null}`)},
		{"JSON: a fraction", asJSON(`{"a":1}`), asJSON(`{"a":1.0}`)},
		{"JSON: an exponent", asJSON(`{"a":1}`), asJSON(`{"a":1e0}`)},
		{"JSON: a number beyond float64", asJSON(`9007199254740993`), asJSON(`9007199254740992`)},
		{"JSON: members of the same name reordered", asJSON(`{"a":1,"a":2}`), asJSON(`{"a":2,"a":1}`)},
		{"JSON: white space in what is none", asJSON(`{"a":1} x`), asJSON(`{"a": 1} x`)},
		{"JSON: escapes under another charset", as("application/json; charset=latin1", `"é"`), as("application/json; charset=latin1", `"\u00e9"`)},
		{"JSON: another charset", asJSON(`1`), as("application/json; charset=utf-16", `1`)},
		{"JSON: another parameter", asJSON(`1`), as("application/json; profile=x", `1`)},

		{"media type", asJSON(`"1"`), as("text/plain", `"1"`)},
		{"no media type", as("text/plain", "x"), request{body: "x"}},
		{"an empty media type", as("", "x"), request{body: "x"}},
		{"a broken media type", as("text/plain; =", "x"), as("text/plain", "x")},
		{"two media types", request{header: http.Header{"Content-Type": {"a/b", "c/d"}}}, request{header: http.Header{"Content-Type": {"c/d", "a/b"}}}},
		{"a parameter of the media type", as("text/plain; charset=a", "x"), as("text/plain; charset=b", "x")},
		{"white space in plain text", as("text/plain", "x"), as("text/plain", "x\n")},
		{"content coding", coded("", "x"), coded("gzip", "x")},
		{"another level of compression", coded("gzip", gzipped(t, payment, 1)), coded("gzip", gzipped(t, payment, 9))},
		{"JSON in a content coding is not looked into", coded("x", `{"a":1,"b":2}`), coded("x", `{"b":2,"a":1}`)},

		{"form: repeated values reordered", asForm("a=1&a=2"), asForm("a=2&a=1")},
		{"form: the spelling of a value", asForm("a=1+2"), asForm("a=1%202")},
		{"form: an escaped ampersand", asForm("a=1%26b=2"), asForm("a=1&b=2")},
		{"form and JSON", asForm("1"), asJSON("1")},

		{"multipart: content", multipartRequest("b", "text/plain", "1"), multipartRequest("b", "text/plain", "2")},
		{"multipart: the media type of a part", multipartRequest("b", "text/plain", "1"), multipartRequest("b", "text/csv", "1")},
		{"multipart: parts reordered", multipartRequest("b", "text/plain", "1", "2"), multipartRequest("b", "text/plain", "2", "1")},
		{"multipart: an empty part more", multipartRequest("b", "text/plain", "1"), multipartRequest("b", "text/plain", "1", "")},
		{"multipart: the border between parts", multipartRequest("b", "text/plain", "12", "3"), multipartRequest("b", "text/plain", "1", "23")},
		{"multipart: cut off", multipartRequest("b", "text/plain", "1"), cut(multipartRequest("b", "text/plain", "1"), 4)},
		{"multipart: cut off at other places", cut(multipartRequest("b", "text/plain", "1"), 4), cut(multipartRequest("b", "text/plain", "1"), 5)},
		{"multipart: another subtype", as("multipart/mixed; boundary=b", "--b\r\n\r\nx\r\n--b--"), as("multipart/related; boundary=b", "--b\r\n\r\nx\r\n--b--")},
		{"multipart: no boundary", as("multipart/form-data", "--\r\n\r\nx\r\n----"), as("multipart/form-data", "--\r\n\r\nx\r\n----\r\n")},
		{
			"multipart: more parts than are read",
			multipartRequest("one", "text/plain", make([]string, 1001)...), multipartRequest("two", "text/plain", make([]string, 1001)...),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := tt.a.fingerprint(), tt.b.fingerprint()
			require.NotEqual(t, a, b)
			require.True(t, a.Differs(b))
		})
	}
}

func coded(coding, body string) request {
	q := asJSON(body)
	if coding != "" {
		q.header.Set("Content-Encoding", coding)
	}
	return q
}

func gzipped(t *testing.T, content string, level int) string {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	require.NoError(t, err)
	_, err = w.Write([]byte(content))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

// multipartRequest returns a form with a field and some files.
func multipartRequest(boundary, partType string, files ...string) request {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.SetBoundary(boundary)
	_ = w.WriteField("amount", "1200")
	for i, content := range files {
		part, _ := w.CreatePart(textproto.MIMEHeader{
			"Content-Disposition": {fmt.Sprintf(`form-data; name="file"; filename="%d.txt"`, min(i, 1))},
			"Content-Type":        {partType},
		})
		_, _ = part.Write([]byte(content))
	}
	_ = w.Close()
	return as(w.FormDataContentType(), b.String())
}

func cut(q request, n int) request {
	q.body = q.body[:len(q.body)-n]
	return q
}

func TestFingerprintOfMultipartReadsUpTo1000Parts(t *testing.T) {
	t.Parallel()
	files := make([]string, 999) // and a field
	require.Equal(t, multipartRequest("one", "text/plain", files...).fingerprint(), multipartRequest("two", "text/plain", files...).fingerprint())
}

func TestFingerprintSortsUpTo10000Parameters(t *testing.T) {
	t.Parallel()
	sorted, reversed := pairs(10_000)
	require.Equal(t, asForm(sorted).fingerprint(), asForm(reversed).fingerprint())
	sorted, reversed = pairs(10_001)
	require.NotEqual(t, asForm(sorted).fingerprint(), asForm(reversed).fingerprint())
}

// However many there are, the values of one name keep their order.
func TestFingerprintKeepsTheOrderOfManyRepeatedValues(t *testing.T) {
	t.Parallel()
	var a, b, interleaved []string
	for i := range 1000 {
		a, b = append(a, fmt.Sprintf("a=%d", i)), append(b, fmt.Sprintf("b=%d", i))
		interleaved = append(interleaved, a[i], b[i])
	}
	want := asForm(strings.Join(slices.Concat(a, b), "&")).fingerprint()
	require.Equal(t, want, asForm(strings.Join(slices.Concat(b, a), "&")).fingerprint())
	require.Equal(t, want, asForm(strings.Join(interleaved, "&")).fingerprint())
	a[998], a[999] = a[999], a[998]
	require.NotEqual(t, want, asForm(strings.Join(slices.Concat(a, b), "&")).fingerprint())
}

func pairs(n int) (sorted, reversed string) {
	var a, b []string
	for i := range n {
		a = append(a, fmt.Sprintf("%05d=x", i))
		b = append(b, fmt.Sprintf("%05d=x", n-1-i))
	}
	return strings.Join(a, "&"), strings.Join(b, "&")
}

// Both handlers see the path "/x".
func TestFingerprintTellsApartWhatARouterStripped(t *testing.T) {
	t.Parallel()
	var prints []Fingerprint
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		prints = append(prints, fingerprintOf(r, nil))
	})
	for _, prefix := range []string{"/charge", "/refund"} {
		r := httptest.NewRequest("POST", prefix+"/x", nil)
		http.StripPrefix(prefix, h).ServeHTTP(httptest.NewRecorder(), r)
	}
	require.Len(t, prints, 2)
	require.True(t, prints[0].Differs(prints[1]))
}

// A middleware that rewrites the path may do so by what else the request says.
func TestFingerprintTellsApartWhatARouterRewrote(t *testing.T) {
	t.Parallel()
	plain, rewritten := httptest.NewRequest("POST", "/x", nil), httptest.NewRequest("POST", "/x", nil)
	rewritten.URL.Path = "/tenant/x"
	require.True(t, fingerprintOf(plain, nil).Differs(fingerprintOf(rewritten, nil)))
}

// Equal sums of the same version must mean the same after an update of this
// package: where one of these changes, fingerprintVersion has to.
func TestFingerprintIsStable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		request
		want string
	}{
		{"nothing", request{}, "c8d1d7cdb7c73d2043740c543a2501b9892a58341eae97b49c7299f948ba9db1"},
		{"JSON", asJSON(`{"b":"é","a":[1,2.50,null]}`), "98e8ba709225283f385d6558f169cf913d96219da599712afe006212b30a3076"},
		{"form", asForm("b=2&a=1"), "01ccdd50b526ba08451f6b61e4d7cebcc0b65219ba9fb6eade5f8674196149ee"},
		{"multipart", multipartRequest("b", "text/plain", "content"), "6e79c00352cb19e61e96bfc400f6727ffa26d13934d0d58d93d56ba40440a222"},
		{"query and plain text", request{"PATCH", "/a%2Fb?y=1&x=2", http.Header{"Content-Type": {"text/plain; charset=x"}}, "text"}, "da4c05feffc617f6a9657c22c173a721390b81653a1f5c36abe2e38dc728c18f"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := tt.fingerprint()
			require.Equal(t, uint8(1), f.Version)
			require.Equal(t, tt.want, hex.EncodeToString(f.Sum[:]))
		})
	}
}

func TestDiffersNeedsTheSameVersion(t *testing.T) {
	t.Parallel()
	a := Fingerprint{Version: 1, Sum: [32]byte{1}}
	require.False(t, a.Differs(a))
	require.True(t, a.Differs(Fingerprint{Version: 1, Sum: [32]byte{2}}))
	require.False(t, a.Differs(Fingerprint{Version: 2, Sum: [32]byte{2}}))
}

// A tiny alphabet with every separator makes requests that a careless
// concatenation would confuse.
func TestFingerprintsOfRandomRequestsAreDistinct(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	word := func(alphabet string) string {
		b := make([]byte, random.IntN(4))
		for i := range b {
			b[i] = alphabet[random.IntN(len(alphabet))]
		}
		return string(b)
	}
	type parts struct{ method, path, query, contentType, coding, body string }
	seen := map[Fingerprint]parts{}
	for range 100_000 {
		p := parts{
			"P" + word("PX"), "/" + word("a/"), sortPairs(word("a=&")),
			"a/b" + word("b"), word("a,"), word("a=&\x00{}"),
		}
		f := fingerprintOf(&http.Request{
			Method: p.method, URL: &url.URL{Path: p.path, RawQuery: p.query},
			Header: http.Header{"Content-Type": {p.contentType}, "Content-Encoding": {p.coding}},
		}, []byte(p.body))
		if other, ok := seen[f]; ok && other != p {
			t.Fatalf("%+v and %+v have the same fingerprint", other, p)
		}
		seen[f] = p
	}
	require.Greater(t, len(seen), 50_000)
}

func FuzzFingerprint(f *testing.F) {
	f.Add("POST", "/a?b=1&a=2", "application/json", `{"b":1,"a":2}`)
	f.Add("POST", "/", "application/x-www-form-urlencoded", "b=1&a=2&%62=3")
	q := multipartRequest("b", "text/plain", "1")
	f.Add("PATCH", "http://a.example/x", q.header.Get("Content-Type"), q.body)
	f.Fuzz(func(t *testing.T, method, target, contentType, body string) {
		r, err := http.NewRequest(method, target, nil)
		if err != nil {
			return
		}
		r.RequestURI = target
		r.Header.Set("Content-Type", contentType)
		kept := strings.Clone(body)
		want := fingerprintOf(r, []byte(body))
		require.Equal(t, want, fingerprintOf(r, []byte(body)), "the same request")
		require.Equal(t, kept, body)
		if !strings.Contains(strings.ToLower(contentType), "multipart/") { // where it may be an epilogue
			require.NotEqual(t, want, fingerprintOf(r, []byte(body+"x=")), "another body")
		}
		r.URL.RawQuery += "&x"
		require.NotEqual(t, want, fingerprintOf(r, []byte(body)), "another query")
	})
}
