package metrics_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/metrics"
)

// A payment is sent twice under one key.
func Example() {
	store := new(memstore.Store)
	m := metrics.New(metrics.Config{Store: store})
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)

	guard := &server.Middleware{
		Store:   store,
		Account: func(*http.Request) (string, error) { return "acme", nil },
		Observe: m.Observe,
	}
	m.Watch(guard)
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	})))

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1200}`))
		r.Header.Set("Idempotency-Key", "2c9a1e9b")
		mux.ServeHTTP(httptest.NewRecorder(), r)
	}

	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "idem_") && strings.HasSuffix(line, " 1\n") && !strings.Contains(line, "_bucket") {
			fmt.Print(line)
		}
	}
	// Output:
	// idem_handler_duration_seconds_count{method="POST",route="/payments"} 1
	// idem_requests_total{method="POST",result="executed",route="/payments"} 1
	// idem_requests_total{method="POST",result="replayed",route="/payments"} 1
	// idem_store_records{status="completed"} 1
}
