package dialect_test

import (
	"cmp"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/dialect"
	"github.com/idemhttp/idem/internal/faultnet"
)

const (
	done       = idem.VerdictDone
	inProgress = idem.VerdictInProgress
	transient  = idem.VerdictTransient
	uncertain  = idem.VerdictUncertain
	exists     = idem.VerdictExists
	keyReused  = idem.VerdictKeyReused
	rejected   = idem.VerdictRejected
	expired    = idem.VerdictExpired
)

// answer is what a provider says, and what it has to mean.
type answer struct {
	name   string
	status int
	body   string
	field  string // "Name: value", or ""

	verdict idem.Verdict
	wait    time.Duration // before the next attempt
}

func (a answer) String() string {
	if a.field == "" {
		return faultnet.Answer(a.status, a.body)
	}
	return faultnet.Answer(a.status, a.body, a.field)
}

// answers has for each dialect the answers that are documented, and those that
// it must not confuse them with.
var answers = map[string][]answer{
	"Stripe": {
		{name: "made", status: 200, body: `{"id":"pi_1"}`, verdict: done},
		{name: "replayed", status: 200, body: `{"id":"pi_1"}`, field: "Idempotent-Replayed: true", verdict: done},
		{name: "key in use", status: 409, body: `{"error":{"type":"invalid_request_error","code":"idempotency_key_in_use"}}`, verdict: inProgress, wait: poll},
		{name: "key in use, as an idempotency error", status: 409, body: `{"error":{"type":"idempotency_error","code":"idempotency_key_in_use"}}`, verdict: inProgress, wait: poll},
		{name: "key in use, retry", status: 409, body: `{"error":{"code":"idempotency_key_in_use"}}`, field: "Stripe-Should-Retry: true", verdict: inProgress, wait: poll},
		{name: "key in use, do not retry", status: 409, body: `{"error":{"code":"idempotency_key_in_use"}}`, field: "Stripe-Should-Retry: false", verdict: uncertain},
		{name: "key reused", status: 400, body: `{"error":{"type":"idempotency_error"}}`, verdict: keyReused},
		{name: "conflict with another request", status: 409, body: `{"error":{"type":"api_error"}}`, verdict: transient},
		{name: "lock time-out", status: 429, body: `{"error":{"code":"lock_timeout"}}`, field: "Stripe-Should-Retry: true", verdict: transient},
		{name: "rate limit", status: 429, body: `{"error":{"code":"rate_limit"}}`, verdict: transient},
		{name: "rate limit, do not retry", status: 429, body: `{"error":{"code":"rate_limit"}}`, field: "Stripe-Should-Retry: false", verdict: rejected},
		{name: "card declined", status: 402, body: `{"error":{"type":"card_error","code":"card_declined"}}`, verdict: rejected},
		{name: "card declined, retry", status: 402, body: `{"error":{"type":"card_error"}}`, field: "Stripe-Should-Retry: true", verdict: transient},
		{name: "dependency failed", status: 424, verdict: uncertain},
		{name: "dependency failed, do not retry", status: 424, field: "Stripe-Should-Retry: false", verdict: uncertain},
		{name: "server error", status: 500, body: `{"error":{"type":"api_error"}}`, verdict: transient},
		{name: "server error, do not retry", status: 500, field: "Stripe-Should-Retry: false", verdict: uncertain},
		{name: "stored server error", status: 500, field: "Idempotent-Replayed: true", verdict: uncertain},
		{name: "server error, with the mark of others", status: 500, field: "X-Idempotency-Replayed: true", verdict: transient},
		{name: "server error that is not usually retried, retry", status: 501, field: "Stripe-Should-Retry: true", verdict: transient},
		{name: "conflict with another request, do not retry", status: 409, field: "Stripe-Should-Retry: false", verdict: uncertain},
	},
	"YooKassa": {
		{name: "made", status: 200, body: `{"id":"1","status":"pending"}`, verdict: done},
		{name: "processing", status: 202, body: `{"type":"processing","retry_after":700}`, verdict: inProgress, wait: 700 * time.Millisecond},
		{name: "processing, for how long is not said", status: 202, body: `{"type":"processing"}`, verdict: inProgress, wait: 1800 * time.Millisecond},
		{name: "result unknown", status: 500, body: `{"type":"error","code":"internal_server_error","retry_after":2500}`, verdict: transient, wait: 2500 * time.Millisecond},
		{name: "result unknown, for how long is not said", status: 500, body: `{"type":"error"}`, verdict: transient, wait: 1800 * time.Millisecond},
		{name: "too many requests", status: 429, body: `{"type":"error","code":"too_many_requests"}`, verdict: transient},
		{name: "invalid request", status: 400, body: `{"type":"error","code":"invalid_request"}`, verdict: rejected},
		{name: "conflict, which is not documented", status: 409, verdict: uncertain},
	},
	"PayPal": {
		{name: "made", status: 201, body: `{"id":"5O1","status":"CREATED"}`, verdict: done},
		{name: "made before", status: 200, body: `{"id":"5O1","status":"CREATED"}`, verdict: done},
		{name: "in progress", status: 409, body: `{"name":"RESOURCE_CONFLICT","details":[{"issue":"PREVIOUS_REQUEST_IN_PROGRESS"}]}`, verdict: inProgress, wait: poll},
		{name: "another conflict", status: 409, body: `{"name":"RESOURCE_CONFLICT","details":[{"issue":"RESOURCE_CONFLICT"}]}`, verdict: uncertain},
		{name: "server error", status: 500, body: `{"name":"INTERNAL_SERVER_ERROR"}`, verdict: transient},
		{name: "unprocessable", status: 422, body: `{"name":"UNPROCESSABLE_ENTITY","details":[{"issue":"INSTRUMENT_DECLINED"}]}`, verdict: rejected},
	},
	"Adyen": {
		{name: "made", status: 200, body: `{"pspReference":"1"}`, verdict: done},
		{name: "in progress", status: 422, body: `{"status":422,"errorCode":"704"}`, field: "transient-error: true", verdict: inProgress, wait: poll},
		{name: "in progress, as a conflict", status: 409, body: `{"status":409,"errorCode":"704"}`, field: "transient-error: true", verdict: inProgress, wait: poll},
		{name: "processed or in progress", status: 422, body: `{"status":422,"errorCode":"704"}`, verdict: uncertain},
		{name: "processed or in progress, do not retry", status: 409, body: `{"errorCode":"704"}`, field: "transient-error: false", verdict: uncertain},
		{name: "key store unavailable", status: 503, body: `{"status":503,"errorCode":"703"}`, field: "transient-error: true", verdict: transient},
		{name: "key store unavailable, without a field", status: 503, body: `{"status":503,"errorCode":"703"}`, verdict: transient},
		{name: "key store unavailable, do not retry", status: 503, body: `{"errorCode":"703"}`, field: "transient-error: false", verdict: uncertain},
		{name: "another transient error", status: 422, body: `{"errorCode":"901"}`, field: "transient-error: true", verdict: transient},
		{name: "server error, do not retry", status: 500, body: `{"errorCode":"905"}`, field: "transient-error: false", verdict: uncertain},
		{name: "another server error, retry", status: 501, field: "transient-error: true", verdict: transient},
		{name: "conflict, which is not documented", status: 409, body: `{"errorCode":"1"}`, verdict: uncertain},
		{name: "invalid card number", status: 422, body: `{"status":422,"errorCode":"101"}`, verdict: rejected},
	},
	"Square": {
		{name: "made", status: 200, body: `{"payment":{"id":"1"}}`, verdict: done},
		{name: "key reused", status: 400, body: `{"errors":[{"category":"INVALID_REQUEST_ERROR","code":"IDEMPOTENCY_KEY_REUSED"}]}`, verdict: keyReused},
		{name: "card declined", status: 402, body: `{"errors":[{"category":"PAYMENT_METHOD_ERROR","code":"CARD_DECLINED"}]}`, verdict: rejected},
		{name: "conflict, which is not documented", status: 409, body: `{"errors":[{"code":"CONFLICT"}]}`, verdict: uncertain},
		{name: "rate limited", status: 429, body: `{"errors":[{"category":"RATE_LIMIT_ERROR","code":"RATE_LIMITED"}]}`, verdict: transient},
		{name: "server error", status: 500, body: `{"errors":[{"category":"API_ERROR","code":"INTERNAL_SERVER_ERROR"}]}`, verdict: transient},
	},
	"GoCardless": {
		{name: "made", status: 201, body: `{"payments":{"id":"PM1"}}`, verdict: done},
		{
			name: "made before", status: 409, verdict: exists,
			body: `{"error":{"code":409,"type":"invalid_state","errors":[{"reason":"idempotent_creation_conflict","links":{"conflicting_resource_id":"PM1"}}]}}`,
		},
		{name: "another conflict", status: 409, body: `{"error":{"type":"invalid_state","errors":[{"reason":"bank_account_exists"}]}}`, verdict: uncertain},
		{name: "validation failed", status: 422, body: `{"error":{"type":"validation_failed","errors":[{"field":"amount"}]}}`, verdict: rejected},
		{name: "rate limit", status: 429, body: `{"error":{"type":"invalid_api_usage"}}`, verdict: transient},
		{name: "server error", status: 500, body: `{"error":{"type":"gocardless"}}`, verdict: transient},
	},
	"CheckoutCom": {
		{name: "made", status: 201, body: `{"id":"pay_1","status":"Authorized"}`, verdict: done},
		{name: "made, to be continued by the customer", status: 202, body: `{"id":"pay_1","status":"Pending"}`, verdict: done},
		{name: "in progress", status: 409, verdict: inProgress, wait: 30 * time.Second},
		{name: "in progress, with a wait", status: 409, field: "Retry-After: 45", verdict: inProgress, wait: 45 * time.Second},
		{name: "too many requests", status: 429, verdict: transient},
		{name: "invalid", status: 422, body: `{"error_type":"request_invalid"}`, verdict: rejected},
		{name: "bad gateway", status: 502, verdict: transient},
	},
	"ModernTreasury": {
		{name: "made", status: 201, body: `{"id":"1","object":"payment_order"}`, verdict: done},
		{name: "in progress", status: 409, body: `{"errors":{"code":"conflict"}}`, verdict: inProgress, wait: poll},
		{name: "invalid", status: 422, body: `{"errors":{"code":"parameter_invalid"}}`, verdict: rejected},
		{name: "rate limit", status: 429, field: "Retry-After: 3", verdict: transient, wait: 3 * time.Second},
		{name: "server error", status: 500, verdict: transient},
	},
	"Mollie": {
		{name: "made", status: 201, body: `{"id":"tr_1"}`, verdict: done},
		{name: "replayed", status: 201, body: `{"id":"tr_1"}`, field: "Idempotent-Replayed: true", verdict: done},
		{name: "in progress", status: 409, body: `{"status":409,"title":"Conflict"}`, verdict: inProgress, wait: poll},
		{name: "key reused, or anything else", status: 400, body: `{"status":400,"title":"Bad Request"}`, verdict: rejected},
		{name: "stored server error", status: 500, field: "Idempotent-Replayed: true", verdict: uncertain},
		{name: "server error", status: 503, verdict: transient},
		{name: "server error, with the mark of others", status: 503, field: "X-Idempotency-Replayed: true", verdict: transient},
	},
	"Razorpay":        razorpayAnswers,
	"RazorpayRefunds": razorpayAnswers,
	"AWS":             awsAnswers,
	"AWSQuery":        awsAnswers,
	"AWSHeader":       awsAnswers,
	"GoogleCloud": {
		{name: "made", status: 200, body: `{"kind":"compute#operation","status":"RUNNING"}`, verdict: done},
		{name: "unavailable", status: 503, body: `{"error":{"code":503,"status":"UNAVAILABLE"}}`, verdict: transient},
		{name: "resource exhausted", status: 429, body: `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED"}}`, field: "Retry-After: 5", verdict: transient, wait: 5 * time.Second},
		{name: "already exists, by an earlier attempt or not", status: 409, body: `{"error":{"code":409,"status":"ALREADY_EXISTS"}}`, verdict: uncertain},
		{name: "invalid argument", status: 400, body: `{"error":{"code":400,"status":"INVALID_ARGUMENT"}}`, verdict: rejected},
	},
	"Azure": {
		{name: "made", status: 201, body: `{"id":"room-1"}`, field: "Repeatability-Result: accepted", verdict: done},
		{name: "accepted", status: 202, body: `{"id":"mail-1","status":"Running"}`, field: "Retry-After: 60", verdict: done},
		{name: "in progress", status: 409, field: "Repeatability-Result: accepted", verdict: inProgress, wait: poll},
		{name: "another conflict", status: 409, verdict: uncertain},
		{name: "no longer tracked", status: 412, field: "Repeatability-Result: rejected", verdict: expired},
		{name: "a condition that failed", status: 412, verdict: rejected},
		{name: "key reused", status: 400, field: "Repeatability-Result: Rejected", verdict: keyReused},
		{name: "invalid", status: 400, body: `{"error":{"code":"InvalidInput"}}`, verdict: rejected},
		{name: "server error", status: 500, verdict: transient},
	},
}

