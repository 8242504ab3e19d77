package idem

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/jsonpointer"
	"github.com/idemhttp/idem/internal/keyfield"
	"github.com/idemhttp/idem/internal/problem"
	"github.com/idemhttp/idem/internal/retryafter"
)

// Dialect describes, as data, how a service speaks about idempotency: where the
// key goes and what answers mean. The zero value of every field is the
// behaviour of [Standard]. Package dialect has those of payment providers.
type Dialect struct {
	// Name is for people.
	Name string
	// Source is the address of the service's documentation.
	Source string

	// KeyField is the name of the field that carries the key. Empty means
	// Idempotency-Key.
	KeyField string
	// Quoted sends the key as a structured-field string, "k" instead of k.
	Quoted bool
	// KeyMember, if not empty, is the member of the JSON object in the body
	// that carries the key in place of a field.
	KeyMember string
	// KeyParameter, if not empty, is the query parameter that carries the key
	// in place of a field.
	KeyParameter string
	// FirstSentField, if not empty, is a field that carries the time when the
	// operation was made, [Operation.Created], or if that is not known the time
	// of the first attempt.
	FirstSentField string

	// MinKeyLength and MaxKeyLength bound the key's length in bytes. Zero means
	// 1 and 255.
	MinKeyLength, MaxKeyLength int
	// KeyAlphabet is what a key may consist of. Empty means all of visible
	// ASCII.
	KeyAlphabet string
	// UUIDKeys says that every key must be a UUID, in its form of 36 characters.
	UUIDKeys bool
	// KeyLifetime is how long the service remembers a key. An operation is not
	// sent any more when it is as old as that, because the service would take
	// it for a new one. Zero means that nothing is known about it.
	KeyLifetime time.Duration

	// ReplayFields are the fields that mark an answer as a replay when their
	// value is true, 1 or ?1. Nil means the spellings in common use.
	ReplayFields []string
	// Rules say what answers mean; the first that matches decides. Without a
	// match an answer means what it means in HTTP: 202 with Retry-After is in
	// progress; 408, 425, 429, 500, 502, 503 and 504 are transient; other 2xx
	// are done, other 4xx rejected, and all else uncertain. An answer that is
	// marked as a replay is never in progress or transient, since it would be
	// the same the next time.
	Rules []Rule
	// Hints say where an answer tells how long to wait, besides Retry-After.
	Hints []Hint
	// StatusField is the field of an answer "in progress" that holds the URL
	// under which the operation can be watched, such as Location. That is then
	// asked instead of sending again; its answers are judged by the same rules.
	// A URL of another origin ends the operation; one that is not known within
	// 2 s, or not any more, is left for sending again. Empty means to send
	// again in any case.
	StatusField string
}

// Rule gives the answers that it matches a meaning. Conditions that are zero
// match everything.
type Rule struct {
	// Status is a status code, or 1 to 5 for a class of them.
	Status int
	// Pointer is a JSON pointer (RFC 6901) to a string, number or boolean of
	// the body, which must be there and, unless Value is empty, be Value.
	Pointer, Value string
	// Field is a header field, which must be there and, unless FieldValue is
	// empty, be FieldValue in upper or lower case.
	Field, FieldValue string
	// Replayed says that the answer must be marked as a replay.
	Replayed bool

	// Verdict is the meaning.
	Verdict Verdict
	// Wait is how long to wait before the next attempt if the answer does not
	// say. Zero leaves it to the backoff.
	Wait time.Duration
}

// Hint is a place where an answer says how long to wait, as a number.
type Hint struct {
	Pointer string        // a JSON pointer into the body
	Field   string        // or the name of a header field
	Unit    time.Duration // of the number; required
}

// Verdict is what an answer means for the operation.
type Verdict uint8

// The verdicts. The zero value is none of them. In progress and transient mean
// to wait and send again; the others are final.
const (
	VerdictDone       Verdict = iota + 1 // this is the operation's answer
	VerdictInProgress                    // an earlier attempt is still working on it
	VerdictTransient                     // not now
	VerdictUncertain                     // it may have happened, and no retry will tell
	VerdictExists                        // it happened before, but this is not its answer
	VerdictKeyReused                     // the key belongs to another request
	VerdictRejected                      // it did not happen and will not
	VerdictExpired                       // the key is too old to be relied upon
)

