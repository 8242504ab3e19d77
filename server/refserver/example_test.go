package refserver_test

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"

	"github.com/idemhttp/idem/server/refserver"
)

// A Server is an http.Handler. Here the handler fails once, the second attempt
// makes the payment, and the third gets its answer again.
func ExampleNew() {
	api, err := refserver.New(refserver.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	for range 3 {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(`{"amount":1200,"currency":"RUB"}`))
		r.Header.Set("Idempotency-Key", "order-1042")
		r.Header.Set("Authorization", "Bearer demo-acme")
		r.Header.Set("X-Fault", "fail=503")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		fmt.Printf("%d replayed=%t\n", w.Code, w.Header().Get("Idempotent-Replayed") == "true")
	}
	fmt.Printf("%+v\n", api.Counts())
	// Output:
	// 503 replayed=false
	// 201 replayed=false
	// 201 replayed=true
	// {Requests:3 Executions:2 Replays:1}
}
