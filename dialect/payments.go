package dialect

import (
	"net/http"
	"time"

	"github.com/idemhttp/idem"
)

// Stripe is the API of Stripe, version 1. It stores the answer of whatever has
// begun to run, failures included, so a 500 that is a replay is final. The field
// Stripe-Should-Retry overrules the status.
//
// A 424 (an external dependency failed) may have had an effect: that is a
// reading.
var Stripe = &idem.Dialect{
	Name:         "Stripe",
	Source:       "https://docs.stripe.com/api/idempotent_requests",
	MaxKeyLength: 255,
	KeyLifetime:  24 * time.Hour,
	ReplayFields: []string{"Idempotent-Replayed"},
	Rules: []idem.Rule{
		{Status: http.StatusConflict, Pointer: "/error/code", Value: "idempotency_key_in_use", Field: shouldRetry, FieldValue: "false", Verdict: idem.VerdictUncertain},
		{Status: http.StatusConflict, Pointer: "/error/code", Value: "idempotency_key_in_use", Verdict: idem.VerdictInProgress},
		{Status: 4, Pointer: "/error/type", Value: "idempotency_error", Verdict: idem.VerdictKeyReused},
		{Status: 4, Field: shouldRetry, FieldValue: "true", Verdict: idem.VerdictTransient},
		{Status: 5, Field: shouldRetry, FieldValue: "true", Verdict: idem.VerdictTransient},
		{Status: 5, Field: shouldRetry, FieldValue: "false", Verdict: idem.VerdictUncertain},
		{Status: http.StatusFailedDependency, Verdict: idem.VerdictUncertain},
		{Status: http.StatusConflict, Field: shouldRetry, FieldValue: "false", Verdict: idem.VerdictUncertain},
		{Status: 4, Field: shouldRetry, FieldValue: "false", Verdict: idem.VerdictRejected},
		conflict(idem.VerdictTransient), // with another request on the same object
	},
}

const shouldRetry = "Stripe-Should-Retry"

// YooKassa is the API of YooKassa, version 3. 202 and 500 mean that the result
// is not known yet; retry_after in the body says in how many milliseconds to ask
// again with the same key, and without it the provider's own SDK waits 1.8 s.
// What a key with another request is answered is not documented.
var YooKassa = &idem.Dialect{
	Name:         "YooKassa",
	Source:       "https://yookassa.ru/developers/using-api/interaction-format",
	KeyField:     "Idempotence-Key",
	MaxKeyLength: 64,
	KeyLifetime:  24 * time.Hour,
	Rules: []idem.Rule{
		{Status: http.StatusAccepted, Verdict: idem.VerdictInProgress, Wait: 1800 * time.Millisecond},
		{Status: http.StatusInternalServerError, Verdict: idem.VerdictTransient, Wait: 1800 * time.Millisecond},
		conflict(idem.VerdictUncertain),
	},
	Hints: []idem.Hint{{Pointer: "/retry_after", Unit: time.Millisecond}},
}

// PayPal is the REST API of PayPal. It answers a repetition with the latest
// state of the first request. How long keys are remembered depends on the API:
// 45 days for payments, 6 hours for orders, 3 hours for payment tokens. The
// shortest is taken; a copy for one of them may say more.
var PayPal = &idem.Dialect{
	Name:         "PayPal",
	Source:       "https://developer.paypal.com/api/rest/reference/idempotency/",
	KeyField:     "PayPal-Request-Id",
	MaxKeyLength: 38,
	KeyLifetime:  3 * time.Hour,
	Rules: []idem.Rule{
		{Status: http.StatusConflict, Pointer: "/details/0/issue", Value: "PREVIOUS_REQUEST_IN_PROGRESS", Verdict: idem.VerdictInProgress},
		conflict(idem.VerdictUncertain),
	},
}

// Adyen is the API of Adyen. The field transient-error says whether to send
// again with the same key. Without it a 704, "request already processed or in
// progress", leaves both open; a 703, that keys cannot be looked up now, is a 503
// and tried again anyway. Keys are remembered for 7 to 14 days, in each region
// separately.
var Adyen = &idem.Dialect{
	Name:         "Adyen",
	Source:       "https://docs.adyen.com/development-resources/api-idempotency/",
	MaxKeyLength: 64,
	KeyLifetime:  7 * 24 * time.Hour,
	Rules: []idem.Rule{
		{Status: 4, Pointer: "/errorCode", Value: "704", Field: transientError, FieldValue: "true", Verdict: idem.VerdictInProgress},
		{Status: 4, Pointer: "/errorCode", Value: "704", Verdict: idem.VerdictUncertain},
		{Status: 4, Field: transientError, FieldValue: "true", Verdict: idem.VerdictTransient},
		{Status: 5, Field: transientError, FieldValue: "true", Verdict: idem.VerdictTransient},
		{Status: 5, Field: transientError, FieldValue: "false", Verdict: idem.VerdictUncertain},
		conflict(idem.VerdictUncertain),
	},
}

