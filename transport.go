package idem

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/idemhttp/idem/internal/bounded"
	"github.com/idemhttp/idem/internal/digest"
	"github.com/idemhttp/idem/internal/redact"
	"github.com/idemhttp/idem/internal/rfc9110"
)

// RoundTripper returns c as a transport, to be put under an *http.Client or
// another SDK:
//
//	sdk := &http.Client{Transport: client.RoundTripper()}
//
// One call is one operation, with the limits of [Client.Do]. As the contract of
// [http.RoundTripper] demands, an answer is returned as it is, a conflict
// included, and so is the last answer of an operation that was given up, if it
// was short and does not say that the operation is in progress. A redirect that
// the caller's client follows never gets a key of its own; to another origin
// neither key nor Client.Header go along, and no keyed write goes at all.
func (c *Client) RoundTripper() http.RoundTripper { return roundTripper{c} }

type roundTripper struct{ client *Client }

func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	hop, err := t.client.redirected(req)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	call, err := t.client.requestCall(hop)
	if err != nil {
		return nil, err
	}
	call.foreign = call.foreign || rfc9110.Origin(call.request.URL) != rfc9110.Origin(first(hop).URL)
	x, err := call.run(req.Context())
	switch {
	case err == nil && x.tooLarge != nil:
		return nil, call.finalError(x)
	case err == nil:
		return x.resp, nil
	}
	var given *IncompleteError
	if errors.As(err, &given) && given.answer != nil {
		return given.answer, nil
	}
	return nil, err
}

// first returns the request from which redirects led to req.
func first(req *http.Request) *http.Request {
	for req.Response != nil && req.Response.Request != nil && req.Response.Request.URL != nil {
		req = req.Response.Request
	}
	return req
}

// redirected returns req. If a redirect led to it, it has the key that it may
// carry: that of the request before it on the same origin, or none.
func (c *Client) redirected(req *http.Request) (*http.Request, error) {
	if req.Response == nil {
		return req, nil
	}
	field := c.dialect().keyField()
	before := req.Response.Request
	hop := req.Clone(req.Context())
	for name := range hop.Header {
		if strings.EqualFold(name, field) {
			delete(hop.Header, name)
		}
	}
	hop.Header[field] = nil
	if before == nil || before.URL == nil {
		return hop, nil
	}
	lines, _ := rfc9110.Lines(before.Header, field)
	switch {
	case rfc9110.IsSafe(req.Method) || len(lines) == 0 && !rfc9110.Has(before.Header, replayable):
	case rfc9110.Origin(before.URL) != rfc9110.Origin(req.URL):
		return nil, &UsageError{Field: "redirect", Reason: "a keyed write is not sent on to another origin, " + rfc9110.Origin(req.URL)}
	case len(lines) == 0:
		return nil, &UsageError{Field: "redirect", Reason: "a write whose key is not in a field is not sent on"}
	default:
		hop.Header[field] = lines
	}
	return hop, nil
}

const maxRedirects = 10

// following sends a request without a key and follows redirects as
// [http.Client] does, but for the fields of Client.Header and the key, which
// another origin does not get.
func (c *call) following(req *http.Request) (*http.Response, error) {
	client := &http.Client{Transport: c.client.transport(), CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return errTooManyRedirects
		}
		if rfc9110.Origin(via[0].URL) == rfc9110.Origin(next.URL) {
			return nil
		}
		next.Header.Del(c.dialect.keyField())
		if !rfc9110.Has(c.request.Header, "Authorization") {
			next.Header.Del("Authorization") // it was in the URL
		}
		for name := range c.client.Header {
			next.Header.Del(name)
		}
		return nil
	}}
	return client.Do(req)
}

var errTooManyRedirects = fmt.Errorf("idem: stopped after %d redirects", maxRedirects)

// exchange is one attempt on the wire: a request and what came back.
type exchange struct {
	Attempt
	ctx      context.Context //nolint:containedctx // as the AttemptStart hook returned it, for the other hooks
	keyLine  [1]string       // of the request's header
	frozen   []byte          // the request's body
	sending  bytes.Reader    // over it
	resp     *http.Response  // nil if Err is set
	body     []byte          // what was read of the answer's body
	whole    bool            // that is all of it
	tooLarge error           // it is beyond MaxResponseBytes
	answer   memoryBody      // the answer's body for the caller
	verdict  Verdict
	pause    time.Duration // before the next attempt, if the answer does not say
	cancel   context.CancelFunc
	timer    *time.Timer // of AttemptTimeout, or nil
	trace    httptrace.ClientTrace
	evidence evidence
}

