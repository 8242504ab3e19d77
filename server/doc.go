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
// # Where it stands
//
// Authentication and authorisation stand outside, so that they also guard
// replays; so do CORS (see [CORSAllowHeaders]), access logs and compression. What
// validates or routes may stand on either side.
//
// # Work that is not HTTP
//
// [Do] gives the same guarantee to the consumer of a queue.
package server