const transientError = "Transient-Error"

// Square is the API of Square, which takes the key as a member of the body. For
// how long it is remembered is not published, nor what is answered while the
// first request runs.
var Square = &idem.Dialect{
	Name:         "Square",
	Source:       "https://developer.squareup.com/docs/working-with-apis/idempotency",
	KeyMember:    "idempotency_key",
	MaxKeyLength: 45,
	Rules: []idem.Rule{
		{Status: 4, Pointer: "/errors/0/code", Value: "IDEMPOTENCY_KEY_REUSED", Verdict: idem.VerdictKeyReused},
		conflict(idem.VerdictUncertain),
	},
}

// GoCardless is the API of GoCardless. It does not repeat an answer: a key that
// has created something is answered with 409 and the id of that, under
// /error/errors/0/links/conflicting_resource_id, which is to be fetched. For how
// long keys are remembered is not documented.
var GoCardless = &idem.Dialect{
	Name:   "GoCardless",
	Source: "https://gocardless.com/blog/idempotency-keys/",
	Rules: []idem.Rule{
		{Status: http.StatusConflict, Pointer: "/error/errors/0/reason", Value: "idempotent_creation_conflict", Verdict: idem.VerdictExists},
		conflict(idem.VerdictUncertain),
	},
}

// CheckoutCom is the API of Checkout.com. While the first request runs it
// answers 409 and wants to be left alone for 30 s. Only 2xx answers are stored;
// 202 is an ordinary one.
var CheckoutCom = &idem.Dialect{
	Name:        "Checkout.com",
	Source:      "https://www.checkout.com/docs/developer-resources/api/idempotency",
	KeyField:    "Cko-Idempotency-Key",
	KeyLifetime: 24 * time.Hour,
	Rules: []idem.Rule{
		{Status: http.StatusAccepted, Verdict: idem.VerdictDone},
		{Status: http.StatusConflict, Verdict: idem.VerdictInProgress, Wait: 30 * time.Second},
	},
}

// ModernTreasury is the API of Modern Treasury. Only successes are stored. It
// does not notice a key that is used with another request, nor on another route,
// and answers with the stored success: never use a key twice.
var ModernTreasury = &idem.Dialect{
	Name:        "Modern Treasury",
	Source:      "https://docs.moderntreasury.com/reference/idempotent-requests",
	KeyLifetime: 24 * time.Hour,
	Rules:       []idem.Rule{conflict(idem.VerdictInProgress)},
}

// Mollie is the API of Mollie. A key with another request is answered with a 400
// that looks like any other. An older edition of its documentation remembers
// keys for 24 hours, the present one for an hour, which is taken.
var Mollie = &idem.Dialect{
	Name:         "Mollie",
	Source:       "https://docs.mollie.com/reference/api-idempotency",
	KeyLifetime:  time.Hour,
	ReplayFields: []string{"Idempotent-Replayed"},
	Rules:        []idem.Rule{conflict(idem.VerdictInProgress)},
}

// Razorpay is the API of Razorpay for payouts; [RazorpayRefunds] is that for
// refunds. That payouts answer like refunds while the first request runs is a
// reading. For how long keys are remembered is not documented.
var Razorpay = &idem.Dialect{
	Name:         "Razorpay",
	Source:       "https://razorpay.com/docs/api/x/payout-idempotency/make-request",
	KeyField:     "X-Payout-Idempotency",
	MinKeyLength: 4,
	MaxKeyLength: 36,
	KeyAlphabet:  razorpayAlphabet,
	Rules:        razorpayRules(),
}

// RazorpayRefunds is the API of Razorpay for refunds.
var RazorpayRefunds = &idem.Dialect{
	Name:         "Razorpay (refunds)",
	Source:       "https://razorpay.com/docs/api/refunds/normal-refunds-idempotent",
	KeyField:     "X-Refund-Idempotency",
	MinKeyLength: 10,
	KeyAlphabet:  razorpayAlphabet,
	Rules:        razorpayRules(),
}

const razorpayAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

func razorpayRules() []idem.Rule {
	const reused = "Different request with the same idempotency key has already been processed."
	return []idem.Rule{
		{Status: 4, Pointer: "/error/description", Value: reused, Verdict: idem.VerdictKeyReused},
		conflict(idem.VerdictInProgress),
	}
}

// conflict is the meaning of a 409 that says no more.
func conflict(verdict idem.Verdict) idem.Rule {
	return idem.Rule{Status: http.StatusConflict, Verdict: verdict}
}
