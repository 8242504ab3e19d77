package dialect_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/dialect"
	"github.com/idemhttp/idem/internal/providertest"
)

// A dialect is all that a client needs to know of a provider.
func Example() {
	client := &idem.Client{
		BaseURL:   "https://api.stripe.com",
		Header:    http.Header{"Authorization": {"Bearer sk_test_123"}},
		Dialect:   dialect.Stripe,
		Transport: providertest.Stripe().Transport(1), // in place of the network
	}
	form := url.Values{"amount": {"1200"}, "currency": {"eur"}}
	res, err := idem.Post[struct{ ID string }](context.Background(), client, "/v1/payment_intents", form)
	fmt.Println(res.Value.ID, "after", res.Attempts, "attempts, replayed:", res.Replayed, err)
	// Output: pi_1 after 2 attempts, replayed: true <nil>
}

// GoCardless does not repeat its answer: it says that the payment exists, and
// under which id.
func Example_exists() {
	client := &idem.Client{
		BaseURL:   "https://api.gocardless.com",
		Dialect:   dialect.GoCardless,
		Transport: providertest.GoCardless().Transport(1),
	}
	res, err := idem.Post[struct{ ID string }](context.Background(), client, "/payments", map[string]any{"amount": 1200})
	fmt.Println(idem.OutcomeOf(err), res.StatusCode)
	// Output: done 409
}

// An API of the same provider that differs in a detail is a copy.
func ExampleAll() {
	dynamo := *dialect.AWS
	dynamo.Name, dynamo.KeyMember, dynamo.MaxKeyLength, dynamo.KeyLifetime = "DynamoDB", "ClientRequestToken", 36, 10*time.Minute
	fmt.Println(len(dialect.All()), "dialects, and", dynamo.Name)
	// Output: 16 dialects, and DynamoDB
}