// memoryBody is a body that has been read.
type memoryBody struct{ bytes.Reader }

func (*memoryBody) Close() error { return nil }

// evidence is what httptrace proves about an attempt.
type evidence struct {
	asked, connected atomic.Bool
	http2            atomic.Bool // it repeats only what was not processed
	sends            atomic.Int32
	refused          bool // the server said that it did not begin
}

func (e *evidence) getConn(string) { e.asked.Store(true) }

func (e *evidence) gotConn(info httptrace.GotConnInfo) {
	e.connected.Store(true)
	conn, ok := info.Conn.(*tls.Conn)
	if ok && conn.ConnectionState().NegotiatedProtocol == "h2" {
		e.http2.Store(true)
	}
}

func (e *evidence) wroteHeaders() { e.sends.Add(1) }

// notSent reports whether it is proved that nothing was sent: a connection was
// asked for and there was none. A transport that tells nothing proves nothing.
func (e *evidence) notSent() bool { return e.refused || e.asked.Load() && !e.connected.Load() }

// clearHTTP2 reports whether t speaks HTTP/2 without TLS, which its connections
// do not tell.
func clearHTTP2(t http.RoundTripper) bool {
	transport, ok := t.(*http.Transport)
	return ok && transport.Protocols != nil && transport.Protocols.UnencryptedHTTP2()
}

// http2Error has the shape of the errors that net/http's HTTP/2 returns for a
// stream, and is found by errors.As for that reason.
type http2Error struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e http2Error) Error() string { return fmt.Sprintf("stream %d: code %d", e.StreamID, e.Code) }

// refusedStream reports whether err says that the server did not process the
// request at all (RFC 9113, section 8.7).
func refusedStream(err error) bool {
	const refused = 7
	var stream http2Error
	return errors.As(err, &stream) && stream.Code == refused || errors.Is(err, errGoingAway) ||
		err != nil && strings.HasSuffix(err.Error(), "http2: Transport received Server's graceful shutdown GOAWAY") // it has no type
}

// exchange sends the request once. The answer's body is still to be read.
func (c *call) exchange(ctx context.Context, number int) *exchange {
	x := &c.first
	if number > 1 {
		x = new(exchange)
	}
	x.Number, x.Start = number, time.Now()
	x.ctx = c.hooked(ctx, c.client.Trace.AttemptStart, x.Attempt)
	ctx, x.cancel = context.WithCancel(x.ctx)
	c.last = x
	if limit := c.pacer.policy.AttemptTimeout; limit < NoLimit {
		x.timer = time.AfterFunc(limit, x.cancel)
	}
	x.trace = httptrace.ClientTrace{GetConn: x.evidence.getConn, GotConn: x.evidence.gotConn, WroteHeaders: x.evidence.wroteHeaders}
	x.evidence.http2.Store(clearHTTP2(c.client.transport()))
	resp, err := c.send(httptrace.WithClientTrace(ctx, &x.trace), x) //nolint:bodyclose // by read, drain or the caller
	if err != nil {
		x.fail(c, err)
		return x
	}
	x.resp, x.Status, x.Header = resp, resp.StatusCode, resp.Header
	x.Replayed = c.dialect.replayed(x.Header)
	if x.Status == http.StatusSwitchingProtocols && c.key != "" {
		x.fail(c, errSwitched)
	}
	return x
}

var errSwitched = errors.New("the server switched protocols in place of an answer")

func (c *call) send(ctx context.Context, x *exchange) (resp *http.Response, err error) {
	req, err := c.fresh(ctx, x)
	if err != nil {
		return nil, err
	}
	if c.follow {
		resp, err = c.following(req)
	} else {
		resp, err = c.client.transport().RoundTrip(req)
	}
	if err != nil {
		return nil, err
	}
	if resp == nil {
		return nil, errors.New("the transport returned neither an answer nor an error")
	}
	if resp.Body == nil {
		resp.Body = http.NoBody
	}
	if resp.Request == nil {
		resp.Request = req // by which a redirect knows where it comes from
	}
	return resp, nil
}

