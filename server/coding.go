package server

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxDecoded is how many bytes a stored answer is decoded to at most.
const maxDecoded = 8 << 20

// acceptable returns resp without its gzip coding if the client refuses it. A
// handler is asked for no coding, but may have chosen one all the same. What
// cannot be decoded stays as it is, rightly labelled.
func acceptable(resp Response, accept []string) Response {
	var codings []string
	for _, f := range resp.Fields {
		if http.CanonicalHeaderKey(f.Name) == "Content-Encoding" {
			codings = append(codings, f.Value)
		}
	}
	if len(codings) != 1 || !isGzip(codings[0]) || acceptsGzip(accept) {
		return resp
	}
	body, err := gunzip(resp.Body)
	if err != nil || len(body) > maxDecoded {
		return resp
	}
	resp.Body = body
	resp.Fields = slices.DeleteFunc(slices.Clone(resp.Fields), func(f Field) bool {
		switch http.CanonicalHeaderKey(f.Name) { // all of them are about the bytes as they were
		case "Content-Encoding", "Content-Digest", "Repr-Digest", "Etag":
			return true
		}
		return false
	})
	return resp
}

func gunzip(coded []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(coded))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, maxDecoded+1))
}

func isGzip(coding string) bool {
	coding = strings.TrimSpace(coding)
	return strings.EqualFold(coding, "gzip") || strings.EqualFold(coding, "x-gzip")
}

// acceptsGzip reports whether a client that sends these lines of
// Accept-Encoding takes gzip (RFC 9110, section 12.5.3). One that sends none
// takes everything.
func acceptsGzip(accept []string) bool {
	accepted := len(accept) == 0
	for member := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		coding, params, _ := strings.Cut(member, ";")
		if isGzip(coding) {
			return !refused(params)
		}
		if strings.TrimSpace(coding) == "*" {
			accepted = !refused(params)
		}
	}
	return accepted
}

// refused reports whether the weight among params is 0.
func refused(params string) bool {
	for param := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(param, "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			weight, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return err == nil && weight == 0
		}
	}
	return false
}
