// Package dialect describes how the APIs of payment providers and clouds speak
// about idempotency, as data for [idem.Client.Dialect]:
//
//	client := &idem.Client{BaseURL: "https://api.stripe.com", Dialect: dialect.Stripe}
//
// A dialect says where the key goes and what it may look like, how long it is
// remembered, and which answers mean that an operation is in progress, that it
// has happened before, or that the key belongs to another one.
//
// Each is what its provider documents at the address in its Source. Where that
// is silent, a field is zero, and a 409 is taken for an operation that may have
// happened; where documents differ, the safer is taken. docs/providers.md has,
// for each, what is documented and what is a reading.
//
// Dialects are shared and must not be changed. One for an API that differs is a
// copy:
//
//	dynamo := *dialect.AWS
//	dynamo.KeyMember, dynamo.KeyLifetime = "ClientRequestToken", 10*time.Minute
//	client := &idem.Client{Dialect: &dynamo}
//
// An API that is not here may speak [idem.Standard] or [idem.IETF].
package dialect

import "github.com/idemhttp/idem"

// All returns every dialect of this package, in a new slice.
func All() []*idem.Dialect {
	return []*idem.Dialect{
		Stripe, YooKassa, PayPal, Adyen, Square, GoCardless, CheckoutCom, ModernTreasury, Mollie, Razorpay, RazorpayRefunds,
		AWS, AWSQuery, AWSHeader, GoogleCloud, Azure,
	}
}
