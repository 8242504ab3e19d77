// Package server makes HTTP handlers safe to retry. Of all requests that an
// account sends with the same Idempotency-Key, one is executed; the others get
// its answer, byte for byte, or are told to wait for it.
//
//	mw := &server.Middleware{
//		Store:   pgstore.New(pool),
//		Account: func(r *http.Request) (string, error) { return auth.Subject(r.Context()) },
//	}
//	mux.Handle("POST /payments", mw.Handler(http.HandlerFunc(createPayment)))
//
// # What is guaranteed
//
// A final answer (2xx, 3xx, and 4xx but for 401, 403, 408, 423, 425 and 429)
// is stored before the client sees it, and replayed until it expires. Until
// there is one, one attempt runs at a time, under a lease that is extended
// while its handler runs.
//
// How much that is worth depends on the store. Where its leases are
// [AtomicLease], the handler's effects commit together with the answer: exactly
// once. Otherwise the effects are elsewhere. If the process dies between an
// effect and the storing of the answer, the operation is run again when its
// lease has ended, or refused ([Takeover]). Pass [Operation.DownstreamKey] on,
// so that the other side recognises the repetition.
//
// The middleware never executes unguarded: when the store is unavailable it
// answers 503.
//
// # What is compared
//
// Two requests are the same if their method, path, query, media type and body
// are. JSON is compared by value, except that numbers are compared as they are
// spelled: the order of members and white space do not matter, but 1 and 1.0
// differ. The parameters of a query or a form may be reordered, and the
// boundary of a multipart body does not matter. Everything else is compared
// byte for byte, and so is whatever has a Content-Encoding.
//
// # What is kept
//
// An answer is kept with its status, its body and the fields that the handler
// set or changed, except for those that belong to one answer alone: fields of
// the connection, Set-Cookie, challenges, Date, request ids, rate limits and
// trailers. On a replay they replace fields of the same names set outside. A
// field set outside that the handler removed is missing from the first answer
// only.
//
// The handler's answer is held back until it is stored, and has a
// Content-Length and a Content-Digest, by which a client can tell whether it
// got all of it. If the handler flushes, or writes more than MaxBuffered, the
// answer passes on as it is written, without a digest; under an [AtomicLease]
// flushing is [http.ErrNotSupported] and more than MaxBuffered an error. An
// answer that is larger than MaxStored or given on a hijacked connection cannot
// be kept: its operation counts as done, and retries are told so. One that is
// shorter than its own Content-Length is not final.
//
// # Where it stands
//
// Authentication and authorisation stand outside, so that they also guard
// replays; so do CORS (see [CORSAllowHeaders]), access logs and compression,
// which has to drop Content-Length and Content-Digest, since both are about the
// bytes as they were. [http.TimeoutHandler] stands outside too: inside, it would
// give up an attempt that goes on. What validates or routes may stand on either
// side. A request is guarded once: inside of another middleware that has claimed
// its key this one refuses it.
//
// # Long operations
//
// A handler whose work takes longer than a request may calls [Accept], hands
// the [Ticket] that it gets over to a worker, and answers 202. Until the worker
// finishes the operation, see [Work], that is what all requests with its key
// are answered; then it is what the worker answered. [Middleware.StatusHandler]
// tells the same under a URL of the operation's own.
//
// # Other contracts
//
// What the middleware itself answers is worded by a [Contract]. Besides
// [Standard] there are [IETF] and [Stripe], for APIs that have promised it so.
//
// # Work that is not HTTP
//
// [Do] gives the same guarantee to the consumer of a queue.
package server
