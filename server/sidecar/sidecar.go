// Package sidecar puts the idempotency contract in front of a service that
// knows nothing of it, written in any language: a reverse proxy that lets
// [server.Middleware] guard the requests that have a key.
//
//	proxy, err := sidecar.New(sidecar.Config{
//		Upstream: upstream, // http://127.0.0.1:9000
//		Middleware: &server.Middleware{
//			Store:    pgstore.New(pool),
//			Account:  sidecar.AccountFromField("X-Account-Id"),
//			Optional: true, // requests without a key pass
//		},
//	})
//
// A request without a key, or with a method that the middleware does not
// govern, streams through in both directions, upgrades included. One with a key
// is executed once, within the limits of the middleware; its answer is held
// back until it is stored, unless it turns out to be a stream.
//
// The service is told which operation a request belongs to, see [OperationField]
// and [AttemptField]. Otherwise it gets what the client has sent, and the
// X-Forwarded fields.
//
// An answer of the service is an answer, whatever its status. Where there is
// none, it matters whether the service may have got the request. If there was no
// connection, it has not: the operation is released, and the client gets 503. In
// every other case nobody knows what the service has done: the client gets 502,
// or 504 when the time was up, and the operation is abandoned, see
// [server.Abandon]. Requests are never sent to the service a second time unless
// nothing of them was written.
package sidecar

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/idemhttp/idem/server"
)

// The fields by which the service is told which operation it executes. They are
// taken from every request that a client sends with them.
const (
	// OperationField has the id of the operation: the same on every attempt,
	// and never that of another. It is what to store beside an effect, or to
	// send to a third service as the key, so that a second attempt is
	// recognised there.
	OperationField = "Idempotency-Operation-Id"
	// AttemptField has the number of the attempt, from 1.
	AttemptField = "Idempotency-Attempt"
)

// Config configures a Proxy.
type Config struct {
	// Upstream is where the service is: a URL with scheme, host and perhaps a
	// path that is put in front of that of every request. Required.
	Upstream *url.URL
	// Middleware guards the requests. Required, with a Store that has leases
	// (what the service does is in no transaction of ours) and an Account.
	Middleware *server.Middleware
	// Transport carries the requests. It should not add an Accept-Encoding, and
	// where it ignores package httptrace, every failure counts as one of which
	// nobody knows what the service has done. Nil means one that connects
	// within 5 s, and makes a new connection for each request with a key: if a
	// kept one is closed by the service just then, as when it restarts, nobody
	// knows whether it has got the request.
	Transport http.RoundTripper
	// Logger gets the requests that the service has not answered. Nil means
	// [slog.Default].
	Logger *slog.Logger
}

// Proxy is an [http.Handler] in front of a service. It is safe for concurrent
// use.
type Proxy struct {
	upstream  *url.URL
	transport http.RoundTripper
	fresh     http.RoundTripper // for requests with a key
	logger    *slog.Logger
	guarded   http.Handler
}

// New returns a Proxy, or an error that says what is wrong with c.
func New(c Config) (*Proxy, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	p := &Proxy{
		upstream:  c.Upstream,
		transport: cmp.Or(c.Transport, http.RoundTripper(newTransport(true))),
		fresh:     cmp.Or(c.Transport, http.RoundTripper(newTransport(false))),
		logger:    cmp.Or(c.Logger, slog.Default()),
	}
	p.guarded = c.Middleware.Handler(http.HandlerFunc(p.forward))
	return p, nil
}

func (c Config) check() error {
	u := c.Upstream
	switch {
	case u == nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return errors.New("sidecar: the upstream must be a URL such as http://127.0.0.1:9000")
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return errors.New("sidecar: the URL of the upstream can have a path, but no query, fragment or credentials")
	case c.Middleware == nil:
		return errors.New("sidecar: the middleware is missing")
	}
	return c.Middleware.Validate()
}

// newTransport returns a transport that never decodes what the service has
// encoded. If it keeps connections, it gives them up before usual servers do.
func newTransport(keepAlive bool) *http.Transport {
	const connectTimeout = 5 * time.Second
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout:   connectTimeout,
		ExpectContinueTimeout: time.Second,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true,
		DisableKeepAlives:     !keepAlive,
		MaxIdleConnsPerHost:   256,
		IdleConnTimeout:       time.Second,
	}
}

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.guarded.ServeHTTP(w, r) }

// forward hands a request to the service, and its answer to w.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request) {
	x := &exchange{proxy: p}
	x.operation, x.keyed = server.OperationFrom(r.Context())
	proxy := &httputil.ReverseProxy{
		Rewrite:        x.rewrite,
		Transport:      x,
		ModifyResponse: x.watch,
		ErrorHandler:   x.fail,
		ErrorLog:       slog.NewLogLogger(p.logger.Handler(), slog.LevelWarn),
	}
	if !x.keyed {
		_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always is
		proxy.ServeHTTP(w, r)
		return
	}
	held := &patient{ResponseWriter: w}
	defer held.end()
	defer x.forgive(held)
	proxy.ServeHTTP(held, r)
}