// fresh returns a request for one attempt, which shares nothing that can change
// with those of other attempts.
//
// The reader of a frozen body is of a type that net/http knows, so that head and
// body leave in one write, and GetBody lets it send the request again on another
// connection.
func (c *call) fresh(ctx context.Context, x *exchange) (r *http.Request, err error) {
	r = c.request.WithContext(ctx)
	r.Header = c.header(x.keyLine[:])
	switch {
	case c.watched != nil:
		asWatch(r, c.watched, c.dialect)
	case c.key == "":
		if x.Number > 1 && r.GetBody != nil {
			r.Body, err = r.GetBody()
		}
		return r, err
	case len(c.body) == 0:
		r.ContentLength, r.GetBody = 0, nil
	default:
		x.frozen = c.body
		x.sending.Reset(c.body)
		r.Body, r.GetBody, r.ContentLength = io.NopCloser(&x.sending), x.getBody, int64(len(c.body))
	}
	return r, nil
}

// asWatch makes r the question how an operation is getting on: no body, no key,
// the same credentials.
func asWatch(r *http.Request, u *url.URL, d *Dialect) {
	r.Method, r.URL, r.Host = http.MethodGet, u, ""
	r.GetBody, r.ContentLength, r.TransferEncoding = nil, 0, nil
	for name := range r.Header {
		if strings.HasPrefix(name, "Content-") {
			delete(r.Header, name)
		}
	}
	for _, name := range []string{d.keyField(), d.FirstSentField, replayable} {
		r.Header.Del(name)
	}
}

// getBody gives the body once more, to whoever wants to sign it, and to
// net/http, which sends a request again by itself on every dead connection that
// it finds. Of that one time is enough; the next is an attempt of its own. Over
// HTTP/2 it sends again what was not processed, to a server that is going away
// for as long as that is.
func (x *exchange) getBody() (io.ReadCloser, error) {
	limit, err := int32(2), errSentTwice
	if x.evidence.http2.Load() {
		limit, err = 8, errGoingAway
	}
	if x.evidence.sends.Load() >= limit {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(x.frozen)), nil
}

var (
	errSentTwice = errors.New("net/http found two dead connections")
	errGoingAway = errors.New("the server is going away and did not process the request")
)

// fail ends the attempt without an answer that can be used.
func (x *exchange) fail(c *call, err error) {
	var record tls.RecordHeaderError
	switch {
	case x.timer != nil && !x.timer.Stop(): // it fired
		err = &attemptTimeoutError{c.pacer.policy.AttemptTimeout}
	case errors.As(err, &record) && string(record.RecordHeader[:]) == "HTTP/":
		err = http.ErrSchemeMismatch // as net/http's client says it
	}
	x.close()
	x.evidence.refused = refusedStream(err)
	x.Err = c.transportError(err)
	x.resp, x.Status, x.Header, x.Replayed = nil, 0, nil, false
}

// attemptTimeoutError ends an attempt that took longer than AttemptTimeout. It
// is not a context error: the caller's own deadline has not passed.
type attemptTimeoutError struct{ after time.Duration }

func (e *attemptTimeoutError) Error() string {
	return fmt.Sprintf("idem: no complete answer within the attempt timeout of %v", e.after)
}

// Timeout implements the interface of [net.Error].
func (e *attemptTimeoutError) Timeout() bool { return true }

// read reads the whole answer. A body that ends early, or not within the
// attempt's time, or is not what its digest says, fails the attempt.
func (x *exchange) read(c *call) {
	body, err := bounded.Read(c.answerSpace[:0], x.resp.Body, x.resp.ContentLength, c.client.maxResponseBytes())
	if err != nil && !isA[*bounded.TooLargeError](err) {
		x.fail(c, err)
		return
	}
	x.close()
	x.keep(body, err == nil)
	x.tooLarge = err
	if err := c.checkDigest(x); err != nil {
		x.fail(c, err)
	}
}

