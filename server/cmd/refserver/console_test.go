package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// scrape returns the samples that are not zero, without the labels of method and
// route.
func scrape(t *testing.T, p *program) map[string]float64 {
	t.Helper()
	got := get(p.adminURL + "/metrics")
	require.Equal(t, http.StatusOK, got.status)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(got.body))
	require.NoError(t, err)
	samples := make(map[string]float64)
	for name, family := range families {
		for _, m := range family.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				if l.GetName() != "method" && l.GetName() != "route" {
					labels += "{" + l.GetName() + "=" + l.GetValue() + "}"
				}
			}
			samples[name+labels] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	maps.DeleteFunc(samples, func(_ string, value float64) bool { return value == 0 })
	return samples
}

// troubled is a store that has trouble with some keys.
type troubled struct{ *memstore.Store }

func (s troubled) Claim(ctx context.Context, req server.ClaimRequest) (server.Claim, error) {
	if req.ID.Key == "unavailable" {
		return server.Claim{}, errors.New("the store is down")
	}
	claim, err := s.Store.Claim(ctx, req)
	if claim.Lease != nil && req.ID.Key == "slipping" {
		claim.Lease = slipping{claim.Lease}
	}
	return claim, err
}

// slipping is a lease that is lost while its owner works.
type slipping struct{ server.Lease }

func (slipping) Extend(context.Context, time.Duration) error { return server.ErrLeaseLost }

// leaves leaves the record of an attempt whose owner was lost, and which expires
// after ttl. It waits until that is so, or the owner is lost, if ttl is long.
func (s troubled) leaves(t *testing.T, key string, ttl time.Duration) {
	t.Helper()
	id := server.ID{Account: "acme", Key: key}
	_, err := s.Claim(t.Context(), server.ClaimRequest{ID: id, Lease: time.Millisecond, TTL: ttl})
	require.NoError(t, err)
	s.eventually(t, key, func(e server.Entry) bool { return e.Lost() && (e.Expired() || ttl > time.Second) })
}

func (s troubled) eventually(t *testing.T, key string, is func(server.Entry) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		e, err := s.Inspect(t.Context(), server.ID{Account: "acme", Key: key})
		return err == nil && is(e)
	}, 10*time.Second, time.Millisecond)
}

