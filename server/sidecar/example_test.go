package sidecar_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/sidecar"
)

func Example() {
	payments := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++ // it knows nothing of keys
		fmt.Fprintf(w, "payment %d", payments)
	}))
	defer service.Close()
	upstream, err := url.Parse(service.URL)
	if err != nil {
		panic(err)
	}
	proxy, err := sidecar.New(sidecar.Config{
		Upstream: upstream,
		Middleware: &server.Middleware{
			Store:    new(memstore.Store),
			Account:  sidecar.AccountFromField("X-Account-Id"),
			Optional: true,
		},
	})
	if err != nil {
		panic(err)
	}
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1200}`))
		r.Header.Set("X-Account-Id", "acme") // by the gateway that has authenticated the client
		r.Header.Set("Idempotency-Key", "2c9a1e9b")
		w := httptest.NewRecorder()
		proxy.ServeHTTP(w, r)
		fmt.Println(w.Body, w.Header()["Idempotent-Replayed"])
	}
	// Output:
	// payment 1 []
	// payment 1 [true]
}
