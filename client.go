package idem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client sends HTTP requests so that every write happens once. It gives a write
// a key, the same on every attempt, and tries until the server has a final
// answer or the [RetryPolicy] ends. The zero value works.
//
// A Client is safe for concurrent use. Its fields must not be changed, and it
// must not be copied, after first use.
type Client struct {
	// BaseURL is put in front of URLs without a host: "/payments" after
	// "https://api.example.com/v1" is "https://api.example.com/v1/payments".
	// Empty means that all URLs are absolute.
	BaseURL string
	// Header is added to every request, unless the request has the field
	// itself. This is the place for credentials: they are never stored with an
	// Operation, printed, or sent to another origin than that of BaseURL, if
	// there is one. It must not hold a key.
	Header http.Header
	// Transport makes single attempts. Nil means http.DefaultTransport.
	Transport http.RoundTripper
	// Retry says how long and how often to try. The zero value is a good
	// choice for payments.
	Retry RetryPolicy
	// Dialect describes how the service speaks. Nil means Standard.
	Dialect *Dialect
	// MaxResponseBytes bounds the body of an answer to a keyed request. Zero
	// means 8 MiB, NoLimit no limit.
	MaxResponseBytes int64
	// Logger gets a record for every failed attempt and every operation given
	// up. Nil means silence.
	Logger *slog.Logger
	// Trace is called as operations proceed.
	Trace Trace

	budget Budget // used unless Retry has one
}

// Trace is a set of hooks; each may be nil. They are called in the goroutine of
// the operation and must be quick. What a Start hook returns, unless nil, is
// the context of all that follows: of the operation, or of the attempt's
// request. A panic of a hook goes through to the caller.
type Trace struct {
	OperationStart func(context.Context, Attempt) context.Context
	AttemptStart   func(context.Context, Attempt) context.Context
	// AttemptDone is called when the answer has been read or the attempt has
	// failed.
	AttemptDone func(context.Context, Attempt)
	// Waiting is called before the pause after an attempt, with Wait set.
	Waiting func(context.Context, Attempt)
	// OperationDone is called at the end, with the last attempt, the duration
	// of the whole and the operation's error.
	OperationDone func(context.Context, Attempt)
}

// Attempt describes one attempt. It is safe to read whatever happened: without
// an answer Status is zero, Header nil and Err set.
type Attempt struct {
	Key      Key
	Method   string
	URL      string // without user, query and fragment
	Number   int    // from 1
	Start    time.Time
	Duration time.Duration
	Status   int
	Header   http.Header // of the answer; must not be changed
	Replayed bool        // the answer says that it is a replay
	Err      error       // nil if there was an answer, whatever its status
	// Sends counts how often the request went out on the wire. More than one
	// means that net/http sent it again by itself, with the same key, because
	// a kept-alive connection was found dead.
	Sends int
	Wait  time.Duration // the pause after this attempt
}

// Response is a final answer. The body has been read and closed.
type Response struct {
	StatusCode int
	Header     http.Header
	Body       []byte
	Key        Key  // the operation's key
	Attempts   int  // how often the operation was sent, polls included
	Replayed   bool // the server had answered this operation before
}

// Result is an answer with its body decoded.
type Result[T any] struct {
	Value T
	Response
}

// Post sends body as a new operation under a new random key and decodes the
// answer. It is [NewOperation] and [Send] in one; where a crash must not lose
// the key, use those.
func Post[T any](ctx context.Context, client *Client, url string, body any) (Result[T], error) {
	op, err := NewOperation(http.MethodPost, url, body)
	if err != nil {
		return Result[T]{}, err
	}
	return Send[T](ctx, client, op)
}

// Send drives op to its final answer and decodes a 2xx body into a T: as JSON,
// or as it is if T is []byte or string. An empty body leaves the zero T. Send
// never mints a key, so sending the same operation again, now or after a crash,
// is safe.
//
// The error is a *[UsageError] if nothing could be sent, a *[ConflictError] or
// *[StatusError] for a final answer that is not 2xx, a *[DecodeError] for one
// that cannot be decoded, and otherwise an *[IncompleteError]; [OutcomeOf] says
// what each means for the operation. Result.Response is set whenever there was
// a final answer.
func Send[T any](ctx context.Context, client *Client, op Operation) (Result[T], error) {
	var result Result[T]
	c, err := client.operationCall(op)
	if err != nil {
		return result, err
	}
	x, err := c.run(ctx)
	if err != nil {
		return result, err
	}
	result.Response = c.response(x)
	if err := c.finalError(x); err != nil {
		return result, err
	}
	if err := decode(result.Body, &result.Value); err != nil {
		return result, &DecodeError{Response: result.Response, Err: err, request: c.String()}
	}
	return result, nil
}