var razorpayAnswers = []answer{
	{name: "made", status: 200, body: `{"id":"pout_1"}`, verdict: done},
	{
		name: "in progress", status: 409, verdict: inProgress, wait: poll,
		body: `{"error":{"code":"BAD_REQUEST_ERROR","description":"Another request with the same idempotency key is still in progress."}}`,
	},
	{
		name: "key reused", status: 409, verdict: keyReused,
		body: `{"error":{"code":"BAD_REQUEST_ERROR","description":"Different request with the same idempotency key has already been processed."}}`,
	},
	{
		name: "key reused, as a bad request", status: 400, verdict: keyReused,
		body: `{"error":{"code":"BAD_REQUEST_ERROR","description":"Different request with the same idempotency key has already been processed."}}`,
	},
	{name: "bad request", status: 400, body: `{"error":{"code":"BAD_REQUEST_ERROR","description":"The amount is invalid."}}`, verdict: rejected},
	{name: "bad gateway", status: 502, body: `{"error":{"code":"GATEWAY_ERROR"}}`, verdict: transient},
}

var awsAnswers = []answer{
	{name: "made", status: 200, body: `{"arn":"1"}`, verdict: done},
	{name: "in progress", status: 400, body: `{"__type":"com.amazonaws.dynamodb.v20120810#TransactionInProgressException"}`, verdict: inProgress, wait: poll},
	{name: "token reused", status: 400, body: `{"__type":"IdempotentParameterMismatchException"}`, verdict: keyReused},
	{name: "token reused, in DynamoDB", status: 400, body: `{"__type":"com.amazonaws.dynamodb.v20120810#IdempotentParameterMismatchException"}`, verdict: keyReused},
	{name: "token reused, in a field", status: 409, field: "x-amzn-ErrorType: IdempotentParameterMismatch", verdict: keyReused},
	{name: "throttled", status: 400, field: "x-amzn-ErrorType: ThrottlingException", verdict: transient},
	{name: "throttled, in DynamoDB", status: 400, body: `{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}`, verdict: transient},
	{name: "timed out", status: 400, field: "x-amzn-ErrorType: RequestTimeoutException", verdict: transient},
	{name: "service unavailable", status: 503, verdict: transient},
	{name: "conflict, of whatever", status: 409, field: "x-amzn-ErrorType: ConflictException", verdict: uncertain},
	{name: "invalid", status: 400, body: `{"__type":"ValidationException"}`, verdict: rejected},
}

