// Package idem makes writes over HTTP safe to retry. It gives one logical
// operation one idempotency key, before the first byte is sent, and sends it
// under that key until the server has a final answer.
//
//	client := &idem.Client{BaseURL: "https://api.example.com"}
//	res, err := idem.Post[Payment](ctx, client, "/payments", PaymentRequest{Amount: 1200, Currency: "RUB"})
//
// # Operations
//
// [Post] mints a key and forgets it. Where a crash must not lose it, make the
// operation first, store it, and send it; or derive its key from what it is
// about, and nothing has to be stored:
//
//	op, err := idem.NewOperation("POST", "/payments", body)
//	op.Key = idem.DeriveKey("order", orderID)
//	res, err := idem.Send[Payment](ctx, client, op)
//
// [Client.Do] and [Client.RoundTripper] do the same for requests that are made
// by others.
//
// # Answers
//
// An answer that says that the operation is in progress (202 with Retry-After)
// is waited for. 408, 425, 429, 500, 502, 503, 504, answers that are cut off, and
// connections that fail are tried again, after a wait that is drawn between zero
// and a ceiling that doubles, and never before Retry-After has passed. Everything
// else is final; 409 is a [ConflictError]. A [Dialect] describes services that
// speak differently.
//
// # Errors
//
// An operation can end without an answer. Whether it happened is then a question
// that its error answers as far as anybody can:
//
//	switch idem.OutcomeOf(err) {
//	case idem.Done:     // it happened
//	case idem.Rejected: // it did not, and will not
//	case idem.NotSent:  // not this time: no attempt got a connection
//	case idem.Pending:  // the server is still working on it
//	case idem.Unknown:  // it may have happened: only the same key is safe
//	case idem.Expired:  // it may have happened, but the key is too old: look it up
//	}
//
// Every error carries the key. Never start over with a new key while the outcome
// is Unknown or Pending: send the same operation again.
//
// # What is not promised
//
// The client repeats; that the repetition has no second effect is the server's
// part. It must know the key, and remember it for longer than the client tries.
// net/http sends a keyed request again by itself when it finds a kept-alive
// connection dead, under the same key; [Attempt] counts these sends.
package idem