// keep makes body, which may be the beginning of it, the answer's.
func (x *exchange) keep(body []byte, whole bool) {
	x.body, x.whole = body, whole
	x.answer.Reset(body)
	x.resp.Body = &x.answer
}

// mismatch is a body that is not the one its Content-Digest speaks of.
type mismatch struct{ claimed, found [sha256.Size]byte }

// checkDigest compares a whole answer with its Content-Digest (RFC 9530), which
// shows a cut that HTTP itself does not: one behind a proxy, or in a body that
// ends with the connection. A digest of decoded bytes is not comparable, and the
// same mismatch twice is what the server has to say.
func (c *call) checkDigest(x *exchange) error {
	claimed, ok := digest.Parse(x.Header[digest.Name])
	if !ok || !x.whole || x.resp.Uncompressed || x.Header.Get("Content-Encoding") != "" || bodiless(x.Status) {
		return nil
	}
	m := mismatch{claimed: claimed, found: sha256.Sum256(x.body)}
	if m.claimed == m.found || c.mismatch == m {
		return nil
	}
	c.mismatch = m
	return errDigest
}

var errDigest = errors.New("the answer is not the one that its Content-Digest speaks of")

func bodiless(status int) bool {
	return status == http.StatusNoContent || status == http.StatusNotModified
}

// What is read of an answer that is not used, so that its connection can serve
// the next attempt.
const (
	drainBytes = 64 << 10
	drainTime  = 250 * time.Millisecond
)

// drain reads the beginning of an answer that is not final and closes it.
func (x *exchange) drain() {
	if x.resp == nil || x.whole {
		return
	}
	unread := x.resp.Body
	limit := time.AfterFunc(drainTime, func() {
		x.cancel()
		_ = unread.Close()
	})
	defer limit.Stop()
	body, err := io.ReadAll(io.LimitReader(unread, drainBytes+1))
	x.close()
	x.keep(body[:min(len(body), drainBytes)], err == nil && len(body) <= drainBytes)
}

// close ends the attempt on the wire. It may be called more than once.
func (x *exchange) close() {
	x.stopTimer()
	x.cancel()
	if x.resp != nil {
		_ = x.resp.Body.Close()
	}
}

func (x *exchange) stopTimer() {
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
}

// handOver leaves the answer's body to the caller: from here on only his
// context bounds it, and closing it ends the attempt.
func (x *exchange) handOver() {
	x.stopTimer()
	body := handedOver{x.resp.Body, x.cancel}
	if conn, ok := x.resp.Body.(io.Writer); ok { // of a 101
		x.resp.Body = &handedOverConn{body, conn}
		return
	}
	x.resp.Body = &body
}

type handedOver struct {
	io.ReadCloser
	cancel context.CancelFunc
}

type handedOverConn struct {
	handedOver
	io.Writer
}

func (b *handedOver) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// permanent reports whether err is one that no retry heals.
func permanent(err error) bool {
	if errors.Is(err, http.ErrSchemeMismatch) || errors.Is(err, errTooManyRedirects) || errors.Is(err, errSwitched) {
		return true
	}
	var remote *net.OpError
	if errors.As(err, &remote) && remote.Op == "remote error" {
		return true // a TLS alert, such as a demand for another certificate
	}
	return isA[*tls.CertificateVerificationError](err) || isA[tls.RecordHeaderError](err) ||
		isA[x509.UnknownAuthorityError](err) || isA[x509.HostnameError](err) || isA[x509.CertificateInvalidError](err) ||
		isA[*net.AddrError](err) || isA[*UsageError](err)
}

func isA[E error](err error) bool {
	var target E
	return errors.As(err, &target)
}

// transportError wraps err as net/http's client does, without anything secret.
func (c *call) transportError(err error) error {
	secrets := redact.Secrets(c.request.URL, c.header(make([]string, 1)), func(name string) bool {
		return name == "Authorization" || name == "Proxy-Authorization" || name == "Cookie" || rfc9110.Has(c.client.Header, name)
	})
	safeURL := redact.URL(c.request.URL)
	err = redact.Error(err, secrets, safeURL)
	if isA[*url.Error](err) {
		return err
	}
	method := c.method()
	return &url.Error{Op: method[:1] + strings.ToLower(method[1:]), URL: safeURL, Err: err}
}
