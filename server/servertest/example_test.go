package servertest_test

import (
	"testing"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server/servertest"
)

// This is what a test of a program that pays looks like: the payment is made,
// its answer is lost, and in the end there is one payment.
func TestAPaymentWhoseAnswerIsLostHappensOnce(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t)
	s.FaultNext("drop")

	client := &idem.Client{BaseURL: s.URL, Transport: s.Transport, Header: servertest.As("acme")}
	body := map[string]any{"amount": 1200, "currency": "RUB"}
	if _, err := idem.Post[[]byte](t.Context(), client, "/payments", body); err != nil {
		t.Fatal(err)
	}
	if s.Requests() != 2 || s.Executions() != 1 || len(s.Ledger("acme")) != 1 {
		t.Error("the payment did not happen exactly once")
	}
}