func (v Verdict) final() bool { return v != VerdictInProgress && v != VerdictTransient }

func (v Verdict) outcome() Outcome {
	switch v {
	case VerdictDone, VerdictExists:
		return Done
	case VerdictInProgress:
		return Pending
	case VerdictKeyReused, VerdictRejected:
		return Rejected
	case VerdictExpired:
		return Expired
	default:
		return Unknown
	}
}

// codeRules are the rules for the problems of this module's server.
func codeRules(reused int) []Rule {
	return []Rule{
		{Status: reused, Pointer: "/code", Value: problem.KeyReuse, Verdict: VerdictKeyReused},
		{Status: http.StatusConflict, Pointer: "/code", Value: problem.NotKept, Verdict: VerdictExists},
		{Status: http.StatusConflict, Pointer: "/code", Value: problem.Indeterminate, Verdict: VerdictUncertain},
	}
}

// Standard is the contract of this module's server and of many payment APIs: a
// bare key, 202 for an operation in progress, 409 as the final word.
var Standard = &Dialect{
	Name:   "Standard",
	Source: "https://github.com/idemhttp/idem#the-contract",
	Rules:  codeRules(http.StatusConflict),
}

// IETF is the contract of draft-ietf-httpapi-idempotency-key-header-07: a
// quoted key, 409 for an operation in progress, 422 for a key that was used
// with another request.
var IETF = &Dialect{
	Name:   "IETF draft",
	Source: "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07",
	Quoted: true,
	Rules: append(codeRules(http.StatusUnprocessableEntity),
		Rule{Status: http.StatusConflict, Verdict: VerdictInProgress},
	),
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

// inField reports whether the key is carried by a field.
func (d *Dialect) inField() bool { return d.KeyMember == "" && d.KeyParameter == "" }

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
	if !d.Quoted {
		key := Key(strings.Trim(line, " \t"))
		return key, d.checkKey(key)
	}
	key, err := keyfield.Parse([]string{line})
	if err != nil {
		return "", &UsageError{Field: d.keyField(), Reason: err.Error()}
	}
	return Key(key), d.checkKey(Key(key))
}

// checkKey reports what keeps the service from taking key.
func (d *Dialect) checkKey(key Key) error {
	if err := keyfield.Check(string(key)); err != nil {
		return &UsageError{Field: "Key", Reason: err.Error() + "; mint one with NewKey or DeriveKey"}
	}
	var reason string
	switch {
	case d.UUIDKeys && (len(key) != 36 || uuid.Validate(string(key)) != nil):
		reason = "must be a UUID"
	case d.KeyAlphabet != "" && strings.Trim(string(key), d.KeyAlphabet) != "":
		reason = fmt.Sprintf("must consist of %q", d.KeyAlphabet)
	case len(key) < d.MinKeyLength:
		reason = fmt.Sprintf("must have at least %d bytes", d.MinKeyLength)
	case d.MaxKeyLength > 0 && len(key) > d.MaxKeyLength:
		reason = fmt.Sprintf("must have at most %d bytes", d.MaxKeyLength)
	default:
		return nil
	}
	return &UsageError{Field: "Key", Reason: "a key for " + d.Name + " " + reason}
}