func TestTheStoriesOfTheQuickstartMoveTheMetrics(t *testing.T) {
	t.Parallel()
	b := openMemory(quiet)
	memory, ok := b.payments.(*memstore.Store)
	require.True(t, ok)
	s := troubled{memory}
	b.payments = s
	s.leaves(t, "expired", time.Millisecond)
	p := startProgram(t, b, "-admin-addr=127.0.0.1:0", "-wait=2s", "-lease=3s")
	s.eventually(t, "expired", func(e server.Entry) bool { return e.Status == 0 }) // deleted by the first batch
	s.leaves(t, "expired-late", time.Millisecond)
	s.leaves(t, "taken-over", time.Hour)

	client := &idem.Client{BaseURL: p.url, Header: http.Header{"Authorization": {"Bearer demo-acme"}}}
	pay := func(key, fault string) error {
		op, err := idem.NewOperation("POST", "/payments", json.RawMessage(request))
		require.NoError(t, err)
		op.Key = idem.Key(key)
		op.Header.Set("X-Fault", fault)
		_, err = idem.Send[json.RawMessage](t.Context(), client, op)
		return err
	}
	require.NoError(t, pay("lost", "drop"))
	require.NoError(t, pay("failing", "fail=503, times=2"))
	slow := inFlight(t, p.url, "/payments", "6s") // sends two under one key
	waiting := make(chan int, 1)
	go func() { waiting <- post(p.url, "/payments").status }()
	var running map[string]float64
	require.Eventually(t, func() bool {
		running = scrape(t, p)
		return running["idem_waiters"] == 1
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, http.StatusAccepted, <-waiting)
	for _, refused := range []struct {
		field string
		want  int
	}{
		{"Accept: */*", http.StatusConflict}, // the key of what is in flight, with another body
		{"Idempotency-Key", http.StatusBadRequest},
		{"Idempotency-Key: ", http.StatusBadRequest},
		{"Idempotency-Key: unavailable", http.StatusServiceUnavailable},
		{"X-Account-Id: ", http.StatusUnauthorized},
		{"X-Account-Id: " + strings.Repeat("x", 256), http.StatusBadRequest},
	} {
		require.Equal(t, refused.want, send(http.MethodPost, p.url+"/payments", "{}", refused.field).status, refused.field)
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, send(http.MethodPost, p.url+"/payments", strings.Repeat(" ", 2<<20), "Expect: 100-continue").status)
	require.NoError(t, pay("taken-over", "delay=1ms"))
	require.NoError(t, pay("slipping", "delay=1500ms"))
	require.Equal(t, http.StatusCreated, <-slow)

	for name, want := range map[string]float64{
		"idem_operations_executing":             1,
		"idem_store_records{status=processing}": 3,
		"idem_store_records{status=completed}":  2,
	} {
		require.InDelta(t, want, running[name], 0, name)
	}
	moved := scrape(t, p)
	for name, want := range map[string]float64{
		"idem_requests_total{result=executed}":    5,
		"idem_requests_total{result=replayed}":    1,
		"idem_requests_total{result=failed}":      2,
		"idem_requests_total{result=in_flight}":   2,
		"idem_requests_total{result=reused}":      1,
		"idem_requests_total{result=missing}":     1,
		"idem_requests_total{result=invalid}":     1,
		"idem_requests_total{result=store_error}": 1,
		"idem_requests_total{result=no_account}":  1,
		"idem_requests_total{result=refused}":     1,
		"idem_requests_total{result=too_large}":   1,
		"idem_conflicts_total{reason=reused}":     1,
		"idem_wait_duration_seconds":              2,
		"idem_handler_duration_seconds":           7,
		"idem_leases_lost_total":                  1,
		"idem_takeovers_total":                    1,
		"idem_cleanup_deleted_total":              1,
		"idem_cleanup_duration_seconds":           1,
	} {
		require.InDelta(t, want, moved[name], 0, "%s of %v", name, slices.Sorted(maps.Keys(moved)))
	}
	require.GreaterOrEqual(t, moved["idem_lease_extensions_total"], 2.)
	for _, name := range []string{
		"idem_store_bytes", "idem_store_oldest_processing_seconds", "idem_store_cleanup_lag_seconds", "go_goroutines", "process_open_fds",
	} {
		require.Positive(t, moved[name], name)
	}
}

func TestOperatorsHaveAListenerOfTheirOwn(t *testing.T) {
	t.Parallel()
	p := startProgram(t, openMemory(quiet), "-admin-addr=127.0.0.1:0")
	require.Equal(t, http.StatusCreated, post(p.url, "/payments").status)
	require.Equal(t, http.StatusConflict, send(http.MethodPost, p.url+"/payments", `{"amount":1,"currency":"RUB"}`).status)
	page := get(p.adminURL + "/debug/idempotency?account=acme&key=k-1").body
	require.Contains(t, page, `<span class="status completed">completed</span>`)
	require.Contains(t, page, "<td>reused</td>")
	require.Contains(t, page, "executing here")
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline", "/healthz", "/readyz"} {
		require.Equal(t, http.StatusOK, get(p.adminURL+path).status, path)
	}
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/idempotency"} {
		require.Equal(t, http.StatusNotFound, get(p.url+path).status, path)
	}
	require.Equal(t, http.StatusNotFound, get(p.adminURL+"/ledger").status)
	require.Empty(t, startProgram(t, openMemory(quiet)).adminURL)
}

func TestOperatorsSeeTheProgramStop(t *testing.T) {
	t.Parallel()
	s := &fragile{cleaning: make(chan struct{})}
	s.broken.Store(true)
	p := startProgram(t, backend{
		payments: s,
		cleanup:  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		close:    func() {},
	}, "-admin-addr=127.0.0.1:0")
	require.Equal(t, http.StatusCreated, post(p.url, "/payments").status)
	p.stop()
	require.Eventually(t, func() bool { return post(p.url, "/payments").status == 0 }, 5*time.Second, time.Millisecond)
	require.Equal(t, http.StatusServiceUnavailable, get(p.adminURL+"/readyz").status)
	require.InDelta(t, 1, scrape(t, p)["idem_completions_pending"], 0, "an answer is still to be recorded")
	s.broken.Store(false)
	require.NoError(t, p.wait())
	require.Equal(t, 0, get(p.adminURL+"/readyz").status)
}

func TestHelpNamesTheCommand(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	require.Equal(t, 0, run(t.Context(), []string{"-h"}, &stdout, &stdout))
	require.Contains(t, stdout.String(), "refserver admin -h")
}
