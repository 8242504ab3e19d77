package refserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// currencies maps the known ones to their number of decimal places (ISO 4217).
var currencies = map[string]int{
	"CNY": 2, "EUR": 2, "GBP": 2, "INR": 2, "JPY": 0, "KWD": 3, "RUB": 2, "USD": 2,
}

// request is the body of an order or a payment.
type request struct {
	Amount   json.RawMessage `json:"amount"`
	Currency string          `json:"currency"`
	Items    []Item          `json:"items"`
}

// invalid says what is wrong with a request.
type invalid struct{ code, detail string }

func (e *invalid) Error() string { return e.code + ": " + e.detail }

// readEntry reads a request into an entry without id and account. An *invalid
// is the fault of the client, any other error is not.
func readEntry(body io.Reader) (Entry, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return Entry{}, err
	}
	var r request
	if err := json.Unmarshal(data, &r); err != nil {
		return Entry{}, describe(err)
	}
	places, ok := currencies[r.Currency]
	if !ok {
		return Entry{}, &invalid{"UNKNOWN_CURRENCY", fmt.Sprintf("currency is %q, which is none of those this service knows, such as EUR or RUB", r.Currency)}
	}
	amount, ok := parseAmount(string(r.Amount), places)
	if !ok {
		return Entry{}, &invalid{"INVALID_AMOUNT", fmt.Sprintf("amount must be positive and exact: either an integer of minor units (1200) or a string with %d decimal places", places)}
	}
	for i, item := range r.Items {
		if item.SKU == "" || item.Qty < 1 {
			return Entry{}, &invalid{"INVALID_ITEM", fmt.Sprintf("items[%d] needs a sku and a qty of at least 1", i)}
		}
	}
	return Entry{Amount: amount, Currency: r.Currency, Items: r.Items}, nil
}

// describe turns an error of encoding/json into one for the client.
func describe(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && wrongType.Field != "" {
		return &invalid{"INVALID_TYPE", fmt.Sprintf("%s cannot be a JSON %s", wrongType.Field, wrongType.Value)}
	}
	if wrongType != nil {
		return &invalid{"INVALID_TYPE", "the body must be a JSON object"}
	}
	return &invalid{"INVALID_JSON", "the body is not JSON: " + err.Error()}
}

// parseAmount returns the minor units of an amount as it is spelled in JSON:
// a bare integer has them already, a string has exactly as many decimal places
// as the currency, so that neither can be taken for the other. Nothing goes
// through a float.
func parseAmount(spelled string, places int) (int64, bool) {
	if digits, quoted := strings.CutPrefix(spelled, `"`); quoted {
		whole, fraction, point := strings.Cut(strings.TrimSuffix(digits, `"`), ".")
		if whole == "" || len(fraction) != places || point != (places > 0) {
			return 0, false
		}
		spelled = whole + fraction
	}
	if spelled == "" || strings.Trim(spelled, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(spelled, 10, 64)
	return n, err == nil && n > 0
}