// inBody returns body with the key as a member. A key that is there already is
// kept if it is the same, or if key may yield to it.
func (d *Dialect) inBody(body []byte, key Key, mayYield bool) ([]byte, Key, error) {
	if len(body) == 0 {
		body = []byte("{}")
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil || members == nil {
		return nil, "", &UsageError{Field: "Body", Reason: "it must be a JSON object, in which " + d.Name + " wants the key as " + d.KeyMember}
	}
	if raw, there := members[d.KeyMember]; there {
		var own Key
		if json.Unmarshal(raw, &own) != nil || own != key && !mayYield {
			return nil, "", &UsageError{Field: "Body", Reason: "its member " + d.KeyMember + " is not the key"}
		}
		return body, own, nil
	}
	member, _ := json.Marshal(map[string]Key{d.KeyMember: key})
	start := bytes.IndexByte(body, '{') + 1
	member = member[1 : len(member)-1]
	if len(members) > 0 {
		member = append(member, ',')
	}
	return bytes.Join([][]byte{body[:start], member, body[start:]}, nil), key, nil
}

// inQuery returns u with the key as a parameter, by the rules of inBody.
func (d *Dialect) inQuery(u *url.URL, key Key, mayYield bool) (*url.URL, Key, error) {
	if query := u.Query(); query.Has(d.KeyParameter) {
		own := Key(query.Get(d.KeyParameter))
		if own != key && !mayYield {
			return nil, "", &UsageError{Field: "URL", Reason: "its parameter " + d.KeyParameter + " is not the key"}
		}
		return u, own, nil
	}
	with := *u
	if with.RawQuery != "" {
		with.RawQuery += "&"
	}
	with.RawQuery += url.QueryEscape(d.KeyParameter) + "=" + url.QueryEscape(string(key))
	return &with, key, nil
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

// needsBody reports whether what an answer with status means, or how long it
// asks to wait, depends on its body.
func (d *Dialect) needsBody(status int) bool {
	for i := range d.Rules {
		if d.Rules[i].Pointer != "" && d.Rules[i].matchesStatus(status) {
			return true
		}
	}
	for i := range d.Hints {
		if d.Hints[i].Pointer != "" && (status == http.StatusAccepted || transient(status)) {
			return true
		}
	}
	return false
}

// judge decides what an answer to a keyed request means, and how long to wait
// if the answer does not say. The body is looked at only where needsBody asks
// for it.
func (d *Dialect) judge(status int, h http.Header, body []byte) (Verdict, time.Duration) {
	replayed := d.replayed(h)
	var document jsonpointer.Document
	if d.needsBody(status) {
		document = jsonpointer.Parse(body)
	}
	for i := range d.Rules {
		if d.Rules[i].matches(status, h, document, replayed) {
			return d.Rules[i].Verdict, d.Rules[i].Wait
		}
	}
	return unruled(status, h, replayed), 0
}

// unruled is what an answer means in HTTP.
func unruled(status int, h http.Header, replayed bool) Verdict {
	switch {
	case status == http.StatusAccepted && h.Get("Retry-After") != "" && !replayed:
		return VerdictInProgress
	case transient(status) && !replayed:
		return VerdictTransient
	case status >= 200 && status <= 299:
		return VerdictDone
	case status >= 400 && status <= 499:
		return VerdictRejected
	}
	return VerdictUncertain
}

func (r *Rule) matchesStatus(status int) bool {
	return r.Status == 0 || r.Status == status || r.Status == status/100
}

func (r *Rule) matches(status int, h http.Header, document jsonpointer.Document, replayed bool) bool {
	if !r.matchesStatus(status) || r.Replayed && !replayed {
		return false
	}
	if r.Pointer != "" {
		if value, found := document.Find(r.Pointer); !found || r.Value != "" && value != r.Value {
			return false
		}
	}
	return r.Field == "" || h.Get(r.Field) != "" && (r.FieldValue == "" || strings.EqualFold(h.Get(r.Field), r.FieldValue))
}

// hint returns how long an answer asks to wait.
func (d *Dialect) hint(h http.Header, body []byte, now time.Time) time.Duration {
	longest, _ := retryafter.Delay(h, now)
	for _, hint := range d.Hints {
		text := h.Get(hint.Field)
		if hint.Pointer != "" {
			text, _ = jsonpointer.Parse(body).Find(hint.Pointer)
		}
		if n, err := strconv.ParseFloat(text, 64); err == nil && n > 0 {
			longest = max(longest, saturated(n*float64(hint.Unit)))
		}
	}
	return longest
}

func saturated(d float64) time.Duration {
	if d >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(d)
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
