package providertest

import (
	"encoding/json"
	"net/http"
)

func inField(name string) func(*http.Request, []byte) string {
	return func(r *http.Request, _ []byte) string { return r.Header.Get(name) }
}

func inMember(name string) func(*http.Request, []byte) string {
	return func(_ *http.Request, body []byte) string {
		var members map[string]any
		if json.Unmarshal(body, &members) != nil {
			return ""
		}
		key, _ := members[name].(string)
		return key
	}
}

func inParameter(name string) func(*http.Request, []byte) string {
	return func(r *http.Request, _ []byte) string { return r.URL.Query().Get(name) }
}

// same is an API that repeats its first answer.
func same(key func(*http.Request, []byte) string, status int, body string) *API {
	answer := Answer{Status: status, Body: body}
	return &API{Key: key, First: answer, Again: answer}
}

func with(name, value string) http.Header { return http.Header{name: {value}} }

// Stripe stands in for the payment intents of Stripe.
func Stripe() *API {
	api := same(inField("Idempotency-Key"), http.StatusOK, `{"id":"pi_{n}","object":"payment_intent","status":"succeeded"}`)
	api.Again.Header = with("Idempotent-Replayed", "true")
	api.Busy = Answer{Status: http.StatusConflict, Body: `{"error":{"type":"invalid_request_error","code":"idempotency_key_in_use"}}`}
	api.Reused = Answer{Status: http.StatusBadRequest, Body: `{"error":{"type":"idempotency_error"}}`}
	return api
}

// YooKassa stands in for the payments of YooKassa.
func YooKassa() *API {
	api := same(inField("Idempotence-Key"), http.StatusOK, `{"id":"payment-{n}","status":"pending","paid":false}`)
	api.Busy = Answer{Status: http.StatusAccepted, Body: `{"type":"processing","description":"Request accepted, but not processed yet","retry_after":1800}`}
	return api
}

// PayPal stands in for the orders of PayPal.
func PayPal() *API {
	api := same(inField("Paypal-Request-Id"), http.StatusCreated, `{"id":"ORDER-{n}","status":"CREATED"}`)
	api.Again.Status = http.StatusOK // the latest state of the order
	api.Busy = Answer{Status: http.StatusConflict, Body: `{"name":"RESOURCE_CONFLICT","details":[{"issue":"PREVIOUS_REQUEST_IN_PROGRESS"}]}`}
	return api
}

// Adyen stands in for the payments of Adyen.
func Adyen() *API {
	api := same(inField("Idempotency-Key"), http.StatusOK, `{"id":"psp-{n}","resultCode":"Authorised"}`)
	api.Busy = Answer{
		Status: http.StatusUnprocessableEntity, Header: with("Transient-Error", "true"),
		Body: `{"status":422,"errorCode":"704","message":"request already processed or in progress","errorType":"validation"}`,
	}
	return api
}

// Square stands in for the payments of Square.
func Square() *API {
	api := same(inMember("idempotency_key"), http.StatusOK, `{"id":"square-{n}","status":"COMPLETED"}`)
	api.Reused = Answer{
		Status: http.StatusBadRequest,
		Body:   `{"errors":[{"category":"INVALID_REQUEST_ERROR","code":"IDEMPOTENCY_KEY_REUSED"}]}`,
	}
	return api
}

// GoCardless stands in for the payments of GoCardless.
func GoCardless() *API {
	api := same(inField("Idempotency-Key"), http.StatusCreated, `{"id":"PM{n}"}`)
	api.Again = Answer{
		Status: http.StatusConflict,
		Body: `{"error":{"code":409,"type":"invalid_state","errors":[{"reason":"idempotent_creation_conflict",` +
			`"links":{"conflicting_resource_id":"PM{n}"}}]}}`,
	}
	return api
}

