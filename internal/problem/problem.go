// Package problem reads and writes problem details (RFC 9457), with the code
// member that client and server agree on.
package problem

import (
	"encoding/json"
	"maps"
	"mime"
)

// ContentType is the media type of problem details in JSON.
const ContentType = "application/problem+json"

// Codes of the contract.
const (
	KeyReuse         = "IDEMPOTENCY_KEY_REUSE"
	KeyMissing       = "IDEMPOTENCY_KEY_MISSING"
	KeyInvalid       = "IDEMPOTENCY_KEY_INVALID"
	NotKept          = "RESPONSE_NOT_KEPT"
	Indeterminate    = "OPERATION_INDETERMINATE"
	TooLarge         = "REQUEST_TOO_LARGE"
	StoreUnavailable = "STORE_UNAVAILABLE"
)

// Details are the members of a problem. Zero members are left out when
// written. Members holds the extension members other than code.
type Details struct {
	Type     string         // a URI reference; "" means about:blank
	Title    string         // the same for every occurrence of the type
	Status   int            // the status code that the origin sent
	Detail   string         // what happened this time
	Instance string         // a URI reference of this occurrence
	Code     string         // extension: the cause, for programs
	Members  map[string]any // other extension members
}

// MarshalJSON implements [json.Marshaler].
func (d Details) MarshalJSON() ([]byte, error) {
	m := make(map[string]any, len(d.Members)+6)
	maps.Copy(m, d.Members)
	for name, value := range map[string]string{
		"type": d.Type, "title": d.Title, "detail": d.Detail, "instance": d.Instance, "code": d.Code,
	} {
		delete(m, name)
		if value != "" {
			m[name] = value
		}
	}
	delete(m, "status")
	if d.Status != 0 {
		m["status"] = d.Status
	}
	return json.Marshal(m)
}

// Parse reads problem details from a response body, or returns nil if
// contentType does not announce them or the body is not a JSON object. As
// section 3.1 of the RFC demands, a member of the wrong type is ignored.
func Parse(contentType string, body []byte) *Details {
	if mediaType, _, err := mime.ParseMediaType(contentType); err != nil || mediaType != ContentType {
		return nil
	}
	var m map[string]any
	if json.Unmarshal(body, &m) != nil || m == nil {
		return nil
	}
	var d Details
	take := func(name string) string {
		s, _ := m[name].(string)
		delete(m, name)
		return s
	}
	d.Type, d.Title, d.Detail, d.Instance, d.Code = take("type"), take("title"), take("detail"), take("instance"), take("code")
	if status, ok := m["status"].(float64); ok && status >= 100 && status <= 999 && status == float64(int(status)) {
		d.Status = int(status)
	}
	delete(m, "status")
	if len(m) > 0 {
		d.Members = m
	}
	return &d
}
