package idem

import (
	"net/http"
	"strings"

	"github.com/idemhttp/idem/internal/keyfield"
	"github.com/idemhttp/idem/internal/problem"
)

// Dialect describes, as data, how a service speaks about idempotency: where the
// key goes and what its answers mean. The zero value of every field is the
// behaviour of [Standard].
type Dialect struct {
	// Name is printed in logs.
	Name string
	// KeyField is the name of the field that carries the key. Empty means
	// Idempotency-Key.
	KeyField string
	// Quoted sends the key as a structured-field string, "k" instead of k.
	Quoted bool
	// ReplayFields are the fields that mark an answer as a replay when their
	// value is true, 1 or ?1. Nil means the spellings in common use.
	ReplayFields []string
	// Rules say what answers mean; the first that matches decides. Answers
	// that none matches mean what they mean in HTTP: 409 is a conflict, 202
	// with Retry-After is an operation in progress, 408, 425, 429, 500, 502,
	// 503 and 504 are transient, and everything else is final.
	Rules []Rule
}

// Rule gives the answers that it matches a meaning.
type Rule struct {
	Status  int    // the status code to match
	Code    string // the code member of problem details to match; "" matches any body
	Verdict Verdict
}

// Verdict is what an answer means for the operation.
type Verdict uint8

// The verdicts. The zero value is none of them.
const (
	VerdictFinal      Verdict = iota + 1 // the operation has this answer
	VerdictInProgress                    // an earlier attempt is still working on it: wait, send again
	VerdictTransient                     // not now: wait, send again
	VerdictConflict                      // refused for a reason that no retry changes: a *ConflictError
)

// Standard is the contract of this module's server and of most payment APIs: a
// bare key, 202 for an operation in progress, 409 as the final word.
var Standard = &Dialect{Name: "standard"}

// IETF is the contract of draft-ietf-httpapi-idempotency-key-header-07: a
// quoted key, 409 for an operation in progress, 422 for a key that was used
// with another request.
var IETF = &Dialect{
	Name:   "ietf",
	Quoted: true,
	Rules: []Rule{
		{Status: http.StatusConflict, Code: problem.NotKept, Verdict: VerdictConflict},
		{Status: http.StatusConflict, Code: problem.Indeterminate, Verdict: VerdictConflict},
		{Status: http.StatusConflict, Verdict: VerdictInProgress},
		{Status: http.StatusUnprocessableEntity, Code: problem.KeyReuse, Verdict: VerdictConflict},
	},
}

// replaySpellings are the names under which services mark a replay.
var replaySpellings = []string{
	keyfield.Replayed, "Idempotency-Replayed", "Idempotent-Replay", "Idempotency-Replay",
	"X-Idempotent-Replayed", "X-Idempotency-Replayed", "X-Idempotent-Replay", "X-Idempotency-Replay",
}

func (d *Dialect) keyField() string {
	if d.KeyField == "" {
		return keyfield.Name
	}
	return http.CanonicalHeaderKey(d.KeyField)
}

// keyLine is the value of the key field for key.
func (d *Dialect) keyLine(key Key) string {
	if d.Quoted {
		return keyfield.Quote(string(key))
	}
	return string(key)
}

// parseKey is the reverse of keyLine, for a key that a caller has put on a
// request. Outside a quoting dialect quotes are part of the key: the service
// decides what they mean.
func (d *Dialect) parseKey(line string) (Key, error) {
	if d.Quoted {
		key, err := keyfield.Parse([]string{line})
		if err != nil {
			return "", &UsageError{Field: d.keyField(), Reason: err.Error()}
		}
		return Key(key), nil
	}
	key := Key(strings.Trim(line, " \t"))
	return key, key.check()
}

func (d *Dialect) replayed(h http.Header) bool {
	fields := d.ReplayFields
	if fields == nil {
		fields = replaySpellings
	}
	for _, field := range fields {
		switch strings.ToLower(h.Get(field)) {
		case "true", "1", "?1":
			return true
		}
	}
	return false
}

// needsBody reports whether the verdict on status depends on the body.
func (d *Dialect) needsBody(status int) bool {
	for _, rule := range d.Rules {
		if rule.Status == status && rule.Code != "" {
			return true
		}
	}
	return false
}

// judge decides what an answer to a keyed request means. The body is looked at
// only where needsBody asks for it.
func (d *Dialect) judge(status int, h http.Header, body []byte) Verdict {
	code := ""
	if d.needsBody(status) {
		if p := problem.Parse(h.Get("Content-Type"), body); p != nil {
			code = p.Code
		}
	}
	for _, rule := range d.Rules {
		if rule.Status == status && (rule.Code == "" || rule.Code == code) {
			return rule.Verdict
		}
	}
	switch {
	case status == http.StatusConflict:
		return VerdictConflict
	case status == http.StatusAccepted && h.Get("Retry-After") != "" && !d.replayed(h):
		return VerdictInProgress
	case transient(status):
		return VerdictTransient
	}
	return VerdictFinal
}

// transient reports whether status says that the request may succeed later.
func transient(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
