package idem

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/idemhttp/idem/internal/bounded"
	"github.com/idemhttp/idem/internal/rfc9110"
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
	// Created is when NewOperation made it. A service forgets keys, and Send
	// refuses an operation that is older than [Dialect.KeyLifetime]. Zero means
	// that its age is not known.
	Created time.Time `json:"created,omitzero"`
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
	op := Operation{Key: NewKey(), Method: method, URL: url, Body: frozen, Created: time.Now().UTC().Round(0)}
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
		frozen, err = bounded.Read(nil, body, -1, maxBody)
		return frozen, "", err
	default:
		frozen, err = json.Marshal(body)
		return frozen, "application/json", err
	}
}

// operationCall prepares the sending of op.
func (c *Client) operationCall(op *Operation) (*call, error) {
	if op.Key == "" {
		return nil, c.dialect().checkKey("")
	}
	if op.Method == "" {
		return nil, &UsageError{Field: "Operation.Method", Reason: "it is empty; it must be an HTTP method such as POST"}
	}
	u, err := url.Parse(op.URL)
	if err != nil {
		return nil, unparsable("Operation.URL", err)
	}
	if lines, set := rfc9110.Lines(op.Header, c.dialect().keyField()); set {
		return nil, keyInHeader("Operation.Header", "put it into Operation.Key", len(lines))
	}
	req := http.Request{Method: op.Method, URL: u, Header: op.Header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	call, err := c.newCall(&req, op.Key)
	if err != nil {
		return nil, err
	}
	call.body, call.created = op.Body, op.Created
	return call, call.placeKey(false)
}

// requestCall prepares the sending of req and takes over its body.
func (c *Client) requestCall(req *http.Request) (_ *call, err error) {
	defer func() {
		if err != nil && req.Body != nil {
			_ = req.Body.Close()
		}
	}()
	key, err := c.keyFor(req)
	if err != nil {
		return nil, err
	}
	call, err := c.newCall(req, key)
	if err != nil || key == "" {
		return call, err
	}
	if err := call.freezeBody(); err != nil {
		return nil, err
	}
	call.created = time.Now()
	return call, call.placeKey(true)
}

// placeKey puts the key where the service wants it, and checks it. A key that is
// already there replaces one that may yield.
func (c *call) placeKey(mayYield bool) (err error) {
	switch d := c.dialect; {
	case d.KeyMember != "":
		c.body, c.key, err = d.inBody(c.body, c.key, mayYield)
	case d.KeyParameter != "":
		c.request.URL, c.key, err = d.inQuery(c.request.URL, c.key, mayYield)
	}
	return cmp.Or(err, c.dialect.checkKey(c.key))
}

// keyFor returns the key that req is to be sent with, or "" for none. Where the
// key is not in a field, one in the request takes its place later.
func (c *Client) keyFor(req *http.Request) (Key, error) {
	d := c.dialect()
	lines, set := rfc9110.Lines(req.Header, d.keyField())
	switch {
	case rfc9110.IsSafe(req.Method), set && len(lines) == 0:
		return "", nil
	case len(lines) == 1:
		return d.parseKey(lines[0])
	case len(lines) > 1:
		return "", &UsageError{Field: d.keyField(), Reason: fmt.Sprintf("the field has %d values; set one", len(lines))}
	}
	switch strings.ToUpper(req.Method) {
	case http.MethodPost, http.MethodPatch:
		return NewKey(), nil
	}
	return "", nil
}

// newCall checks a request that is to be sent under key, or without one.
func (c *Client) newCall(req *http.Request, key Key) (*call, error) {
	policy, err := c.Retry.withDefaults()
	if err != nil {
		return nil, err
	}
	if c.MaxResponseBytes < 0 {
		return nil, negative("Client.MaxResponseBytes")
	}
	call := &call{client: c, dialect: c.dialect(), request: *req, key: key, pacer: pacer{policy: policy, budget: policy.Budget}}
	if call.pacer.budget == nil {
		call.pacer.budget = &c.budget
	}
	if lines, set := rfc9110.Lines(c.Header, call.dialect.keyField()); set {
		return nil, keyInHeader("Client.Header", "a key belongs to one operation, not to a client", len(lines))
	}
	if call.request.URL, call.foreign, err = c.resolve(req.URL); err != nil {
		return nil, err
	}
	return call, call.check()
}

// check finds out what net/http would refuse only when it is asked to send.
func (c *call) check() error {
	if c.request.Method != "" && !rfc9110.IsToken(c.request.Method) {
		return &UsageError{Field: "Method", Reason: "it must be an HTTP method such as POST"}
	}
	if !rfc9110.IsToken(c.dialect.keyField()) {
		return &UsageError{Field: "Dialect.KeyField", Reason: "it is not a field name"}
	}
	for name := range c.request.Trailer {
		switch http.CanonicalHeaderKey(name) {
		case "Transfer-Encoding", "Trailer", "Content-Length":
			return &UsageError{Field: "Trailer", Reason: name + " must not be sent as a trailer"}
		}
	}
	if err := cmp.Or(rfc9110.CheckHeader(c.request.Header), rfc9110.CheckHeader(c.client.Header), rfc9110.CheckHeader(c.request.Trailer)); err != nil {
		return &UsageError{Field: "Header", Reason: err.Error()}
	}
	return nil
}

// freezeBody reads the body of the request, closes it, and checks that it is
// whole.
func (c *call) freezeBody() error {
	body, declared := c.request.Body, c.request.ContentLength
	c.request.Body = nil
	if body == nil || body == http.NoBody {
		return nil
	}
	var err error
	c.body, err = bounded.Read(c.requestSpace[:0], body, declared, maxBody)
	if err = errors.Join(err, body.Close()); err != nil {
		return &UsageError{Field: "Request.Body", Reason: "a keyed request is held in memory to be sent again, but its body cannot be read", Err: err}
	}
	if declared > 0 && declared != int64(len(c.body)) {
		return &UsageError{Field: "Request.Body", Reason: fmt.Sprintf("ContentLength is %d but the body has %d bytes", declared, len(c.body))}
	}
	return nil
}

// resolve returns u as an absolute URL, and whether it leads to another origin
// than that of BaseURL.
func (c *Client) resolve(u *url.URL) (absolute *url.URL, foreign bool, err error) {
	if u == nil {
		return nil, false, &UsageError{Field: "URL", Reason: "it is nil"}
	}
	var base *url.URL
	if c.BaseURL != "" {
		if !strings.Contains(c.BaseURL, "://") {
			return nil, false, &UsageError{Field: "Client.BaseURL", Reason: "it has no scheme; begin it with https://"}
		}
		if base, err = url.Parse(c.BaseURL); err != nil {
			return nil, false, unparsable("Client.BaseURL", err)
		}
		if err := checkURL("Client.BaseURL", base); err != nil {
			return nil, false, err
		}
		if base.RawQuery != "" || base.Fragment != "" {
			return nil, false, &UsageError{Field: "Client.BaseURL", Reason: "it has a query or a fragment; give them with the URL of each operation"}
		}
	}
	if u.Host == "" && u.Scheme == "" {
		if base == nil {
			return nil, false, &UsageError{Field: "URL", Reason: "it is relative; give an absolute URL or set Client.BaseURL"}
		}
		u = join(base, u)
	}
	if err := checkURL("URL", u); err != nil {
		return nil, false, err
	}
	return u, base != nil && rfc9110.Origin(base) != rfc9110.Origin(u), nil
}

func checkURL(field string, u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return &UsageError{Field: field, Reason: fmt.Sprintf("its scheme is %q; it must be http or https", u.Scheme)}
	}
	if u.Hostname() == "" {
		return &UsageError{Field: field, Reason: "it has no host"}
	}
	return nil
}

