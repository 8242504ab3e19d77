package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
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
// over its method, path, query, content coding, media type and body. Scheme,
// host and other fields are no part of it.
//
// Everything is compared as it is spelled, but for this:
//
//   - The parameters of a query or form may be reordered, as long as the values
//     of a repeated name keep their order.
//   - Case and white space in the media type do not matter, nor does the order
//     of its parameters.
//   - JSON is compared as package canonjson does, with or without charset=utf-8.
//   - The boundary of a multipart body does not matter.
//
// A body that is not what its media type says, or that has a content coding,
// counts as the bytes it is made of. Nothing is ever decompressed.
func fingerprintOf(r *http.Request, body []byte) Fingerprint {
	mediaType, form, canonical := content(r.Header, body)
	head := appendTexts(nil, "idem request", r.Method, requestedPath(r), r.URL.EscapedPath(), sortPairs(r.URL.RawQuery))
	head = appendTexts(head, r.Header["Content-Encoding"]...)
	head = appendTexts(head, mediaType...)
	head = appendTexts(head, form)
	h := sha256.New()
	h.Write(head)
	h.Write(canonical)
	return Fingerprint{fingerprintVersion, [sha256.Size]byte(h.Sum(nil))}
}

// appendTexts appends a list so that different sequences of lists never make
// the same bytes: each list is preceded by its length, and so is each text.
func appendTexts(dst []byte, texts ...string) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(texts)))
	for _, text := range texts {
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(text)))
		dst = append(dst, text...)
	}
	return dst
}

// requestedPath returns the path that the client asked for. Behind a router
// that strips prefixes, r.URL no longer tells.
func requestedPath(r *http.Request) string {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if _, rest, absolute := strings.Cut(path, "://"); absolute && path[0] != '/' {
		_, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	return path
}

// maxPairs is how many parameters are sorted. It is the limit of package
// net/url; more of them, which no handler can read, count as they stand.
const maxPairs = 10_000

// sortPairs sorts the parameters of a query or form by their names, as these
// read when unescaped. Their spelling stays.
func sortPairs(encoded string) string {
	if strings.Count(encoded, "&") >= maxPairs {
		return encoded
	}
	type pair struct{ name, spelled string }
	var pairs []pair
	for spelled := range strings.SplitSeq(encoded, "&") {
		pairs = append(pairs, pair{pairName(spelled), spelled})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	sorted := make([]byte, 0, len(encoded)+1)
	for _, p := range pairs {
		sorted = append(append(sorted, p.spelled...), '&')
	}
	return string(sorted[:len(encoded)])
}

func pairName(pair string) string {
	escaped, _, _ := strings.Cut(pair, "=")
	name, err := url.QueryUnescape(escaped)
	if err != nil {
		return escaped
	}
	return name
}

// content describes the media type of a body, and returns the body in its
// canonical form together with the name of that form.
func content(h http.Header, body []byte) (mediaType []string, form string, canonical []byte) {
	types := h["Content-Type"]
	if len(types) != 1 {
		return append([]string{"untyped"}, types...), "bytes", body
	}
	name, params, err := mime.ParseMediaType(types[0])
	if err != nil {
		return append([]string{"untyped"}, types...), "bytes", body
	}
	form, canonical = "bytes", body
	if len(h["Content-Encoding"]) == 0 {
		form, canonical = canonicalBody(name, params, body)
	}
	mediaType = []string{"typed", name}
	for _, param := range slices.Sorted(maps.Keys(params)) {
		mediaType = append(mediaType, param, params[param])
	}
	return mediaType, form, canonical
}

// canonicalBody deletes those params that say nothing about the canonical form.
func canonicalBody(mediaType string, params map[string]string, body []byte) (form string, canonical []byte) {
	switch {
	case mediaType == "application/json" || strings.HasSuffix(mediaType, "+json"):
		if strings.EqualFold(params["charset"], "utf-8") {
			delete(params, "charset")
		}
		canonical, ok := canonjson.Append(nil, body)
		if ok && params["charset"] == "" {
			return "json", canonical
		}
	case mediaType == "application/x-www-form-urlencoded":
		return "form", []byte(sortPairs(string(body)))
	case strings.HasPrefix(mediaType, "multipart/") && params["boundary"] != "":
		if canonical, ok := canonicalParts(body, params["boundary"]); ok {
			delete(params, "boundary")
			return "multipart", canonical
		}
	}
	return "bytes", body
}

// maxParts is how many parts of a multipart body are told apart. It is the
// limit of package mime/multipart.
const maxParts = 1000

// canonicalParts returns the fields of each part and a sum of its content, none
// of which depends on the boundary between the parts.
func canonicalParts(body []byte, boundary string) ([]byte, bool) {
	var canonical []byte
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for range maxParts + 1 {
		part, err := parts.NextRawPart()
		if err == io.EOF { // a wrapped one says that the last boundary is missing
			return canonical, true
		}
		if err != nil {
			return nil, false
		}
		names := slices.Sorted(maps.Keys(part.Header))
		canonical = appendTexts(canonical, names...)
		for _, name := range names {
			canonical = appendTexts(canonical, part.Header[name]...)
		}
		h := sha256.New()
		if _, err := io.Copy(h, part); err != nil {
			return nil, false
		}
		canonical = h.Sum(canonical)
	}
	return nil, false
}
