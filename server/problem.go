package server

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/problem"
)

// Codes of problems that are not for programs to act upon, but for whoever
// reads the logs of a client.
const (
	codeIncomplete         = "REQUEST_INCOMPLETE"
	codeAccountRequired    = "ACCOUNT_REQUIRED"
	codeAccountRefused     = "ACCOUNT_REFUSED"
	codeAccountUnavailable = "ACCOUNT_UNAVAILABLE"
	codeFailed             = "OPERATION_FAILED"
	codeMisconfigured      = "MIDDLEWARE_MISCONFIGURED"
)

// typeURI is where the problem types are explained, each under the kebab-case
// of its code.
const typeURI = "https://github.com/idemhttp/idem#"

// standard is the problem by which the contract answers a result, without what
// is particular to one occurrence. Its status is 0 if the result is not
// answered with a problem.
func standard(r Result) problem.Details {
	details := func(status int, code, title string) problem.Details {
		uri := typeURI + strings.ReplaceAll(strings.ToLower(code), "_", "-")
		return problem.Details{Type: uri, Title: title, Status: status, Code: code}
	}
	switch r {
	case ResultMissing:
		return details(http.StatusBadRequest, problem.KeyMissing, "An idempotency key is required")
	case ResultInvalid:
		return details(http.StatusBadRequest, problem.KeyInvalid, "The idempotency key is malformed")
	case ResultNoAccount:
		return details(http.StatusUnauthorized, codeAccountRequired, "The request belongs to no account")
	case ResultRefused:
		return details(http.StatusForbidden, codeAccountRefused, "The account is refused")
	case ResultAccountError:
		return details(http.StatusServiceUnavailable, codeAccountUnavailable, "The account could not be determined")
	case ResultTooLarge:
		return details(http.StatusRequestEntityTooLarge, problem.TooLarge, "The request is too large")
	case ResultIncomplete:
		return details(http.StatusBadRequest, codeIncomplete, "The request arrived incomplete")
	case ResultReused:
		return details(http.StatusConflict, problem.KeyReuse, "The idempotency key was used for another request")
	case ResultNotKept:
		return details(http.StatusConflict, problem.NotKept, "The operation is done, but its answer was not kept")
	case ResultIndeterminate:
		return details(http.StatusConflict, problem.Indeterminate, "It is not known whether the operation was done")
	case ResultStoreError:
		return details(http.StatusServiceUnavailable, problem.StoreUnavailable, "The idempotency store is unavailable")
	case ResultFailed:
		return details(http.StatusInternalServerError, codeFailed, "The operation failed")
	case ResultMisconfigured:
		return details(http.StatusInternalServerError, codeMisconfigured, "The service is misconfigured")
	default:
		return problem.Details{}
	}
}

// refusal is an answer of the middleware's own in place of the handler's.
type refusal struct {
	result     Result // selects the problem
	status     int    // in place of the problem's, unless zero
	detail     string
	retryAfter string
	members    map[string]any
}

// write sends the refusal and returns its status.
func (f refusal) write(w http.ResponseWriter) int {
	p := standard(f.result)
	if f.status != 0 {
		p.Status = f.status
	}
	p.Detail, p.Members = f.detail, f.members
	if f.retryAfter != "" {
		w.Header().Set("Retry-After", f.retryAfter)
	}
	writeJSON(w, problem.ContentType, p.Status, p)
	return p.Status
}

// writeProcessing sends the answer to a request whose operation is in flight.
func writeProcessing(w http.ResponseWriter, operation uuid.UUID, retryAfter int) {
	body := map[string]any{"status": Processing.String()}
	if operation != uuid.Nil {
		body["operation_id"] = operation
	}
	w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	writeJSON(w, "application/json", http.StatusAccepted, body)
}

func writeJSON(w http.ResponseWriter, contentType string, status int, v any) {
	body, _ := json.Marshal(v) // strings, numbers and maps of them
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Del("Content-Encoding")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
