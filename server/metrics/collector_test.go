package metrics_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/metrics"
)

// Whatever clients send, the series stay those of two routes.
func TestClientsCannotMakeSeries(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Store: new(memstore.Store)})
	guard := &server.Middleware{
		Store:    new(memstore.Store),
		Account:  func(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil },
		Optional: true,
		MaxBody:  100,
		Observe:  m.Observe,
	}
	m.Watch(guard)
	mux := http.NewServeMux()
	handler := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(200 + rand.N(300))
	}))
	mux.Handle("/items/{id}", handler)
	mux.Handle("POST api.example.com/orders/{rest...}", handler)

	for range 500 {
		mux.ServeHTTP(httptest.NewRecorder(), randomRequest())
	}
	allowed := map[string]string{
		"method": "POST|PATCH",
		"route":  `/items/\{id\}|api\.example\.com/orders/\{rest\.\.\.\}`,
		"result": "[a-z_]{1,20}",
		"reason": "reused|not_kept|indeterminate|handler",
		"status": "processing|completed|failed",
	}
	series := testutil.CollectAndCount(m)
	for name, values := range labelValues(t, m) {
		for value := range values {
			require.Regexp(t, "^("+allowed[name]+")$", value, name)
		}
	}
	for range 500 {
		mux.ServeHTTP(httptest.NewRecorder(), randomRequest())
	}
	require.Equal(t, series, testutil.CollectAndCount(m))
}

// randomRequest returns a request that chooses at random whatever a client can
// choose.
func randomRequest() *http.Request {
	word := func() string {
		return strings.Map(func(rune) rune { return '!' + rand.N('~'-'!') }, strings.Repeat("x", 1+rand.N(12)))
	}
	oneOf := func(choices ...string) string { return choices[rand.N(len(choices))] }
	token := regexp.MustCompile(`[^A-Za-z]`).ReplaceAllString(word(), "x")
	r := httptest.NewRequest(http.MethodPost, "http://"+oneOf("api.example.com", token+".example.com")+"/", strings.NewReader(strings.Repeat("b", rand.N(120))))
	r.Method = oneOf("POST", "POST", "post", "PATCH", "Patch", "PUT", "GET", token)
	r.URL.Path = oneOf("/items/", "/orders/", "/") + word()
	for _, name := range []string{"Idempotency-Key", "X-Account", "Content-Type", "User-Agent"} {
		if rand.N(10) > 0 {
			r.Header.Set(name, oneOf(word(), "same"))
		}
	}
	return r
}

// The pattern of a request may be set by something else than a ServeMux.
func TestRoutesAreBounded(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{})
	for i := range 1000 {
		m.Observe(t.Context(), server.Event{Method: "POST", Pattern: fmt.Sprint("/items/", i), TakenOver: true})
	}
	takeovers := make(map[string]float64)
	for _, metric := range family(t, m, "idem_takeovers_total").GetMetric() {
		labels := metric.GetLabel()
		takeovers[labels[0].GetValue()+" "+labels[1].GetValue()] = metric.GetCounter().GetValue()
	}
	require.Len(t, takeovers, 251)
	require.InDelta(t, 1, takeovers["POST /items/0"], 0)
	require.InDelta(t, 750, takeovers["other other"], 0)
}

func TestRoutesAreNamedAsTheyAreRegistered(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"":                               "",
		"/payments":                      "/payments",
		"POST /payments":                 "/payments",
		"POST \t /payments/{id}":         "/payments/{id}",
		"POST api.example.com/payments/": "api.example.com/payments/",
		"POST /\xff":                     "/?",
	} {
		m := metrics.New(metrics.Config{})
		m.Observe(t.Context(), server.Event{Result: server.ResultExecuted, Method: "POST", Pattern: pattern})
		require.Equal(t, map[string]bool{want: true}, labelValues(t, m)["route"], pattern)
	}
}

// A series that appears with 1 has never increased, as Prometheus sees it.
func TestEveryResultStartsAtZero(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{})
	m.Observe(t.Context(), server.Event{Result: server.ResultExecuted, Method: "POST"})
	text := exposition(t, m)
	for _, result := range results(t) {
		require.Regexp(t, `idem_requests_total\{method="POST",result="`+result+`",route=""\} [01]\n`, text)
	}
	require.Contains(t, text, `idem_late_completions_total{method="POST",result="recorded",route=""} 0`)
	require.Contains(t, text, `idem_late_completions_total{method="POST",result="unrecorded",route=""} 0`)
	require.Contains(t, text, `idem_conflicts_total{method="POST",reason="handler",route=""} 0`)
	require.Contains(t, text, `idem_takeovers_total{method="POST",route=""} 0`)
	require.Contains(t, text, `idem_wait_duration_seconds_count{method="POST",route=""} 0`)
}

func TestNamesFollowTheConventions(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Store: new(memstore.Store)})
	m.Watch(new(server.Middleware))
	m.Observe(t.Context(), server.Event{Result: server.ResultExecuted})
	problems, err := testutil.CollectAndLint(m)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestHistogramsHaveClassicAndNativeBuckets(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{})
	m.ObserveCleanup(t.Context(), server.CleanupEvent{Took: 300 * time.Millisecond})
	histogram := family(t, m, "idem_cleanup_duration_seconds").GetMetric()[0].GetHistogram()
	require.Len(t, histogram.GetBucket(), 16)
	require.Len(t, histogram.GetPositiveSpan(), 1)
}

func TestMiddlewaresShareACollector(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{})
	require.NotContains(t, exposition(t, m), "idem_waiters", "nobody is asked")
	m.Watch(new(server.Middleware), new(server.Middleware))
	m.Watch(new(server.Middleware))
	require.Contains(t, exposition(t, m), "\nidem_waiters 0\n")
}

func TestCollectorsOfTwoStoresShareARegistry(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	for _, store := range []string{"orders", "payments"} {
		m := metrics.New(metrics.Config{Store: new(memstore.Store)})
		require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"store": store}, registry).Register(m))
		m.Observe(t.Context(), server.Event{Result: server.ResultExecuted, Method: "POST"})
	}
	count, err := testutil.GatherAndCount(registry, "idem_store_bytes")
	require.NoError(t, err)
	require.Equal(t, 2, count)
}

func TestObservingAndScrapingAtOnce(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Config{Store: new(memstore.Store), StoreInterval: -1})
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 500 {
				m.Observe(context.Background(), server.Event{
					Result: server.ResultExecuted, Method: "POST", Pattern: fmt.Sprint("/", (worker+i)%5),
				})
				m.ObserveCleanup(context.Background(), server.CleanupEvent{Deleted: 1})
				if i%50 == 0 {
					m.Watch(new(server.Middleware))
					testutil.CollectAndCount(m)
				}
			}
		})
	}
	all.Wait()
	text := exposition(t, m)
	require.Contains(t, text, `idem_requests_total{method="POST",result="executed",route="/0"} 800`)
	require.Contains(t, text, "idem_cleanup_deleted_total 4000")
}
