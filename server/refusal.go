package server

import (
	"net/http"

	"github.com/idemhttp/idem/internal/problem"
)

// Codes that are not for programs to act upon, but for whoever reads the logs
// of a client.
const (
	codeInFlight           = "OPERATION_IN_FLIGHT"
	codeNotFound           = "OPERATION_NOT_FOUND"
	codeIncomplete         = "REQUEST_INCOMPLETE"
	codeAccountRequired    = "ACCOUNT_REQUIRED"
	codeAccountRefused     = "ACCOUNT_REFUSED"
	codeAccountUnavailable = "ACCOUNT_UNAVAILABLE"
	codeFailed             = "OPERATION_FAILED"
	codeMisconfigured      = "MIDDLEWARE_MISCONFIGURED"
)

const (
	retryDetail         = "Send the request again with the same key."
	misconfiguredDetail = "The log says what is wrong."
	retryAfterOutage    = "1"
)

// refusal returns what all refusals with the same result have in common, or
// the zero value if requests with that result are answered by their handlers.
func (r Result) refusal() Refusal {
	of := func(status int, code, title string) Refusal {
		return Refusal{Result: r, Status: status, Code: code, Title: title}
	}
	switch r {
	case ResultInFlight:
		return of(http.StatusAccepted, codeInFlight, "An earlier request with this idempotency key is in progress")
	case ResultNotFound:
		return of(http.StatusNotFound, codeNotFound, "The operation was not found")
	case ResultMissing:
		return of(http.StatusBadRequest, problem.KeyMissing, "An idempotency key is required")
	case ResultInvalid:
		return of(http.StatusBadRequest, problem.KeyInvalid, "The idempotency key is malformed")
	case ResultNoAccount:
		return of(http.StatusUnauthorized, codeAccountRequired, "The request belongs to no account")
	case ResultRefused:
		return of(http.StatusForbidden, codeAccountRefused, "The account is refused")
	case ResultAccountError:
		return of(http.StatusServiceUnavailable, codeAccountUnavailable, "The account could not be determined")
	case ResultTooLarge:
		return of(http.StatusRequestEntityTooLarge, problem.TooLarge, "The request is too large")
	case ResultIncomplete:
		return of(http.StatusBadRequest, codeIncomplete, "The request arrived incomplete")
	case ResultReused:
		return of(http.StatusConflict, problem.KeyReuse, "The idempotency key was used for another request")
	case ResultNotKept:
		return of(http.StatusConflict, problem.NotKept, "The operation is done, but its answer was not kept")
	case ResultIndeterminate:
		return of(http.StatusConflict, problem.Indeterminate, "It is not known whether the operation was done")
	case ResultStoreError:
		return of(http.StatusServiceUnavailable, problem.StoreUnavailable, "The idempotency store is unavailable")
	case ResultFailed:
		return of(http.StatusInternalServerError, codeFailed, "The operation failed")
	case ResultMisconfigured:
		return of(http.StatusInternalServerError, codeMisconfigured, "The service is misconfigured")
	default:
		return Refusal{}
	}
}

// with returns r with what can be done about it.
func (r Refusal) with(detail string) Refusal {
	r.Detail = detail
	return r
}

// explain says what a program or its author can do about a verdict.
func explain(v verdict) Refusal {
	r := v.result.refusal()
	if !v.record.Reused {
		r.Operation = v.record.Operation
	}
	switch v.result {
	case ResultReused:
		return r.with("A new operation needs a new key; to repeat the earlier one, send exactly the same request.")
	case ResultNotKept:
		r.OriginalStatus = v.record.Response.StatusCode
		return r.with("The operation was executed once and will not be again; look its result up by other means.")
	case ResultIndeterminate:
		return r.with("The server was lost while it executed the operation. " +
			"Find out what became of it before sending it with a new key.")
	default:
		r.RetryAfter = retryAfterOutage
		return r.with(retryDetail)
	}
}