// poll is the wait before asking again if nobody says how long.
const poll = 250 * time.Millisecond

func TestAnswersMeanWhatTheProviderDocuments(t *testing.T) {
	t.Parallel()
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			require.GreaterOrEqual(t, len(answers[p.name]), 4)
			for _, a := range answers[p.name] {
				t.Run(a.name, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { meansIt(t, p, a) })
					if a.verdict == inProgress || a.verdict == transient {
						synctest.Test(t, func(t *testing.T) { isWaitedFor(t, p, a) })
					}
				})
			}
		})
	}
}

// meansIt asserts what comes of a single attempt.
func meansIt(t *testing.T, p provider, a answer) {
	t.Helper()
	srv, arrivals := timeline(t, a.String())
	client := speaking(p.dialect, srv.Transport)
	client.Retry.MaxAttempts, client.Retry.MaxWait = 1, 1 // ns: ask only once
	_, err := pay(t, client)
	require.Len(t, arrivals(), 1)
	want := map[idem.Verdict]struct {
		outcome  idem.Outcome
		conflict bool
		reason   idem.Reason
	}{
		done:       {outcome: idem.Done},
		inProgress: {outcome: idem.Pending, reason: idem.ReasonMaxWait},
		transient:  {outcome: idem.Unknown, reason: idem.ReasonAttempts},
		uncertain:  {outcome: idem.Unknown, conflict: a.status == 409},
		exists:     {outcome: idem.Done, conflict: true},
		keyReused:  {outcome: idem.Rejected, conflict: true},
		rejected:   {outcome: idem.Rejected, conflict: a.status == 409},
		expired:    {outcome: idem.Expired, conflict: true},
	}[a.verdict]
	require.Equal(t, want.outcome, idem.OutcomeOf(err))
	require.Equal(t, want.conflict, hasA[*idem.ConflictError](err), "%v", err)
	require.Equal(t, a.verdict == done, err == nil, "%v", err)
	require.Equal(t, want.reason != "", hasA[*idem.IncompleteError](err), "%v", err)
	if want.reason != "" {
		require.Equal(t, want.reason, asA[*idem.IncompleteError](t, err).Reason)
	}
}