// CheckoutCom stands in for the payments of Checkout.com.
func CheckoutCom() *API {
	api := same(inField("Cko-Idempotency-Key"), http.StatusAccepted, `{"id":"pay_{n}","status":"Pending"}`)
	api.Busy = Answer{Status: http.StatusConflict}
	return api
}

// ModernTreasury stands in for the payment orders of Modern Treasury.
func ModernTreasury() *API {
	api := same(inField("Idempotency-Key"), http.StatusCreated, `{"id":"order-{n}"}`)
	api.Busy = Answer{Status: http.StatusConflict, Body: `{"errors":{"code":"conflict"}}`}
	return api
}

// Mollie stands in for the payments of Mollie.
func Mollie() *API {
	api := same(inField("Idempotency-Key"), http.StatusCreated, `{"id":"tr_{n}","status":"open"}`)
	api.Again.Header = with("Idempotent-Replayed", "true")
	api.Busy = Answer{Status: http.StatusConflict, Body: `{"status":409,"title":"Conflict"}`}
	api.Reused = Answer{Status: http.StatusBadRequest, Body: `{"status":400,"title":"Bad Request"}`}
	return api
}

// Razorpay stands in for the payouts of Razorpay.
func Razorpay() *API { return razorpay("X-Payout-Idempotency", "pout_{n}") }

// RazorpayRefunds stands in for the refunds of Razorpay.
func RazorpayRefunds() *API { return razorpay("X-Refund-Idempotency", "rfnd_{n}") }

func razorpay(field, id string) *API {
	api := same(inField(field), http.StatusOK, `{"id":"`+id+`","status":"processing"}`)
	api.Busy = Answer{
		Status: http.StatusConflict,
		Body:   `{"error":{"code":"BAD_REQUEST_ERROR","description":"Another request with the same idempotency key is still in progress."}}`,
	}
	api.Reused = Answer{
		Status: http.StatusConflict,
		Body:   `{"error":{"code":"BAD_REQUEST_ERROR","description":"Different request with the same idempotency key has already been processed."}}`,
	}
	return api
}

// AWS stands in for a service of AWS with the token in the body.
func AWS() *API { return aws(inMember("clientToken")) }

// AWSQuery stands in for a service of AWS with the token in the query.
func AWSQuery() *API { return aws(inParameter("ClientToken")) }

// AWSHeader stands in for a service of AWS with the token in a field.
func AWSHeader() *API { return aws(inField("X-Amzn-Client-Token")) }

func aws(key func(*http.Request, []byte) string) *API {
	api := same(key, http.StatusOK, `{"id":"i-{n}"}`)
	api.Busy = Answer{Status: http.StatusBadRequest, Body: `{"__type":"TransactionInProgressException"}`}
	api.Reused = Answer{
		Status: http.StatusBadRequest, Header: with("X-Amzn-Errortype", "IdempotentParameterMismatchException"),
		Body: `{"message":"The token was used with other parameters"}`,
	}
	return api
}

// GoogleCloud stands in for a service of Google Cloud.
func GoogleCloud() *API {
	return same(inParameter("requestId"), http.StatusOK, `{"id":"{n}","kind":"compute#operation","status":"RUNNING"}`)
}

// Azure stands in for the e-mails of Azure Communication Services.
func Azure() *API {
	key := func(r *http.Request, _ []byte) string {
		if r.Header.Get("Repeatability-First-Sent") == "" {
			return ""
		}
		return r.Header.Get("Repeatability-Request-Id")
	}
	api := same(key, http.StatusAccepted, `{"id":"mail-{n}","status":"Running"}`)
	api.First.Header = with("Repeatability-Result", "accepted")
	api.First.Header["Retry-After"] = []string{"60"}
	api.Again.Header = api.First.Header
	api.Busy = Answer{Status: http.StatusConflict, Header: with("Repeatability-Result", "accepted")}
	api.Reused = Answer{Status: http.StatusBadRequest, Header: with("Repeatability-Result", "rejected")}
	return api
}