func decode(body []byte, value any) error {
	switch value := value.(type) {
	case *[]byte:
		*value = body
	case *string:
		*value = string(body)
	default:
		if len(body) > 0 {
			return json.Unmarshal(body, value)
		}
	}
	return nil
}

// Do sends req like [http.Client.Do], which it can stand in for. A POST or PATCH
// gets a key, unless its Idempotency-Key field is set; a PUT or DELETE is keyed
// if it is. A field that is present but nil means no key.
//
// A keyed request is frozen, driven to its final answer and never redirected.
// Any final answer is returned, with its body in memory, except a conflict,
// which is a *[ConflictError]; other errors are a *[UsageError], a
// *[DecodeError] for an answer beyond MaxResponseBytes, or an
// *[IncompleteError].
//
// A request without a key passes through, its bodies unbuffered. It is sent
// again only if its method is idempotent (RFC 9110, section 9.2.2) or if it is
// proved that nothing was sent; redirects are followed.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	call, err := c.requestCall(req)
	if err != nil {
		return nil, err
	}
	if call.key == "" {
		call.send = c.following
	}
	x, err := call.run(req.Context())
	if err != nil {
		return nil, err
	}
	if x.verdict == VerdictConflict || x.tooLarge != nil {
		return nil, call.finalError(x)
	}
	return x.resp, nil
}

