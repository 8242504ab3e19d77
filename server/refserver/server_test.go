package refserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/refserver"
)

const (
	key  = "2c9a1e9b-4b9e-4d6e-9e67-6e3b2e7c1e32"
	seed = `{"items":[{"sku":"SKU-1","qty":2}],"amount":1200,"currency":"RUB"}`
)

func TestTheSeedRequestCreatesOneOrderHoweverOftenItIsSent(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{})

	first := api.post("/orders", seed)
	require.Equal(t, http.StatusCreated, first.status, first.body)
	var order refserver.Entry
	require.NoError(t, json.Unmarshal([]byte(first.body), &order))
	require.NotEmpty(t, order.OrderID)
	require.Equal(t, refserver.Entry{
		OrderID: order.OrderID, AccountID: "acme", Amount: 1200, Currency: "RUB",
		Items: []refserver.Item{{SKU: "SKU-1", Qty: 2}}, Status: "created",
	}, order)
	require.Equal(t, "/orders/"+order.OrderID, first.header.Get("Location"))
	require.Equal(t, key, first.header.Get("Idempotency-Key"))
	require.Empty(t, first.header.Get("Idempotent-Replayed"))

	again := api.post("/orders", seed)
	require.Equal(t, http.StatusCreated, again.status)
	require.Equal(t, first.body, again.body)
	require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))

	other := api.post("/orders", strings.Replace(seed, "1200", "1300", 1))
	require.Equal(t, http.StatusConflict, other.status)
	require.Equal(t, "IDEMPOTENCY_KEY_REUSE", other.code())

	foreign := api.post("/orders", seed, "X-Account-Id: globex")
	require.Equal(t, http.StatusCreated, foreign.status)
	require.NotEqual(t, first.body, foreign.body)

	var sent sync.WaitGroup
	for range 20 {
		sent.Go(func() {
			if got := api.post("/orders", seed); got.body != first.body {
				t.Errorf("a concurrent duplicate got %d %s", got.status, got.body)
			}
		})
	}
	sent.Wait()
	require.Equal(t, refserver.Counts{Requests: 24, Executions: 2, Replays: 21}, api.Counts())
	require.Len(t, api.ledger("acme"), 1)
	require.Len(t, api.ledger("globex"), 1)
}

