package main

import (
	"bytes"
	"context"
	"encoding/json"
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

func TestTheStoriesOfTheQuickstartMoveTheMetrics(t *testing.T) {
	t.Parallel()
	p := startProgram(t, openMemory(quiet), "-admin-addr=127.0.0.1:0", "-wait=100ms", "-lease=3s")
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
	slow := inFlight(t, p.url, "/payments", "2500ms") // sends two under one key
	require.Equal(t, http.StatusConflict, send(http.MethodPost, p.url+"/payments", `{"amount":1,"currency":"RUB"}`).status)
	running := scrape(t, p)
	require.Equal(t, http.StatusCreated, <-slow)
	require.Equal(t, http.StatusBadRequest, post(p.url, "/payments", "Idempotency-Key: ").status)
	require.Equal(t, http.StatusUnauthorized, post(p.url, "/payments", "X-Account-Id: ").status)
	require.Equal(t, http.StatusRequestEntityTooLarge, send(http.MethodPost, p.url+"/payments", strings.Repeat(" ", 2<<20), "Expect: 100-continue").status)

	require.InDelta(t, 1, running["idem_operations_executing"], 0)
	moved := scrape(t, p)
	for name, want := range map[string]float64{
		"idem_requests_total{result=executed}":   3,
		"idem_requests_total{result=replayed}":   1,
		"idem_requests_total{result=failed}":     2,
		"idem_requests_total{result=in_flight}":  1,
		"idem_requests_total{result=reused}":     1,
		"idem_requests_total{result=invalid}":    1,
		"idem_requests_total{result=no_account}": 1,
		"idem_requests_total{result=too_large}":  1,
		"idem_conflicts_total{reason=reused}":    1,
		"idem_wait_duration_seconds":             1,
		"idem_handler_duration_seconds":          5,
		"idem_cleanup_duration_seconds":          1,
	} {
		require.InDelta(t, want, moved[name], 0, "%s of %v", name, slices.Sorted(maps.Keys(moved)))
	}
	require.GreaterOrEqual(t, moved["idem_lease_extensions_total"], 2.)
	for _, name := range []string{"idem_store_records{status=completed}", "idem_store_bytes", "go_goroutines", "process_open_fds"} {
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
