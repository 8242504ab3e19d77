package dialect

import (
	"net/http"
	"time"

	"github.com/idemhttp/idem"
)

// AWS is the convention of Amazon Web Services with the token as a member of the
// JSON body. [AWSQuery] and [AWSHeader] have it elsewhere. Services differ in how
// they spell it (ClientToken, ClientRequestToken), how long it may be, and how
// long they remember it, which most do not document: copy and adapt.
//
// Requests to AWS are signed, so sign below the client, in its Transport: then
// each attempt is signed anew, with the token in its place.
var AWS = &idem.Dialect{
	Name:         "AWS (body)",
	Source:       awsSource,
	KeyMember:    "clientToken",
	MaxKeyLength: 64,
	Rules:        awsRules(),
}

// AWSQuery is [AWS] with the token as a parameter of the query.
var AWSQuery = &idem.Dialect{
	Name:         "AWS (query)",
	Source:       awsSource,
	KeyParameter: "ClientToken",
	MaxKeyLength: 64,
	Rules:        awsRules(),
}

// AWSHeader is [AWS] with the token in a field.
var AWSHeader = &idem.Dialect{
	Name:         "AWS (header)",
	Source:       awsSource,
	KeyField:     "X-Amzn-Client-Token",
	MaxKeyLength: 64,
	Rules:        awsRules(),
}

const awsSource = "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Run_Instance_Idempotency.html"

// awsRules go by the name of the error, which is in the body or in a field, and
// for DynamoDB with its namespace in front.
func awsRules() []idem.Rule {
	var rules []idem.Rule
	for _, e := range []struct {
		name    string
		verdict idem.Verdict
	}{
		{"TransactionInProgressException", idem.VerdictInProgress},
		{"IdempotentParameterMismatch", idem.VerdictKeyReused},
		{"IdempotentParameterMismatchException", idem.VerdictKeyReused},
		{"ThrottlingException", idem.VerdictTransient},
		{"ProvisionedThroughputExceededException", idem.VerdictTransient},
		{"RequestTimeoutException", idem.VerdictTransient},
	} {
		rules = append(
			rules,
			idem.Rule{Status: 4, Pointer: "/__type", Value: e.name, Verdict: e.verdict},
			idem.Rule{Status: 4, Pointer: "/__type", Value: "com.amazonaws.dynamodb.v20120810#" + e.name, Verdict: e.verdict},
			idem.Rule{Status: 4, Field: "X-Amzn-Errortype", FieldValue: e.name, Verdict: e.verdict},
		)
	}
	return append(rules, conflict(idem.VerdictUncertain))
}

// GoogleCloud is the convention of Google Cloud, AIP-155, with the request id in
// the query. What a repetition is answered while the first request runs is not
// documented. Most services guarantee to remember an id for an hour. Where one
// insists on a UUID of version 4, a derived key (version 8) will not do: keep the
// operation with its minted one.
var GoogleCloud = &idem.Dialect{
	Name:         "Google Cloud",
	Source:       "https://google.aip.dev/155",
	KeyParameter: "requestId",
	UUIDKeys:     true,
	KeyLifetime:  time.Hour,
	Rules:        []idem.Rule{conflict(idem.VerdictUncertain)},
}

// Azure is OASIS Repeatable Requests as the data plane of Azure speaks it. Each
// service documents how long it tracks requests; the guidelines demand, and
// Communication Services give, five minutes. A repetition is answered as the
// first request was, so a 202 is final: the long operation that it began is to
// be followed at its Operation-Location.
var Azure = &idem.Dialect{
	Name:           "Azure",
	Source:         "https://learn.microsoft.com/en-us/rest/api/communication/repeatable-requests",
	KeyField:       "Repeatability-Request-ID",
	FirstSentField: "Repeatability-First-Sent",
	UUIDKeys:       true,
	KeyLifetime:    5 * time.Minute,
	Rules: []idem.Rule{
		{Status: http.StatusAccepted, Verdict: idem.VerdictDone},
		{Status: http.StatusPreconditionFailed, Field: result, FieldValue: "rejected", Verdict: idem.VerdictExpired},
		{Status: http.StatusBadRequest, Field: result, FieldValue: "rejected", Verdict: idem.VerdictKeyReused},
		{Status: http.StatusConflict, Field: result, FieldValue: "accepted", Verdict: idem.VerdictInProgress},
		conflict(idem.VerdictUncertain),
	},
}

const result = "Repeatability-Result"