func TestConcurrentDuplicatesOfOnePaymentChargeOnce(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{})
	answers := make(chan answer, 20)
	for range 20 {
		go func() { answers <- api.post("/payments", seed) }()
	}
	bodies := make(map[string]int)
	for range 20 {
		got := <-answers
		require.Equal(t, http.StatusCreated, got.status)
		bodies[got.body]++
	}
	require.Len(t, bodies, 1)
	require.Len(t, api.ledger("acme"), 1)
	require.Equal(t, 1, api.Counts().Executions)
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body, code, detail string
	}{
		{"no JSON", `{"amount":`, "INVALID_JSON", "unexpected end"},
		{"more than JSON", `{"amount":1,"currency":"RUB"} x`, "INVALID_JSON", "after top-level value"},
		{"no object", `[]`, "INVALID_TYPE", "must be a JSON object"},
		{"no currency", `{"amount":1}`, "UNKNOWN_CURRENCY", `currency is ""`},
		{"unknown currency", `{"amount":1,"currency":"rub"}`, "UNKNOWN_CURRENCY", `currency is "rub"`},
		{"currency is a number", `{"amount":1,"currency":643}`, "INVALID_TYPE", "currency cannot be a JSON number"},
		{"no amount", `{"currency":"RUB"}`, "INVALID_AMOUNT", "with 2 decimal places"},
		{"amount is null", `{"amount":null,"currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"amount is a bool", `{"amount":true,"currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"amount is zero", `{"amount":0,"currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"amount is negative", `{"amount":-1,"currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"amount is a fraction", `{"amount":12.00,"currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"amount has an exponent", `{"amount":1e3,"currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"amount is beyond int64", `{"amount":9223372036854775808,"currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"decimal without places", `{"amount":"12","currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"decimal with too many", `{"amount":"12.000","currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"decimal with a sign", `{"amount":"-1.00","currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"decimal with a bare point", `{"amount":"12.","currency":"JPY"}`, "INVALID_AMOUNT", "with 0 decimal places"},
		{"empty decimal", `{"amount":"","currency":"RUB"}`, "INVALID_AMOUNT", ""},
		{"item without sku", `{"amount":1,"currency":"RUB","items":[{"qty":1}]}`, "INVALID_ITEM", "items[0]"},
		{"item without qty", `{"amount":1,"currency":"RUB","items":[{"sku":"a","qty":1},{"sku":"b"}]}`, "INVALID_ITEM", "items[1]"},
		{"qty is a string", `{"amount":1,"currency":"RUB","items":[{"sku":"a","qty":"1"}]}`, "INVALID_TYPE", "qty cannot be a JSON string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			api := start(t, refserver.Config{})
			got := api.post("/orders", tt.body)
			require.Equal(t, http.StatusBadRequest, got.status)
			require.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
			require.Equal(t, tt.code, got.code(), got.body)
			require.Contains(t, got.detail(), tt.detail)
			require.Empty(t, api.ledger("acme"))
		})
	}
}

func TestAmountsAreExact(t *testing.T) {
	t.Parallel()
	tests := []struct {
		amount, currency string
		want             int64
	}{
		{`1`, "RUB", 1},
		{`9007199254740993`, "RUB", 9007199254740993},
		{`9223372036854775807`, "RUB", 9223372036854775807},
		{`"12.34"`, "RUB", 1234},
		{`"0.01"`, "EUR", 1},
		{`"1234"`, "JPY", 1234},
		{`"90071992547409.93"`, "USD", 9007199254740993},
		{`"1.005"`, "KWD", 1005},
	}
	for _, tt := range tests {
		t.Run(tt.amount+" "+tt.currency, func(t *testing.T) {
			t.Parallel()
			api := start(t, refserver.Config{})
			got := api.post("/payments", `{"amount":`+tt.amount+`,"currency":"`+tt.currency+`"}`)
			require.Equal(t, http.StatusCreated, got.status, got.body)
			entries := api.ledger("acme")
			require.Len(t, entries, 1)
			require.Equal(t, tt.want, entries[0].Amount)
		})
	}
}

func TestEntriesAreFoundByTheirOwnAccountOnly(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{})
	order, payment := api.post("/orders", seed), api.post("/payments", seed, "Idempotency-Key: other")

	for _, created := range []answer{order, payment} {
		path := created.header.Get("Location")
		got := api.get(path)
		require.Equal(t, http.StatusOK, got.status)
		require.JSONEq(t, created.body, got.body)

		foreign := api.get(path, "Authorization: Bearer demo-globex")
		require.Equal(t, http.StatusNotFound, foreign.status)
		require.Equal(t, "NOT_FOUND", foreign.code())
	}
	misplaced := strings.Replace(payment.header.Get("Location"), "payments", "orders", 1)
	require.Equal(t, http.StatusNotFound, api.get(misplaced).status)
}

func TestTheStockNeverFallsBelowZero(t *testing.T) {
	t.Parallel()
	order := func(items string) string { return `{"amount":1,"currency":"RUB","items":[` + items + `]}` }
	api := start(t, refserver.Config{})
	tests := []struct {
		items  string
		status int
	}{
		{`{"sku":"SKU-RARE","qty":11}`, 422},
		{`{"sku":"SKU-RARE","qty":5},{"sku":"SKU-RARE","qty":6}`, 422},
		{`{"sku":"SKU-RARE","qty":5},{"sku":"SKU-NONE","qty":1}`, 422},
		{`{"sku":"SKU-RARE","qty":4},{"sku":"SKU-RARE","qty":4}`, 201},
		{`{"sku":"SKU-RARE","qty":3}`, 422},
		{`{"sku":"SKU-RARE","qty":2},{"sku":"made to order","qty":9223372036854775807}`, 201},
		{`{"sku":"SKU-RARE","qty":1}`, 422},
	}
	for i, tt := range tests {
		for range 2 { // the second is a replay
			got := api.post("/orders", order(tt.items), fmt.Sprintf("Idempotency-Key: %d", i))
			require.Equal(t, tt.status, got.status, tt.items)
			if tt.status == 422 {
				require.Equal(t, "OUT_OF_STOCK", got.code())
			}
		}
	}
	require.Len(t, api.ledger("acme"), 2)
	require.Equal(t, len(tests), api.Counts().Replays)
	paid := api.post("/payments", order(`{"sku":"SKU-NONE","qty":1}`), "Idempotency-Key: paid")
	require.Equal(t, http.StatusCreated, paid.status, "only orders take from the stock")
}

func TestTheLedgerListsEntriesWithTotals(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{})
	require.JSONEq(t, `{"account_id":"acme","entries":[],"totals":{"orders":{},"payments":{}}}`, api.get("/ledger").body)

	const most = `{"amount":9223372036854775807,"currency":"RUB"}`
	api.post("/payments", most, "Idempotency-Key: a")
	api.post("/payments", most, "Idempotency-Key: b")
	api.post("/payments", `{"amount":5,"currency":"EUR"}`, "Idempotency-Key: c")
	api.post("/orders", seed, "Idempotency-Key: d")
	got := api.get("/ledger")
	require.Equal(t, http.StatusOK, got.status)
	var ledger struct {
		Entries []refserver.Entry `json:"entries"`
		Totals  json.RawMessage   `json:"totals"`
	}
	require.NoError(t, json.Unmarshal([]byte(got.body), &ledger))
	require.Len(t, ledger.Entries, 4)
	require.Equal(t, `{"orders":{"RUB":{"count":1,"amount":1200}},`+ //nolint:testifylint // JSONEq would compare as floats
		`"payments":{"EUR":{"count":1,"amount":5},"RUB":{"count":2,"amount":18446744073709551614}}}`, string(ledger.Totals))
}

func TestAccountsOfTheDemo(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		fields  []string
		account string // "" is refused
	}{
		{"token", []string{"Authorization: Bearer demo-acme"}, "acme"},
		{"scheme in lower case", []string{"Authorization: bearer demo-globex"}, "globex"},
		{"field", []string{"X-Account-Id: initech"}, "initech"},
		{"token against field", []string{"Authorization: Bearer demo-acme", "X-Account-Id: globex"}, "acme"},
		{"unknown token against field", []string{"Authorization: Bearer nope", "X-Account-Id: globex"}, ""},
		{"other scheme", []string{"Authorization: Basic demo-acme"}, ""},
		{"nothing", []string{"X-Account-Id:"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			api := start(t, refserver.Config{})
			wantPost, wantGet := http.StatusCreated, http.StatusOK
			if tt.account == "" {
				wantPost, wantGet = http.StatusUnauthorized, http.StatusUnauthorized
			}
			require.Equal(t, wantPost, api.post("/orders", seed, tt.fields...).status)
			require.Equal(t, wantGet, api.get("/ledger", tt.fields...).status)
			if tt.account != "" {
				require.Len(t, api.ledger(tt.account), 1)
			}
		})
	}
}

func TestWhatIsUnavailableMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	tests := map[string]refserver.Config{
		"accounts": {Payments: &server.Middleware{Account: func(*http.Request) (string, error) { return "", down }}},
		"ledger":   {Ledger: broken{down}},
	}
	requireUnavailable := func(t *testing.T, got answer) {
		t.Helper()
		require.Equal(t, http.StatusServiceUnavailable, got.status)
		require.Equal(t, "1", got.header.Get("Retry-After"))
	}
	for name, config := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := start(t, config)
			requireUnavailable(t, api.get("/ledger"))
			requireUnavailable(t, api.get("/orders/1"))
			requireUnavailable(t, api.post("/orders", seed))
		})
	}
	api := start(t, refserver.Config{Provider: broken{down}})
	got := api.post("/payments", seed)
	requireUnavailable(t, got)
	require.Equal(t, "UNAVAILABLE", got.code())
	require.Empty(t, api.ledger("acme"))
}

// broken is a ledger and a provider that fail.
type broken struct{ err error }

func (b broken) Add(context.Context, refserver.Entry) error { return b.err }

func (b broken) List(context.Context, string) ([]refserver.Entry, error) { return nil, b.err }

func (b broken) Find(context.Context, string, string) (refserver.Entry, bool, error) {
	return refserver.Entry{}, false, b.err
}

func (b broken) Charge(context.Context, string, refserver.Entry) (string, error) { return "", b.err }

func TestHealthAndReadiness(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{})
	require.Equal(t, http.StatusOK, api.get("/healthz").status)
	require.Equal(t, http.StatusOK, api.get("/readyz").status)
	api.SetReady(false)
	require.Equal(t, http.StatusOK, api.get("/healthz").status)
	got := api.get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, got.status)
	require.JSONEq(t, `{"status":"stopping"}`, got.body)
	api.SetReady(true)
	require.Equal(t, http.StatusOK, api.get("/readyz").status)
}

func TestReadinessDependsOnHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		health := errors.New("the database is away")
		api := startInMemory(t, refserver.Config{Health: func(ctx context.Context) error {
			if health == nil {
				<-ctx.Done() // it hangs
				return ctx.Err()
			}
			return health
		}})
		got := api.get("/readyz")
		require.Equal(t, http.StatusServiceUnavailable, got.status)
		require.JSONEq(t, `{"status":"unavailable"}`, got.body)
		require.Equal(t, http.StatusOK, api.get("/healthz").status)

		health = nil
		begin := time.Now()
		require.Equal(t, http.StatusServiceUnavailable, api.get("/readyz").status)
		require.Equal(t, 2*time.Second, time.Since(begin))
	})
	api := start(t, refserver.Config{Health: func(context.Context) error { return nil }})
	require.JSONEq(t, `{"status":"ready"}`, api.get("/readyz").body)
}

func TestWhatHasNoRouteIsAnsweredWithAProblem(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{})
	tests := []struct {
		method, path string
		status       int
		code, allow  string
	}{
		{"GET", "/", 404, "NOT_FOUND", ""},
		{"POST", "/refunds", 404, "NOT_FOUND", ""},
		{"GET", "/orders", 405, "METHOD_NOT_ALLOWED", "POST"},
		{"DELETE", "/payments/1", 405, "METHOD_NOT_ALLOWED", "GET, HEAD"},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			t.Parallel()
			got, err := api.try(tt.method, tt.path, "")
			require.NoError(t, err)
			require.Equal(t, tt.status, got.status)
			require.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
			require.Equal(t, tt.code, got.code())
			require.Equal(t, tt.allow, got.header.Get("Allow"))
		})
	}
	moved, err := api.try("GET", "/nowhere//near", "")
	require.NoError(t, err)
	require.Equal(t, "/nowhere/near", moved.header.Get("Location"), "the path is cleaned first")
}

func TestAMisconfiguredMiddlewareIsRefused(t *testing.T) {
	t.Parallel()
	_, err := refserver.New(refserver.Config{Payments: &server.Middleware{Wait: -1}})
	var wrong *server.ConfigError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "Wait", wrong.Field)
}

func TestRoutesMayHaveMiddlewaresOfTheirOwn(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []string
	observing := func(name string) *server.Middleware {
		return &server.Middleware{Observe: func(_ context.Context, e server.Event) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, name+" "+string(e.Result))
		}}
	}
	api := start(t, refserver.Config{Orders: observing("orders"), Payments: observing("payments")})
	api.post("/orders", seed)
	api.post("/payments", seed)
	api.post("/payments", seed)
	require.NoError(t, api.Drain(t.Context()))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"orders executed", "payments executed", "payments replayed"}, seen)
}

func TestWithoutAKeyNothingIsGuarded(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{Payments: &server.Middleware{Optional: true}})
	for range 2 {
		require.Equal(t, http.StatusCreated, api.post("/payments", seed, "Idempotency-Key:").status)
	}
	require.Len(t, api.ledger("acme"), 2)
	require.Equal(t, http.StatusUnauthorized, api.post("/payments", seed, "Idempotency-Key:", "X-Account-Id:").status)
}

func TestTheAccessLogSaysWhatBecameOfARequest(t *testing.T) {
	t.Parallel()
	var log logBuffer
	api := start(t, refserver.Config{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	api.post("/orders", seed)
	api.post("/orders", seed)
	_, err := api.try("POST", "/orders", seed, "X-Fault: drop", "Idempotency-Key: short")
	require.Error(t, err)
	api.get("/ledger?token=secret")

	type record struct {
		Method  string `json:"method"`
		Path    string `json:"path"`
		Outcome string `json:"outcome"`
		Status  int    `json:"status"`
		Dropped bool   `json:"dropped"`
		Account string `json:"account"`
		Key     string `json:"idempotency_key"`
	}
	want := []record{
		{"POST", "/orders", "executed", 201, false, "acme", "2c9a1e9b..."},
		{"POST", "/orders", "replayed", 201, false, "acme", "2c9a1e9b..."},
		{"POST", "/orders", "executed", 0, true, "acme", "sh..."},
		{"GET", "/ledger", "", 200, false, "", ""},
	}
	require.Eventually(t, func() bool { return len(log.lines()) == len(want) }, 5*time.Second, time.Millisecond)
	var got []record
	for _, line := range log.lines() {
		var r record
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		got = append(got, r)
	}
	require.ElementsMatch(t, want, got)
}
