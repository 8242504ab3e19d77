package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/idemhttp/idem/internal/canonjson"
)

// Fingerprint identifies the meaning of a request: two requests with the same
// fingerprint ask for the same thing.
type Fingerprint struct {
	// Version is the scheme by which Sum was computed.
	Version uint8
	Sum     [sha256.Size]byte
}

// Differs reports whether f and other are proved to belong to different
// requests. Sums of different versions prove nothing.
func (f Fingerprint) Differs(other Fingerprint) bool {
	return f.Version == other.Version && f.Sum != other.Sum
}

// fingerprintVersion is the scheme of fingerprintOf. It changes whenever the
// sum of any request does.
const fingerprintVersion = 1

// fingerprintOf computes the fingerprint of r with the given body: a SHA-256
// over its method, path, query, media type, content coding and body. Scheme,
// host and other fields are no part of it.
//
// Everything is compared as it is spelled, but for this:
//
//   - Parameters of the query and of a form may be reordered, as long as the
//     values of a repeated name keep their order.
//   - Of the media type, case and white space do not matter, nor the order of
//     its parameters.
//   - JSON is compared by value, though numbers by spelling (package
//     canonjson), and charset=utf-8 says nothing about it.
//   - The boundary of a multipart body does not matter.
//
// A body that is not what its media type says, or that has a content coding,
// counts as plain bytes; nothing is ever decompressed.
func fingerprintOf(r *http.Request, body []byte) Fingerprint {
	s := sum{sha256.New()}
	s.part("idem request")
	s.part(r.Method)
	s.part(r.URL.EscapedPath())
	s.part(requestPath(r))
	s.pairs(r.URL.RawQuery)
	s.content(r.Header, body)
	return Fingerprint{fingerprintVersion, [sha256.Size]byte(s.Sum(nil))}
}

// requestPath returns the path that the client asked for, which r.URL no
// longer tells behind a router that strips prefixes.
func requestPath(r *http.Request) string {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if _, rest, absolute := strings.Cut(path, "://"); absolute && path[0] != '/' {
		_, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	return path
}

// sum is a hash over parts, each preceded by its length, so that no two
// sequences of parts are the same bytes.
type sum struct{ hash.Hash }

func (s sum) length(n int) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	s.Write(b[:])
}

func (s sum) part(p string) { s.bytes([]byte(p)) }

func (s sum) bytes(p []byte) {
	s.length(len(p))
	s.Write(p)
}

func (s sum) parts(ps []string) {
	s.length(len(ps))
	for _, p := range ps {
		s.part(p)
	}
}

// pairs adds the parameters of a query or form, sorted by their names as these
// read when unescaped, otherwise as they are spelled.
func (s sum) pairs(encoded string) {
	type pair struct{ name, spelled string }
	var pairs []pair
	for spelled := range strings.SplitSeq(encoded, "&") {
		escaped, _, _ := strings.Cut(spelled, "=")
		name, err := url.QueryUnescape(escaped)
		if err != nil {
			name = escaped
		}
		pairs = append(pairs, pair{name, spelled})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	s.length(len(pairs))
	for _, p := range pairs {
		s.part(p.spelled)
	}
}

// content adds the body and the fields that say what it is.
func (s sum) content(h http.Header, body []byte) {
	s.parts(h["Content-Encoding"])
	mediaType, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || len(h["Content-Type"]) != 1 {
		s.part("unknown")
		s.parts(h["Content-Type"])
		s.raw(body)
		return
	}
	s.part("known")
	s.part(mediaType)

	isJSON := mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
	if isJSON && strings.EqualFold(params["charset"], "utf-8") {
		delete(params, "charset")
	}
	isMultipart := strings.HasPrefix(mediaType, "multipart/")
	boundary := params["boundary"]
	coded := len(h["Content-Encoding"]) > 0
	switch {
	case coded:
	case isJSON && params["charset"] == "":
		if canonical, ok := canonjson.Append(nil, body); ok {
			s.params(params)
			s.part("json")
			s.bytes(canonical)
			return
		}
	case mediaType == "application/x-www-form-urlencoded":
		s.params(params)
		s.part("form")
		s.pairs(string(body))
		return
	case isMultipart:
		if parts, ok := multipartSum(body, boundary); ok {
			delete(params, "boundary")
			s.params(params)
			s.part("multipart")
			s.bytes(parts)
			return
		}
	}
	s.params(params)
	s.raw(body)
}

func (s sum) raw(body []byte) {
	s.part("raw")
	s.bytes(body)
}

func (s sum) params(params map[string]string) {
	s.length(len(params))
	for _, name := range slices.Sorted(maps.Keys(params)) {
		s.part(name)
		s.part(params[name])
	}
}

// maxParts is how many parts of a multipart body are told apart, as many as
// package mime/multipart reads.
const maxParts = 1000

// multipartSum returns a sum over the parts of a multipart body, which does not
// depend on the boundary between them.
func multipartSum(body []byte, boundary string) ([]byte, bool) {
	s := sum{sha256.New()}
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for range maxParts {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return s.Sum(nil), true
		}
		if err != nil {
			return nil, false
		}
		s.length(len(part.Header))
		for _, name := range slices.Sorted(maps.Keys(part.Header)) {
			s.part(name)
			s.parts(part.Header[name])
		}
		content := sha256.New()
		if _, err := io.Copy(content, part); err != nil {
			return nil, false
		}
		s.Write(content.Sum(nil))
	}
	return nil, false
}