// join puts base in front of relative, byte for byte: nothing is cleaned or
// resolved, because a service may tell "/a//b" from "/a/b".
func join(base, relative *url.URL) *url.URL {
	concat := func(a, b string) string {
		if b == "" {
			return a
		}
		return strings.TrimSuffix(a, "/") + "/" + strings.TrimPrefix(b, "/")
	}
	joined := *base
	joined.Path, joined.RawPath = concat(base.Path, relative.Path), concat(base.EscapedPath(), relative.EscapedPath())
	joined.RawQuery, joined.Fragment = relative.RawQuery, relative.Fragment
	return &joined
}

func unparsable(field string, err error) error {
	// A *url.Error repeats the URL, which may hold credentials.
	var parse *url.Error
	if errors.As(err, &parse) {
		err = parse.Err
	}
	if strings.HasPrefix(err.Error(), "invalid port ") { // and the beginning of a password that has a slash
		err = errors.New("invalid port, or a password in which a / is not written as %2F")
	}
	return &UsageError{Field: field, Reason: "it is not a URL", Err: err}
}

// replayable is a field by which net/http knows that it may send a request
// again by itself when it finds the connection dead. Without a value it is not
// sent. Every keyed request has it.
const replayable = "X-Idempotency-Key"

// header returns the fields of one attempt: the request's own, those of the
// client, and the key on exactly one line.
func (c *call) header(keyLine []string) http.Header {
	own, shared, keyField := c.request.Header, c.client.Header, c.dialect.keyField()
	h := make(http.Header, len(own)+len(shared)+1)
	for name, values := range own {
		if rfc9110.IsSafe(c.request.Method) || !strings.EqualFold(name, keyField) {
			h[name] = slices.Clip(values) // an append of the transport's must not reach the caller's
		}
	}
	for name, values := range shared {
		if !c.foreign && !rfc9110.Has(own, name) {
			h[http.CanonicalHeaderKey(name)] = slices.Clip(values)
		}
	}
	if user := c.request.URL.User; user != nil && !rfc9110.Has(h, "Authorization") {
		password, _ := user.Password()
		(&http.Request{Header: h}).SetBasicAuth(user.Username(), password)
	}
	if c.key == "" {
		return h
	}
	if field := c.dialect.FirstSentField; field != "" && !rfc9110.Has(h, field) {
		made := c.created
		if made.IsZero() {
			made = c.started
		}
		h[http.CanonicalHeaderKey(field)] = []string{made.UTC().Format(http.TimeFormat)}
	}
	if !rfc9110.Has(h, replayable) {
		h[replayable] = nil
	}
	if c.dialect.inField() {
		keyLine[0] = c.dialect.keyLine(c.key)
		h[keyField] = keyLine
	}
	return h
}

func keyInHeader(field, cure string, lines int) error {
	return &UsageError{Field: field, Reason: fmt.Sprintf("it holds a key field with %d values; %s", lines, cure)}
}
