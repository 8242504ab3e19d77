package server

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/problem"
)

// Contract puts what a [Middleware] answers in place of its handler into words.
// There are [Standard], [IETF] and [Stripe]; an API with a format of its own
// for errors brings a function of its own, which is called concurrently and says
// the same whenever it is asked the same.
//
// What handlers answer is no matter of a contract, first or replayed. Routes
// under different contracts that share a store replay each other's answers.
type Contract func(Refusal) Response

// Refusal is what a contract has to say: why a request is not answered by its
// handler.
type Refusal struct {
	// Result is the reason.
	Result Result
	// Status, Code and Title are those of [Standard]; for an account that was
	// refused, the status that the service chose.
	Status      int
	Code, Title string
	// Detail says what a program or its author can do about it. It may be
	// empty.
	Detail string
	// RetryAfter is the value of the Retry-After field, in seconds. If it is
	// empty, sending the same request again is of no use now.
	RetryAfter string
	// Operation is the id of the operation that the key belongs to, zero if
	// that is not known or none of the client's business.
	Operation uuid.UUID
	// OriginalStatus is the status of the answer that was not kept, if that is
	// the reason, and otherwise zero.
	OriginalStatus int
}

// Standard is the contract of this module: 202 for an operation in flight, 409
// for a key that belongs to another request, and problem details (RFC 9457) with
// a code. A nil Contract is the same.
func Standard(r Refusal) Response {
	if r.Result != ResultInFlight {
		return problemResponse(r)
	}
	body := map[string]any{"status": Processing.String()}
	if r.Operation != uuid.Nil {
		body["operation_id"] = r.Operation
	}
	return jsonResponse(r, "application/json", body)
}

// IETF is the contract of draft-ietf-httpapi-idempotency-key-header-07: as
// [Standard], but 409 for an operation in flight, and 422 for a key that belongs
// to another request.
func IETF(r Refusal) Response {
	switch r.Result {
	case ResultInFlight:
		r.Status = http.StatusConflict
	case ResultReused:
		r.Status = http.StatusUnprocessableEntity
	default: // as Standard
	}
	return problemResponse(r)
}

// Stripe is the contract of Stripe's API: 409 with the code
// idempotency_key_in_use for an operation in flight, 400 with the type
// idempotency_error for a key that belongs to another request, and errors in
// Stripe's format. Stripe-Should-Retry tells its client libraries what to do.
//
// An operation whose outcome cannot be told, or whose answer was not kept, is
// answered with 500: Stripe's clients take that for what it is, an open
// question, and any 4xx for an operation that was not done.
func Stripe(r Refusal) Response {
	kind, code := "invalid_request_error", strings.ToLower(r.Code)
	switch r.Result {
	case ResultInFlight:
		r.Status, code = http.StatusConflict, "idempotency_key_in_use"
	case ResultReused:
		r.Status, kind = http.StatusBadRequest, "idempotency_error"
	case ResultNotKept, ResultIndeterminate:
		r.Status = http.StatusInternalServerError
	default: // nothing that Stripe has an answer of its own for
	}
	if r.Status >= http.StatusInternalServerError {
		kind = "api_error"
	}
	members := r.members()
	members["type"], members["code"] = kind, code
	members["message"] = strings.TrimSpace(r.Title + ". " + r.Detail)
	resp := jsonResponse(r, "application/json", map[string]any{"error": members})
	resp.Fields = append(resp.Fields, Field{"Stripe-Should-Retry", strconv.FormatBool(r.RetryAfter != "")})
	return resp
}

// typeURI is where the problem types are explained, each under the kebab-case
// of its code.
const typeURI = "https://github.com/idemhttp/idem#"

func problemResponse(r Refusal) Response {
	return jsonResponse(r, problem.ContentType, problem.Details{
		Type:    typeURI + strings.ReplaceAll(strings.ToLower(r.Code), "_", "-"),
		Title:   r.Title,
		Status:  r.Status,
		Detail:  r.Detail,
		Code:    r.Code,
		Members: r.members(),
	})
}

// members are what is particular to one occurrence, for programs.
func (r Refusal) members() map[string]any {
	m := map[string]any{}
	if r.Operation != uuid.Nil {
		m["operation_id"] = r.Operation
	}
	if r.OriginalStatus != 0 {
		m["original_status"] = r.OriginalStatus
	}
	return m
}

func jsonResponse(r Refusal, contentType string, v any) Response {
	body, _ := json.Marshal(v) // strings, numbers and maps of them
	resp := Response{StatusCode: r.Status, Fields: []Field{{"Content-Type", contentType}}, Body: body}
	if r.RetryAfter != "" {
		resp.Fields = append(resp.Fields, Field{"Retry-After", r.RetryAfter})
	}
	return resp
}

// reply writes an answer of the middleware's own.
func reply(w http.ResponseWriter, resp Response) {
	h := w.Header()
	h.Del("Content-Encoding")
	set(h, resp.Fields)
	h.Set("Content-Length", strconv.Itoa(len(resp.Body)))
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(resp.Body)
}
