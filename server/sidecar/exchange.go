package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/idemhttp/idem/internal/keyfield"
	"github.com/idemhttp/idem/internal/problem"
	"github.com/idemhttp/idem/server"
)

// exchange is one request and its answer, on the way through a Proxy.
type exchange struct {
	proxy     *Proxy
	operation server.Operation
	keyed     bool        // it executes operation
	unsent    atomic.Bool // no connection: the service has nothing of the request
	cut       bool        // the service's answer broke off
}

// rewrite makes what the service gets out of what the client has sent.
func (x *exchange) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(x.proxy.upstream)
	r.Out.Host = r.In.Host
	r.Out.URL.RawQuery = r.In.URL.RawQuery // whether or not we could parse it
	forwarded(r)
	h := r.Out.Header
	h.Del(OperationField)
	h.Del(AttemptField)
	if x.keyed {
		h.Set(OperationField, x.operation.ID.String())
		h.Set(AttemptField, strconv.Itoa(x.operation.Attempt))
		if r.Out.Body != nil {
			r.Out.Body, _ = r.Out.GetBody() // of a type by which net/http sends it together with the header
		}
	}
	hide(h, keyfield.Name)
	hide(h, "X-"+keyfield.Name)
}

// hide keeps a field of the client's from package net/http, but not from the
// service: names are case-insensitive on the wire. By a key net/http takes a
// request for one that it may send again itself, although the service may have
// executed it.
func hide(h http.Header, name string) {
	if lines, ok := h[name]; ok {
		delete(h, name)
		h[strings.ToLower(name)] = lines
	}
}

// forwarded keeps the X-Forwarded fields of whoever stands in front, and adds
// this hop. The Rewrite of a ReverseProxy begins without them.
func forwarded(r *httputil.ProxyRequest) {
	r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
	r.SetXForwarded()
	for _, name := range []string{"Forwarded", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if lines, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = lines
		}
	}
}

// RoundTrip implements [http.RoundTripper].
func (x *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		// It asks again if nothing was written to a connection that was dead.
		GetConn: func(string) { x.unsent.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { x.unsent.Store(false) },
	})
	if x.keyed {
		return x.proxy.fresh.RoundTrip(r.WithContext(ctx))
	}
	return x.proxy.transport.RoundTrip(r.WithContext(ctx))
}

// watch looks out for the end of the service's answer.
func (x *exchange) watch(resp *http.Response) error {
	if x.keyed && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &watchedBody{resp.Body, x, resp.Request.Context()}
	}
	return nil
}

// watchedBody is the body of an answer to a request with a key.
type watchedBody struct {
	io.ReadCloser

	x   *exchange
	ctx context.Context //nolint:containedctx // of the request
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.x.cut = true
		b.x.abandon(b.ctx)
	}
	return n, err
}

// forgive ends the panic by which a ReverseProxy aborts an answer, if the client
// is the reason: he has left while an answer passed that is too large to be kept.
// The service has answered all the same, and the operation has not failed.
func (x *exchange) forgive(w *patient) {
	if x.cut || !w.gone() {
		return
	}
	if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // as it was thrown
		panic(v)
	}
}

// abandon leaves the operation to its takeover.
func (x *exchange) abandon(ctx context.Context) {
	if err := server.Abandon(ctx); err != nil {
		x.log(ctx, "an operation could not be abandoned", err)
	}
}

// The codes of the problems that tell of a service without an answer.
const (
	codeUnreachable = "UPSTREAM_UNREACHABLE"
	codeLost        = "UPSTREAM_LOST"
	codeTimeout     = "UPSTREAM_TIMEOUT"
)

// fail answers for a service that has not.
func (x *exchange) fail(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	if !x.keyed && errors.Is(context.Cause(ctx), context.Canceled) {
		panic(http.ErrAbortHandler) // the client has gone
	}
	d := problem.Details{
		Status: http.StatusBadGateway, Code: codeLost, Title: "The service did not answer",
		Detail: "It is not known whether the request was executed.",
	}
	switch {
	case x.unsent.Load():
		d.Status, d.Code, d.Title = http.StatusServiceUnavailable, codeUnreachable, "The service cannot be reached"
		d.Detail = "Nothing was executed. Send the request again."
		w.Header().Set("Retry-After", "1")
	case timedOut(ctx, err):
		d.Status, d.Code, d.Title = http.StatusGatewayTimeout, codeTimeout, "The service did not answer in time"
	}
	if x.keyed && !x.unsent.Load() {
		x.abandon(ctx)
		d.Detail += " Send it again with the same key."
	}
	x.log(ctx, "the service has not answered", err)
	write(w, d)
}

// timedOut reports whether err is because of a deadline, that of ctx or one of
// the transport's own.
func timedOut(ctx context.Context, err error) bool {
	var limit net.Error
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.As(err, &limit) && limit.Timeout()
}

func write(w http.ResponseWriter, d problem.Details) {
	d.Type = "https://github.com/idemhttp/idem/blob/main/docs/sidecar.md#" + strings.ToLower(strings.ReplaceAll(d.Code, "_", "-"))
	body, err := json.Marshal(d)
	if err != nil {
		panic(err) // there is nothing in it but strings and a number
	}
	w.Header().Set("Content-Type", problem.ContentType)
	w.WriteHeader(d.Status)
	_, _ = w.Write(append(body, '\n'))
}

func (x *exchange) log(ctx context.Context, msg string, err error) {
	args := []any{"error", err}
	if x.keyed {
		args = append(args, "account", x.operation.Account,
			"idempotency_key", keyfield.Shorten(x.operation.Key), "attempt", x.operation.Attempt)
	}
	x.proxy.logger.WarnContext(ctx, msg, args...) //nolint:sloglint // every caller's message is a constant
}
