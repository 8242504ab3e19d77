package idem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/idemhttp/idem"
)

// Payment is what the API of these examples takes and returns.
type Payment struct {
	ID       string `json:"id,omitempty"`
	Amount   int    `json:"amount"`
	Currency string `json:"currency"`
}

// bank is a payment API. Each answer is given once, the last one for ever.
func bank(answers ...http.HandlerFunc) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		answer(w, r)
	}))
}

func paid(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, `{"id":"p1","amount":1200,"currency":"RUB"}`)
}

func unavailable(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
}

func reused(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusConflict)
	fmt.Fprint(w, `{"title":"The key was used for another request","code":"IDEMPOTENCY_KEY_REUSE"}`)
}

func ExamplePost() {
	api := bank(unavailable, paid)
	defer api.Close()

	client := &idem.Client{BaseURL: api.URL}
	res, err := idem.Post[Payment](context.Background(), client, "/payments", Payment{Amount: 1200, Currency: "RUB"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Value.ID, "after", res.Attempts, "attempts")
	// Output: p1 after 2 attempts
}

func ExampleSend() {
	api := bank(paid)
	defer api.Close()
	client := &idem.Client{BaseURL: api.URL}

	op, err := idem.NewOperation("POST", "/payments", Payment{Amount: 1200, Currency: "RUB"})
	if err != nil {
		fmt.Println(err)
		return
	}
	op.Key = idem.DeriveKey("order", "1042")
	stored, _ := json.Marshal(op) // before it is sent

	// The process may crash here, and another one goes on.
	var again idem.Operation
	_ = json.Unmarshal(stored, &again)
	res, err := idem.Send[Payment](context.Background(), client, again)
	fmt.Println(res.Value.ID, res.Key == op.Key, err)
	// Output: p1 true <nil>
}

func ExampleDeriveKey() {
	fmt.Println(idem.DeriveKey("order", "1042")) // in any process, after any crash
	fmt.Println(idem.DeriveKey("order", "1043"))
	// Output:
	// 820f3509-aefe-84b8-8588-e53113a1b2f0
	// 750bff0b-ac2d-8187-b065-81f4bcac92db
}

func ExampleClient_Do() {
	api := bank(unavailable, paid)
	defer api.Close()
	client := &idem.Client{}

	req, _ := http.NewRequest(http.MethodPost, api.URL+"/payments", strings.NewReader(`{"amount":1200,"currency":"RUB"}`))
	req.Header.Set("Idempotency-Key", "order-1042-pay") // without this line, a new key
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 201 Created
}

func ExampleClient_RoundTripper() {
	api := bank(unavailable, paid)
	defer api.Close()

	client := &idem.Client{}
	sdk := &http.Client{Transport: client.RoundTripper()} // whatever takes an *http.Client
	resp, err := sdk.Post(api.URL+"/payments", "application/json", strings.NewReader(`{"amount":1200,"currency":"RUB"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 201 Created
}

func ExampleOutcomeOf() {
	for _, answer := range []http.HandlerFunc{paid, reused, unavailable} {
		api := bank(answer)
		client := &idem.Client{BaseURL: api.URL, Retry: idem.RetryPolicy{MaxAttempts: 1}}
		_, err := idem.Post[Payment](context.Background(), client, "/payments", Payment{Amount: 1200, Currency: "RUB"})
		api.Close()
		switch idem.OutcomeOf(err) {
		case idem.Done:
			fmt.Println("it happened")
		case idem.Rejected:
			fmt.Println("it did not happen, and will not")
		case idem.NotSent:
			fmt.Println("it did not happen: nobody was reached")
		case idem.Pending:
			fmt.Println("the server is still working on it: send the same operation again, later")
		case idem.Unknown:
			fmt.Println("it may have happened: send the same operation again, with the same key")
		case idem.Expired:
			fmt.Println("it may have happened, and the key is too old: look it up")
		}
	}
	// Output:
	// it happened
	// it did not happen, and will not
	// it may have happened: send the same operation again, with the same key
}

func ExampleConflictError() {
	api := bank(reused)
	defer api.Close()
	_, err := idem.Post[Payment](context.Background(), &idem.Client{BaseURL: api.URL}, "/payments", Payment{Amount: 1200, Currency: "RUB"})
	var conflict *idem.ConflictError
	if errors.As(err, &conflict) {
		fmt.Println(conflict.StatusCode, conflict.Problem.Code)
	}
	// Output: 409 IDEMPOTENCY_KEY_REUSE
}

func ExampleRetryPolicy() {
	client := &idem.Client{
		BaseURL: "https://api.example.com",
		Retry: idem.RetryPolicy{
			MaxAttempts:    3,
			AttemptTimeout: 5 * time.Second,
			MaxElapsed:     idem.NoLimit,
			NewBackOff:     func() backoff.BackOff { return backoff.NewConstantBackOff(time.Second) },
		},
	}
	fmt.Println(client.Retry.MaxAttempts)
	// Output: 3
}

func ExampleTrace() {
	api := bank(unavailable, paid)
	defer api.Close()
	client := &idem.Client{BaseURL: api.URL, Trace: idem.Trace{
		AttemptDone: func(_ context.Context, a idem.Attempt) { fmt.Println("attempt", a.Number, "status", a.Status) },
	}}
	_, err := idem.Post[Payment](context.Background(), client, "/payments", Payment{Amount: 1200, Currency: "RUB"})
	fmt.Println(err)
	// Output:
	// attempt 1 status 503
	// attempt 2 status 201
	// <nil>
}
