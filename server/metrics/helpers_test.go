package metrics_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/metrics"
	"github.com/idemhttp/idem/server/refserver"
	"github.com/idemhttp/idem/server/servertest"
)

var errOutage = errors.New("the store is down")

// flaky is a store some of whose calls fail.
type flaky struct {
	memstore.Store

	mu   sync.Mutex
	errs map[string][]error
}

// fail lets the next calls of "claim", "extend", "complete" or "stats" end with
// one error each.
func (s *flaky) fail(call string, errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.errs == nil {
		s.errs = make(map[string][]error)
	}
	s.errs[call] = errs
}

func (s *flaky) enter(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.errs[call]) == 0 {
		return nil
	}
	err := s.errs[call][0]
	s.errs[call] = s.errs[call][1:]
	return err
}

func (s *flaky) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	if err := s.enter("claim"); err != nil {
		return server.Claim{}, err
	}
	claim, err := s.Store.Claim(ctx, req)
	if claim.Lease != nil {
		claim.Lease = flakyLease{claim.Lease, s}
	}
	return claim, err
}

func (s *flaky) Stats(ctx context.Context) (server.Stats, error) {
	if err := s.enter("stats"); err != nil {
		return server.Stats{}, err
	}
	return s.Store.Stats(ctx)
}

type flakyLease struct {
	server.Lease
	store *flaky
}

func (l flakyLease) Extend(ctx context.Context, d time.Duration) error {
	if err := l.store.enter("extend"); err != nil {
		return err
	}
	return l.Lease.Extend(ctx, d)
}

// Complete releases the lease before it says that nothing is durable.
func (l flakyLease) Complete(ctx context.Context, r server.Response, ttl time.Duration) (server.Record, error) {
	err := l.store.enter("complete")
	if errors.Is(err, server.ErrRestart) {
		return server.Record{}, errors.Join(err, l.Release(ctx, err))
	}
	if err != nil {
		return server.Record{}, err
	}
	return l.Lease.Complete(ctx, r, ttl)
}

// exposition returns what the metrics endpoint answers.
func exposition(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	return w.Body.String()
}

func gather(t *testing.T, c prometheus.Collector) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	return families
}

// family returns the metrics of c that have the given name.
func family(t *testing.T, c prometheus.Collector, name string) *dto.MetricFamily {
	t.Helper()
	for _, family := range gather(t, c) {
		if family.GetName() == name {
			return family
		}
	}
	require.Fail(t, "there is no metric "+name)
	return nil
}

// labelValues returns the values of each label of c.
func labelValues(t *testing.T, c prometheus.Collector) map[string]map[string]bool {
	t.Helper()
	values := make(map[string]map[string]bool)
	for _, family := range gather(t, c) {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if values[label.GetName()] == nil {
					values[label.GetName()] = make(map[string]bool)
				}
				values[label.GetName()][label.GetValue()] = true
			}
		}
	}
	return values
}

// sampleNames returns the names by which Prometheus knows the metrics of c.
func sampleNames(t *testing.T, c prometheus.Collector) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	for _, family := range gather(t, c) {
		names[family.GetName()] = true
		if family.GetType() == dto.MetricType_HISTOGRAM {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				names[family.GetName()+suffix] = true
			}
		}
	}
	return names
}

// shop is the reference server with metrics of its payments, in a bubble of
// virtual time.
type shop struct {
	*servertest.Server

	t       *testing.T
	store   *flaky
	guard   *server.Middleware
	metrics *metrics.Collector
}

func openShop(t *testing.T, configure func(*server.Middleware)) *shop {
	t.Helper()
	s := &shop{t: t, store: new(flaky)}
	s.metrics = metrics.New(metrics.Config{Store: s.store, StoreInterval: -1, Logger: slog.New(slog.DiscardHandler)})
	s.guard = &server.Middleware{Store: s.store, Observe: s.metrics.Observe, Logger: slog.New(slog.DiscardHandler)}
	if configure != nil {
		configure(s.guard)
	}
	s.metrics.Watch(s.guard)
	s.Server = servertest.StartInMemory(t, refserver.Config{Payments: s.guard, Logger: slog.New(slog.DiscardHandler)})
	return s
}

// pay sends a payment and returns the status of the answer, 0 if there is none.
func (s *shop) pay(key, fault string) int { return s.payAmount(1200, key, fault) }

func (s *shop) payAmount(amount int, key, fault string) int {
	body := `{"amount":` + strconv.Itoa(amount) + `,"currency":"RUB"}`
	return s.send(body, http.Header{"X-Account-Id": {"acme"}, "Idempotency-Key": {key}, "X-Fault": {fault}})
}

// send sends a request to pay and returns the status of the answer, 0 if there
// is none. Fields that are "" are left out.
func (s *shop) send(body string, header http.Header) int {
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.URL+"/payments", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	for name := range header {
		if header.Get(name) != "" {
			req.Header[name] = header[name]
		}
	}
	resp, err := (&http.Client{Transport: s.Transport}).Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// begin sends a payment and returns when it is being made, or waits. Its status
// comes on the channel.
func (s *shop) begin(key, fault string) <-chan int {
	status := make(chan int, 1)
	go func() { status <- s.pay(key, fault) }()
	synctest.Wait()
	return status
}

// scrape returns the samples that the endpoint shows, under their names with
// labels; those of POST /payments without these two labels.
func (s *shop) scrape() map[string]float64 {
	samples := make(map[string]float64)
	ours := strings.NewReplacer(`{method="POST",route="/payments"}`, "", `method="POST",`, "", `,route="/payments"`, "")
	for line := range strings.Lines(exposition(s.t, s.metrics)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		require.NoError(s.t, err, line)
		samples[ours.Replace(name)] = number
	}
	return samples
}

// moved returns by how much do moved the samples, to the microsecond. Buckets
// are left out, and what depends on the size of things in memory.
func (s *shop) moved(do func()) map[string]float64 {
	before := s.scrape()
	do()
	moved := make(map[string]float64)
	for name, value := range s.scrape() {
		by := math.Round((value-before[name])*1e6) / 1e6
		if by != 0 && !strings.Contains(name, "_bucket") && name != "idem_store_bytes" {
			moved[name] = by
		}
	}
	return moved
}
