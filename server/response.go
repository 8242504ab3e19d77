package server

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/idemhttp/idem/internal/digest"
	"github.com/idemhttp/idem/internal/keyfield"
)

// Response is an answer as it is stored and replayed.
type Response struct {
	StatusCode int
	Fields     []Field // in the order of the first answer; repeated names stay repeated
	Body       []byte
	// NotKept says that the operation is done but that its answer could not be
	// kept: its body was too large, or the handler hijacked the connection.
	// StatusCode is then the original status, 101 if a hijacker told none, Fields
	// and Body are empty, and nothing is ever executed or replayed for the key
	// again.
	NotKept bool
}

// Field is one line of a header section.
type Field struct{ Name, Value string }

// stored reports whether an answer with this status is final. After any other
// the operation is released, so that a retry executes it again: what went
// wrong may pass (5xx, 408, 425, 429), or be put right by the client without
// the request becoming another one (401, 403, 423).
func stored(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout,
		http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 200 && status <= 499
}

// bodyAllowed reports whether an answer with this status may have content
// (RFC 9110, section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// replay writes a stored answer. Its fields replace those of the same names
// that stand in w already, and so do the fields in own.
func replay(w http.ResponseWriter, r *http.Request, resp Response, own ...Field) error {
	resp = acceptable(resp, r.Header["Accept-Encoding"])
	h := w.Header()
	h["Content-Type"] = nil // whatever was sent the first time is stored, or there was none
	for _, f := range resp.Fields {
		delete(h, f.Name)
	}
	for _, f := range resp.Fields {
		h[f.Name] = append(h[f.Name], f.Value)
	}
	seal(h, r.Method, resp.StatusCode, resp.Body, true)
	set(h, own)
	w.WriteHeader(resp.StatusCode)
	return writeBody(w, resp.StatusCode, resp.Body)
}

func set(h http.Header, fields []Field) {
	for _, f := range fields {
		h[f.Name] = []string{f.Value}
	}
}

// seal adds the fields by which a client can tell that it got all of body.
// The digest is over the bytes as they stand here, so a middleware outside
// that encodes them has to drop it. A body that is not sized is to be sent
// without its length.
func seal(h http.Header, method string, status int, body []byte, sized bool) {
	if method == http.MethodHead || !bodyAllowed(status) {
		return
	}
	if _, ok := h[digest.Name]; !ok {
		h[digest.Name] = []string{digest.Of(body)}
	}
	if sized && len(h["Transfer-Encoding"]) == 0 {
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
}

func writeBody(w http.ResponseWriter, status int, body []byte) error {
	if len(body) == 0 || !bodyAllowed(status) {
		return nil
	}
	_, err := w.Write(body) //nolint:gosec // it is the handler's, and its business
	return err
}

// storedFields returns those fields of an answer that are worth keeping: what
// the handler set or changed, given the fields before it ran, in the order of
// their names and except for what belongs to one answer alone. The
// Content-Type is kept whoever set it.
func storedFields(before, sent http.Header) []Field {
	var fields []Field
	for _, name := range slices.Sorted(maps.Keys(sent)) {
		values := sent[name]
		unchanged := name != "Content-Type" && slices.Equal(values, before[name])
		if unchanged || perAnswer(name) || listed(sent["Connection"], name) {
			continue
		}
		for _, value := range values {
			fields = append(fields, Field{name, value})
		}
	}
	return fields
}

// perAnswer reports whether a field belongs to one answer alone and would be
// wrong on a replay: fields of the connection, of the caller's credentials or
// session, of this exchange, and those that the middleware itself writes.
func perAnswer(name string) bool {
	switch name = strings.ToLower(name); name {
	case "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
		"set-cookie", "www-authenticate", "proxy-authenticate", "authentication-info", "proxy-authentication-info",
		"date", "server-timing", "request-id", "x-request-id", "correlation-id", "x-correlation-id", "x-trace-id",
		"traceparent", "tracestate", "traceresponse", "x-amzn-requestid", "x-amzn-trace-id", "x-cloud-trace-context",
		"content-length", strings.ToLower(keyfield.Name), strings.ToLower(keyfield.Replayed):
		return true
	}
	for _, prefix := range []string{"ratelimit", "x-ratelimit", "x-rate-limit", strings.ToLower(http.TrailerPrefix)} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// listed reports whether name is a member of a comma-separated list of names.
func listed(lines []string, name string) bool {
	for _, line := range lines {
		for member := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(member), name) {
				return true
			}
		}
	}
	return false
}
