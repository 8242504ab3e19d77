package idem

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// maxBody bounds a body that has to be held in memory to be sent again.
const maxBody = 32 << 20

// Operation is one write that must happen once: a key and the exact bytes that
// go with it. It is a plain value; encode it as JSON and store it before it is
// sent, and a process that comes after a crash can [Send] it again.
type Operation struct {
	// Key names the operation. NewOperation mints one; replace it with a
	// [DeriveKey] where there is something to derive it from.
	Key Key `json:"key"`
	// Method is the HTTP method.
	Method string `json:"method"`
	// URL is absolute, or relative to [Client.BaseURL].
	URL string `json:"url"`
	// Header holds fields of this operation. Credentials belong into
	// [Client.Header], so that they are never stored with an operation.
	Header http.Header `json:"header,omitempty"`
	// Body is sent as it is on every attempt.
	Body []byte `json:"body,omitempty"`
}

// NewOperation returns an operation with a new random key and body frozen into
// bytes. A []byte, string or io.Reader is taken as it is (a reader is read to
// its end, at most 32 MiB, and not closed), url.Values become a form, nil is no
// body, and anything else is encoded as JSON. The last two set Content-Type.
// The error, if any, is a *[UsageError].
func NewOperation(method, url string, body any) (Operation, error) {
	frozen, contentType, err := freeze(body)
	if err != nil {
		return Operation{}, &UsageError{Field: "Operation.Body", Reason: "the body cannot be made into bytes", Err: err}
	}
	op := Operation{Key: NewKey(), Method: method, URL: url, Body: frozen}
	if contentType != "" {
		op.Header = http.Header{"Content-Type": {contentType}}
	}
	return op, nil
}

func freeze(body any) (frozen []byte, contentType string, err error) {
	switch body := body.(type) {
	case nil:
		return nil, "", nil
	case []byte:
		return bytes.Clone(body), "", nil
	case string:
		return []byte(body), "", nil
	case url.Values:
		return []byte(body.Encode()), "application/x-www-form-urlencoded", nil
	case io.Reader:
		frozen, err = readBounded(body, maxBody)
		return frozen, "", err
	default:
		frozen, err = json.Marshal(body)
		return frozen, "application/json", err
	}
}

// readBounded reads r to its end and fails if that is beyond limit bytes.
func readBounded(r io.Reader, limit int64) ([]byte, error) {
	if limit < NoLimit {
		r = io.LimitReader(r, limit+1)
	}
	body, err := io.ReadAll(r)
	if err == nil && int64(len(body)) > limit {
		return nil, &tooLargeError{limit}
	}
	return body, err
}

// tooLargeError says that a body is beyond its bound.
type tooLargeError struct{ limit int64 }

func (e *tooLargeError) Error() string { return fmt.Sprintf("it is larger than %d bytes", e.limit) }