// operationCall prepares the sending of op.
func (c *Client) operationCall(op Operation) (*call, error) {
	if err := op.Key.check(); err != nil {
		return nil, err
	}
	if !isToken(op.Method) {
		return nil, &UsageError{Field: "Operation.Method", Reason: "it must be an HTTP method such as POST"}
	}
	u, err := url.Parse(op.URL)
	if err != nil {
		return nil, unparsable("Operation.URL", err)
	}
	if lines, set := fieldLines(op.Header, c.dialect().keyField()); set {
		return nil, keyInHeader("Operation.Header", "put it into Operation.Key", len(lines))
	}
	req := &http.Request{Method: op.Method, URL: u, Header: op.Header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	return c.newCall(req, op.Key, op.Body)
}

// requestCall prepares the sending of req and takes over its body.
func (c *Client) requestCall(req *http.Request) (_ *call, err error) {
	defer func() {
		if err != nil && req.Body != nil {
			_ = req.Body.Close()
		}
	}()
	if req.URL == nil {
		return nil, &UsageError{Field: "Request.URL", Reason: "it is nil"}
	}
	key, err := c.keyFor(req)
	if err != nil {
		return nil, err
	}
	if key == "" {
		return c.newCall(req, "", nil)
	}
	body, err := freezeRequest(req)
	if err != nil {
		return nil, err
	}
	return c.newCall(req, key, body)
}

// keyFor returns the key that req is to be sent with, or "" for none.
func (c *Client) keyFor(req *http.Request) (Key, error) {
	d := c.dialect()
	lines, set := fieldLines(req.Header, d.keyField())
	switch {
	case isSafe(req.Method), set && len(lines) == 0:
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

// freezeRequest reads the body of req, closes it, and checks that it is whole.
func freezeRequest(req *http.Request) ([]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	body, err := readBounded(req.Body, maxBody)
	closeErr := req.Body.Close()
	if err := errors.Join(err, closeErr); err != nil {
		return nil, &UsageError{Field: "Request.Body", Reason: "a keyed request is held in memory to be sent again, but its body cannot be read", Err: err}
	}
	if req.ContentLength > 0 && req.ContentLength != int64(len(body)) {
		return nil, &UsageError{
			Field:  "Request.Body",
			Reason: fmt.Sprintf("ContentLength is %d but the body has %d bytes", req.ContentLength, len(body)),
		}
	}
	return body, nil
}

// newCall completes and checks a request that is to be sent under key, or
// without one.
func (c *Client) newCall(req *http.Request, key Key, body []byte) (*call, error) {
	policy, err := c.Retry.withDefaults()
	if err != nil {
		return nil, err
	}
	if c.MaxResponseBytes < 0 {
		return nil, negative("Client.MaxResponseBytes")
	}
	template := *req
	if key != "" {
		template.Body = nil // it has been read and closed
	}
	if template.URL, err = c.resolve(req.URL); err != nil {
		return nil, err
	}
	if template.Header, err = c.header(req, template.URL, key); err != nil {
		return nil, err
	}
	call := &call{
		client:  c,
		dialect: c.dialect(),
		request: &template,
		key:     key,
		body:    body,
		send:    c.transport().RoundTrip,
		pacer:   pacer{policy: policy, budget: policy.Budget},
	}
	if call.pacer.budget == nil {
		call.pacer.budget = &c.budget
	}
	return call, nil
}

// resolve returns u as an absolute URL.
func (c *Client) resolve(u *url.URL) (*url.URL, error) {
	if u.Host == "" && u.Scheme == "" {
		if c.BaseURL == "" {
			return nil, &UsageError{Field: "URL", Reason: "it is relative; give an absolute URL or set Client.BaseURL"}
		}
		base, err := url.Parse(c.BaseURL)
		if err != nil {
			return nil, unparsable("Client.BaseURL", err)
		}
		u = join(base, u)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, &UsageError{Field: "URL", Reason: fmt.Sprintf("its scheme is %q; only http and https can be sent", u.Scheme)}
	}
	if u.Hostname() == "" {
		return nil, &UsageError{Field: "URL", Reason: "it has no host"}
	}
	return u, nil
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
	return &UsageError{Field: field, Reason: "it is not a URL", Err: err}
}

// header returns the fields of the request: its own, those of the client, and
// the key on exactly one line.
func (c *Client) header(req *http.Request, u *url.URL, key Key) (http.Header, error) {
	d := c.dialect()
	if lines, set := fieldLines(c.Header, d.keyField()); set {
		return nil, keyInHeader("Client.Header", "a key belongs to one operation, not to a client", len(lines))
	}
	merged := make(http.Header, len(req.Header)+len(c.Header)+1)
	maps.Copy(merged, req.Header)
	if c.ownOrigin(u) {
		for name, values := range c.Header {
			if name := http.CanonicalHeaderKey(name); !has(merged, name) {
				merged[name] = values
			}
		}
	}
	if user := u.User; user != nil && !has(merged, "Authorization") {
		password, _ := user.Password()
		(&http.Request{Header: merged}).SetBasicAuth(user.Username(), password)
	}
	if !isSafe(req.Method) {
		for name := range merged {
			if strings.EqualFold(name, d.keyField()) {
				delete(merged, name)
			}
		}
	}
	if key != "" {
		merged[d.keyField()] = []string{d.keyLine(key)}
	}
	return merged, checkHeader(merged)
}

// ownOrigin reports whether u may see the client's credentials.
func (c *Client) ownOrigin(u *url.URL) bool {
	if c.BaseURL == "" {
		return true
	}
	base, err := url.Parse(c.BaseURL)
	return err == nil && sameOrigin(base, u)
}

func keyInHeader(field, cure string, lines int) error {
	return &UsageError{Field: field, Reason: fmt.Sprintf("it holds a key field with %d values; %s", lines, cure)}
}

func (c *Client) dialect() *Dialect {
	if c.Dialect == nil {
		return Standard
	}
	return c.Dialect
}

func (c *Client) transport() http.RoundTripper {
	if c.Transport == nil {
		return http.DefaultTransport
	}
	return c.Transport
}

func (c *Client) maxResponseBytes() int64 {
	if c.MaxResponseBytes == 0 {
		return 8 << 20
	}
	return c.MaxResponseBytes
}

// fieldLines returns the values of a field in h, however its name is spelled,
// and whether it is there at all.
func fieldLines(h http.Header, field string) (lines []string, set bool) {
	for name, values := range h {
		if strings.EqualFold(name, field) {
			lines, set = append(lines, values...), true
		}
	}
	return lines, set
}

// has reports whether h has a field of that name, however it is spelled.
func has(h http.Header, name string) bool {
	_, set := fieldLines(h, name)
	return set
}

func checkHeader(h http.Header) error {
	for name, values := range h {
		if !isToken(name) {
			return &UsageError{Field: "Header", Reason: fmt.Sprintf("%q is not a field name", name)}
		}
		for _, value := range values {
			if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }) {
				return &UsageError{Field: "Header", Reason: fmt.Sprintf("a value of %s holds a control character such as a newline", name)}
			}
		}
	}
	return nil
}

// isToken reports whether s is a token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7F || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// isSafe reports whether method asks for nothing to be changed (RFC 9110,
// section 9.2.1). The empty method is GET.
func isSafe(method string) bool {
	switch strings.ToUpper(method) {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// isIdempotent reports whether repeating a request with method has the effect
// of making it once (RFC 9110, section 9.2.2).
func isIdempotent(method string) bool {
	switch strings.ToUpper(method) {
	case http.MethodPut, http.MethodDelete:
		return true
	}
	return isSafe(method)
}
