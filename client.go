package idem

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
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
	// It has no query and no fragment. Empty means that all URLs are absolute.
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
	// Logger gets a record "idem waits to send again" (Info) before every
	// pause, and one "idem gave an operation up" (Warn) for every
	// [IncompleteError]. Both have idempotency_key (shortened), method, url,
	// attempt, and status or error; the first has wait, the second reason and
	// outcome. Nil means silence.
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
	// OperationStart is called before the first attempt, with key, method, URL
	// and Start.
	OperationStart func(context.Context, Attempt) context.Context
	// AttemptStart is called before each attempt, with its Number besides.
	AttemptStart func(context.Context, Attempt) context.Context
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
	// means that net/http sent it again by itself, with the same key, because a
	// kept-alive connection was found dead, or over HTTP/2 because the server
	// had not processed it. With a body it goes out twice at most, over HTTP/2
	// eight times; without one, once for every dead connection. A transport
	// with DisableKeepAlives finds none.
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
	if ctx == nil || client == nil {
		return result, &UsageError{Field: "Send", Reason: "it needs a context and a client; &idem.Client{} works"}
	}
	c, err := client.operationCall(&op)
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
// A keyed request is frozen (its body may have up to 32 MiB), driven to its final
// answer and never redirected. Any final answer is returned, with its body in
// memory, except a conflict, which is a *[ConflictError]. Other errors are a
// *[UsageError], an *[IncompleteError], or for an answer beyond MaxResponseBytes
// what [Send] returns for it.
//
// A request without a key passes through, its bodies unbuffered. It is sent
// again only if its method is idempotent (RFC 9110, section 9.2.2) or if it is
// proved that nothing was sent; redirects are followed.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	if c == nil || req == nil {
		return nil, &UsageError{Field: "Do", Reason: "it needs a client and a request; &idem.Client{} works"}
	}
	call, err := c.requestCall(req)
	if err != nil {
		return nil, err
	}
	call.follow = call.key == ""
	x, err := call.run(req.Context())
	if err != nil {
		return nil, err
	}
	if call.key != "" && (x.tooLarge != nil || x.conflict()) {
		return nil, call.finalError(x)
	}
	return x.resp, nil
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
