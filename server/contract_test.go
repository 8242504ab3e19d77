package server_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/dialect"
	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server"
)

var operationID = uuid.MustParse("6f1c2a34-0000-4000-8000-000000000001")

// What the contracts say of the same refusals.
func TestContractsAnswerInTheirOwnWords(t *testing.T) {
	t.Parallel()
	inFlight := server.Refusal{
		Result: server.ResultInFlight, Status: 202, Code: "OPERATION_IN_FLIGHT", Title: "In progress",
		Detail: "Wait.", RetryAfter: "2", Operation: operationID,
	}
	reused := server.Refusal{Result: server.ResultReused, Status: 409, Code: "IDEMPOTENCY_KEY_REUSE", Title: "Reused", Detail: "Take another."}
	missing := server.Refusal{Result: server.ResultMissing, Status: 400, Code: "IDEMPOTENCY_KEY_MISSING", Title: "Missing"}
	notKept := server.Refusal{
		Result: server.ResultNotKept, Status: 409, Code: "RESPONSE_NOT_KEPT", Title: "Not kept", Operation: operationID, OriginalStatus: 201,
	}
	indeterminate := server.Refusal{Result: server.ResultIndeterminate, Status: 409, Code: "OPERATION_INDETERMINATE", Title: "Unknown"}
	outage := server.Refusal{Result: server.ResultStoreError, Status: 503, Code: "STORE_UNAVAILABLE", Title: "Outage", RetryAfter: "1"}

	const types = "https://github.com/idemhttp/idem#"
	for name, c := range map[string]struct {
		contract server.Contract
		refusal  server.Refusal
		status   int
		fields   string
		body     string
	}{
		"Standard, in flight": {
			server.Standard, inFlight, 202, "Content-Type: application/json, Retry-After: 2",
			`{"status": "processing", "operation_id": "6f1c2a34-0000-4000-8000-000000000001"}`,
		},
		"Standard, reused": {
			server.Standard, reused, 409, "Content-Type: application/problem+json",
			`{"type": "` + types + `idempotency-key-reuse", "title": "Reused", "status": 409, "detail": "Take another.", "code": "IDEMPOTENCY_KEY_REUSE"}`,
		},
		"Standard, not kept": {
			server.Standard, notKept, 409, "Content-Type: application/problem+json",
			`{"type": "` + types + `response-not-kept", "title": "Not kept", "status": 409, "code": "RESPONSE_NOT_KEPT",
			  "operation_id": "6f1c2a34-0000-4000-8000-000000000001", "original_status": 201}`,
		},
		"Standard, outage": {
			server.Standard, outage, 503, "Content-Type: application/problem+json, Retry-After: 1",
			`{"type": "` + types + `store-unavailable", "title": "Outage", "status": 503, "code": "STORE_UNAVAILABLE"}`,
		},
		"IETF, in flight": {
			server.IETF, inFlight, 409, "Content-Type: application/problem+json, Retry-After: 2",
			`{"type": "` + types + `operation-in-flight", "title": "In progress", "status": 409, "detail": "Wait.",
			  "code": "OPERATION_IN_FLIGHT", "operation_id": "6f1c2a34-0000-4000-8000-000000000001"}`,
		},
		"IETF, reused": {
			server.IETF, reused, 422, "Content-Type: application/problem+json",
			`{"type": "` + types + `idempotency-key-reuse", "title": "Reused", "status": 422, "detail": "Take another.", "code": "IDEMPOTENCY_KEY_REUSE"}`,
		},
		"IETF, missing": {
			server.IETF, missing, 400, "Content-Type: application/problem+json",
			`{"type": "` + types + `idempotency-key-missing", "title": "Missing", "status": 400, "code": "IDEMPOTENCY_KEY_MISSING"}`,
		},
		"Stripe, in flight": {
			server.Stripe, inFlight, 409, "Content-Type: application/json, Retry-After: 2, Stripe-Should-Retry: true",
			`{"error": {"type": "invalid_request_error", "code": "idempotency_key_in_use", "message": "In progress. Wait.",
			  "operation_id": "6f1c2a34-0000-4000-8000-000000000001"}}`,
		},
		"Stripe, reused": {
			server.Stripe, reused, 400, "Content-Type: application/json, Stripe-Should-Retry: false",
			`{"error": {"type": "idempotency_error", "code": "idempotency_key_reuse", "message": "Reused. Take another."}}`,
		},
		"Stripe, missing": {
			server.Stripe, missing, 400, "Content-Type: application/json, Stripe-Should-Retry: false",
			`{"error": {"type": "invalid_request_error", "code": "idempotency_key_missing", "message": "Missing."}}`,
		},
		"Stripe, not kept": {
			server.Stripe, notKept, 500, "Content-Type: application/json, Stripe-Should-Retry: false",
			`{"error": {"type": "api_error", "code": "response_not_kept", "message": "Not kept.",
			  "operation_id": "6f1c2a34-0000-4000-8000-000000000001", "original_status": 201}}`,
		},
		"Stripe, indeterminate": {
			server.Stripe, indeterminate, 500, "Content-Type: application/json, Stripe-Should-Retry: false",
			`{"error": {"type": "api_error", "code": "operation_indeterminate", "message": "Unknown."}}`,
		},
		"Stripe, outage": {
			server.Stripe, outage, 503, "Content-Type: application/json, Retry-After: 1, Stripe-Should-Retry: true",
			`{"error": {"type": "api_error", "code": "store_unavailable", "message": "Outage."}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.contract(c.refusal)
			require.Equal(t, c.status, got.StatusCode)
			var fields []string
			for _, f := range got.Fields {
				fields = append(fields, f.Name+": "+f.Value)
			}
			require.Equal(t, c.fields, strings.Join(fields, ", "))
			require.JSONEq(t, c.body, string(got.Body))
		})
	}
}

func TestTheContractIsAskedForEveryRefusal(t *testing.T) {
	t.Parallel()
	var got server.Refusal
	own := func(r server.Refusal) server.Response {
		got = r
		return server.Response{StatusCode: 418, Fields: []server.Field{{Name: "Content-Type", Value: "text/plain"}}, Body: []byte(r.Code)}
	}
	s := newService(func(mw *server.Middleware) { mw.Contract = own }, created)
	r := post("{}")
	r.Header.Del("Idempotency-Key")
	w := serve(s, r)
	require.Equal(t, 418, w.Code)
	require.Equal(t, "IDEMPOTENCY_KEY_MISSING", w.Body.String())
	require.Equal(t, []string{"text/plain"}, w.Header()["Content-Type"])
	require.Equal(t, []string{"23"}, w.Header()["Content-Length"])
	require.Equal(t, server.ResultMissing, got.Result)
	require.Equal(t, 418, s.lastEvent().StatusCode)

	unusable := (&server.Middleware{Contract: own}).Handler(http.NotFoundHandler())
	require.Equal(t, "MIDDLEWARE_MISCONFIGURED", serve(unusable, post("{}")).Body.String())
}

// A key is echoed as it was sent, quotes included, also where it is refused.
func TestTheKeyIsEchoedAsItWasSent(t *testing.T) {
	t.Parallel()
	s := newService(func(mw *server.Middleware) { mw.Contract = server.IETF }, created)
	for _, c := range []struct {
		body   string
		status int
	}{{"{}", 201}, {"{}", 201}, {`{"amount":1}`, 422}} {
		w := serve(s, request("POST", "/payments", `"key"`, c.body))
		require.Equal(t, c.status, w.Code)
		require.Equal(t, []string{`"key"`}, w.Header()["Idempotency-Key"])
	}
	require.EqualValues(t, 1, s.runs.Load())
}

func TestRoutesUnderDifferentContractsReplayEachOther(t *testing.T) {
	t.Parallel()
	first := newService(func(mw *server.Middleware) { mw.Contract = server.Stripe }, created)
	w := serve(first, post("{}"))
	for _, contract := range []server.Contract{nil, server.Standard, server.IETF, server.Stripe} {
		s := newService(func(mw *server.Middleware) { mw.Contract, mw.Store = contract, first.store }, created)
		requireReplay(t, w, serve(s, post("{}")))
		require.Zero(t, s.runs.Load())
	}
}

// dialects are how clients understand the contracts.
var dialects = map[string]struct {
	contract server.Contract
	dialect  *idem.Dialect
}{
	"Standard": {server.Standard, idem.Standard},
	"IETF":     {server.IETF, idem.IETF},
	"Stripe":   {server.Stripe, dialect.Stripe},
}

// pair is a service under a contract, and a client that understands it.
type pair struct {
	*testing.T
	*service

	client *idem.Client
}

// send sends an operation with the key "key".
func (p *pair) send(amount int) (idem.Result[string], error) {
	op, err := idem.NewOperation("POST", "/payments", map[string]int{"amount": amount})
	if err != nil {
		return idem.Result[string]{}, err
	}
	op.Key = "key"
	return idem.Send[string](p.Context(), p.client, op)
}

// withClients runs test in virtual time with a pair for each contract.
func withClients(t *testing.T, configure func(*server.Middleware), handler http.HandlerFunc, test func(*pair)) {
	t.Helper()
	for name, c := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService(func(mw *server.Middleware) {
					mw.Contract = c.contract
					if configure != nil {
						configure(mw)
					}
				}, handler)
				client := &idem.Client{BaseURL: "http://api", Transport: faultnet.Handle(t, s), Dialect: c.dialect}
				test(&pair{T: t, service: s, client: client})
			})
		})
	}
}

func TestClientsWaitForAnOperationInFlight(t *testing.T) {
	t.Parallel()
	answers := func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(5 * time.Second)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "done")
	}
	withClients(t, nil, answers, func(p *pair) {
		start := time.Now()
		var first idem.Result[string]
		var firstErr error
		done := make(chan struct{})
		go func() {
			defer close(done)
			first, firstErr = p.send(100)
		}()
		synctest.Wait()
		second, err := p.send(100)
		require.NoError(p, err)
		require.True(p, second.Replayed)
		require.Greater(p, second.Attempts, 1)
		require.Equal(p, "done", second.Value)
		require.Less(p, time.Since(start), 10*time.Second)
		<-done
		require.NoError(p, firstErr)
		require.False(p, first.Replayed)
		require.EqualValues(p, 1, p.runs.Load())
	})
}

func TestClientsKnowThatTheKeyBelongsToAnotherRequest(t *testing.T) {
	t.Parallel()
	withClients(t, nil, created, func(p *pair) {
		serve(p, request("POST", "/payments", "key", `{"amount":100}`))
		start := time.Now()
		_, err := p.send(200)
		require.Error(p, err)
		require.Equal(p, idem.Rejected, idem.OutcomeOf(err))
		require.Zero(p, time.Since(start), "it is not tried again")
		require.EqualValues(p, 1, p.runs.Load())
	})
}

func TestClientsKnowThatAKeyIsMissing(t *testing.T) {
	t.Parallel()
	withClients(t, nil, created, func(p *pair) {
		r, err := http.NewRequestWithContext(p.Context(), http.MethodPost, "/payments", strings.NewReader("{}"))
		require.NoError(p, err)
		r.Header["Idempotency-Key"] = nil
		resp, err := p.client.Do(r)
		require.NoError(p, err)
		require.NoError(p, resp.Body.Close())
		require.Equal(p, http.StatusBadRequest, resp.StatusCode)
		require.Zero(p, p.runs.Load())
	})
}

func TestClientsOutliveAnOutageOfTheStore(t *testing.T) {
	t.Parallel()
	answers := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }
	withClients(t, nil, answers, func(p *pair) {
		var calls atomic.Int64
		p.store.on("claim", func() error {
			if calls.Add(1) <= 2 {
				return errOutage
			}
			return nil
		})
		result, err := p.send(100)
		require.NoError(p, err)
		require.Equal(p, "done", result.Value)
		require.Equal(p, 3, result.Attempts)
	})
}

// No client may take an operation that was done, or may have been, for one that
// was not.
func TestClientsKnowThatAnAnswerWasNotKept(t *testing.T) {
	t.Parallel()
	large := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100)) }
	withClients(t, func(mw *server.Middleware) { mw.MaxStored = 10 }, large, func(p *pair) {
		serve(p, request("POST", "/payments", "key", `{"amount":100}`))
		_, err := p.send(100)
		require.Error(p, err)
		want := idem.Done
		if p.client.Dialect == dialect.Stripe {
			want = idem.Unknown // Stripe has no word for it
		}
		require.Equal(p, want, idem.OutcomeOf(err))
		require.EqualValues(p, 1, p.runs.Load())
	})
}

func TestClientsKnowThatAnOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	lost := func(mw *server.Middleware) { mw.Takeover = server.Refuse }
	withClients(t, lost, created, func(p *pair) {
		p.store.fail("complete", server.ErrLeaseLost)
		require.Equal(p, http.StatusCreated, serve(p, request("POST", "/payments", "key", `{"amount":100}`)).Code)
		time.Sleep(time.Minute)
		_, err := p.send(100)
		require.Error(p, err)
		require.Equal(p, idem.Unknown, idem.OutcomeOf(err))
		require.EqualValues(p, 1, p.runs.Load())
	})
}