// isWaitedFor asserts that the same is sent again, after the wait.
func isWaitedFor(t *testing.T, p provider, a answer) {
	t.Helper()
	srv, arrivals := timeline(t, a.String(), faultnet.Answer(200, `{"id":"1"}`))
	result, err := pay(t, speaking(p.dialect, srv.Transport))
	require.NoError(t, err)
	require.Equal(t, []time.Duration{0, a.wait}, arrivals())
	sent := srv.Requests()
	require.Equal(t, sent[0].Raw, sent[1].Raw)
	require.Equal(t, result.Key, p.keyOf(t, sent[0]))
}

// step is an answer that says no more than its status and how long to wait.
type step struct {
	status     int
	retryAfter time.Duration
}

func (s step) String() string {
	fields := []string{"Content-Type: application/problem+json"}
	if s.retryAfter > 0 {
		fields = append(fields, fmt.Sprintf("Retry-After: %d", s.retryAfter/time.Second))
	}
	return faultnet.Answer(s.status, fmt.Sprintf(`{"id":"1","title":"%d"}`, s.status), fields...)
}

// waits reports whether and for how long the provider wants to be waited for
// after s. Stripe has an answer of its own for a key in use, so that its other
// 409 are an ordinary failure.
func (p provider) waits(s step) (time.Duration, bool) {
	least := map[string]time.Duration{
		"CheckoutCom 409": 30 * time.Second, "ModernTreasury 409": poll, "Mollie 409": poll, "Razorpay 409": poll,
		"RazorpayRefunds 409": poll, "Stripe 409": 0, "YooKassa 202": 1800 * time.Millisecond,
	}
	wait, waits := least[fmt.Sprint(p.name, " ", s.status)]
	final202 := p.name == "CheckoutCom" || p.name == "Azure"
	waits = waits || s.status == 503 || s.status == 202 && s.retryAfter > 0 && !final202
	return cmp.Or(s.retryAfter, wait), waits
}

func TestConflictAndAcceptedAreFinalOrAWaitAsTheProviderDefinesThem(t *testing.T) {
	t.Parallel()
	for _, p := range providers {
		for _, steps := range [][]step{
			{{409, 0}},
			{{409, time.Second}},
			{{202, time.Second}},
			{{202, 0}},
			{{503, 0}, {202, time.Second}, {409, 0}},
		} {
			t.Run(fmt.Sprint(p.name, steps), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					steps := append(steps, step{status: 201})
					var answers []string
					for _, s := range steps {
						answers = append(answers, s.String())
					}
					srv, arrivals := timeline(t, answers...)
					result, err := pay(t, speaking(p.dialect, srv.Transport))

					want, final := []time.Duration{0}, 0
					for wait, waits := p.waits(steps[0]); waits; wait, waits = p.waits(steps[final]) {
						want, final = append(want, want[final]+wait), final+1
					}
					require.Equal(t, want, arrivals())
					require.Equal(t, steps[final].status, result.StatusCode)
					if steps[final].status == 409 {
						conflict := asA[*idem.ConflictError](t, err)
						require.Equal(t, "409", conflict.Problem.Title)
						require.Equal(t, result.Key, conflict.Key)
					} else {
						require.NoError(t, err)
					}
					for _, r := range srv.Requests() {
						require.Equal(t, srv.Requests()[0].Raw, r.Raw)
						require.Equal(t, result.Key, p.keyOf(t, r))
					}
				})
			})
		}
	}
}

func TestStripeDoesNotRepeatAStoredFailureForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const failed = `{"error":{"type":"api_error"}}`
		srv, arrivals := timeline(t, faultnet.Answer(500, failed), faultnet.Answer(500, failed, "Idempotent-Replayed: true"))
		_, err := pay(t, speaking(dialect.Stripe, srv.Transport))
		given := asA[*idem.StatusError](t, err)
		require.Equal(t, 500, given.StatusCode)
		require.True(t, given.Replayed)
		require.Equal(t, idem.Unknown, idem.OutcomeOf(err), "what it did before it failed is not known")
		require.Len(t, arrivals(), 2)
	})
}
