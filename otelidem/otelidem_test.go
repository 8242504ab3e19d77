package otelidem_test

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/otelidem"
)

// observed is a client whose spans and metrics a test can read.
type observed struct {
	*idem.Client
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

func observe(t *testing.T, url string) observed {
	t.Helper()
	o := observed{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	hooks, err := otelidem.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(o.spans)),
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(o.reader)),
	}.Trace()
	require.NoError(t, err)
	o.Client = &idem.Client{BaseURL: url, Trace: hooks, Header: http.Header{"Authorization": {"Bearer sk_7"}}}
	return o
}

// answering serves the statuses in turn, the last one for ever.
func answering(t *testing.T, statuses ...int) *httptest.Server {
	t.Helper()
	var n atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Traceparent", r.Header.Get("Traceparent"))
		w.WriteHeader(statuses[min(int(n.Add(1)), len(statuses))-1])
	}))
	t.Cleanup(srv.Close)
	return srv
}

func attributes(span sdktrace.ReadOnlySpan) map[string]string {
	m := map[string]string{}
	for _, a := range span.Attributes() {
		m[string(a.Key)] = a.Value.Emit()
	}
	return m
}

func TestOperationIsASpanAndEachAttemptAChildOfIt(t *testing.T) {
	t.Parallel()
	srv := answering(t, 503, 201)
	o := observe(t, srv.URL)
	op := idem.Operation{Key: "2c9a1e9b-4b9e-4d6e-9e67-6e3b2e7c1e32", Method: "POST", URL: "/payments?token=tok_live_9"}
	_, err := idem.Send[string](t.Context(), o.Client, op)
	require.NoError(t, err)

	spans := o.spans.Ended()
	require.Len(t, spans, 3)
	first, second, operation := spans[0], spans[1], spans[2]
	host, port, _ := strings.Cut(strings.TrimPrefix(srv.URL, "http://"), ":")
	common := func(more map[string]string) map[string]string {
		m := map[string]string{"http.request.method": "POST", "server.address": host, "server.port": port}
		maps.Copy(m, more)
		return m
	}
	require.Equal(t, "idem POST", operation.Name())
	require.Equal(t, common(map[string]string{"idem.idempotency_key": "2c9a1e9b...", "idem.outcome": "done"}), attributes(operation))
	require.Equal(t, codes.Unset, operation.Status().Code)
	require.Len(t, operation.Events(), 1)
	require.Equal(t, "wait", operation.Events()[0].Name)

	for _, attempt := range []sdktrace.ReadOnlySpan{first, second} {
		require.Equal(t, "POST", attempt.Name())
		require.Equal(t, trace.SpanKindClient, attempt.SpanKind())
		require.Equal(t, operation.SpanContext().SpanID(), attempt.Parent().SpanID())
	}
	require.Equal(t, common(map[string]string{
		"url.full": srv.URL + "/payments", "http.response.status_code": "503", "error.type": "503", "idem.sends": "1", "idem.replayed": "false",
	}), attributes(first))
	require.Equal(t, codes.Error, first.Status().Code)
	require.Equal(t, common(map[string]string{
		"url.full": srv.URL + "/payments", "http.response.status_code": "201", "http.request.resend_count": "1", "idem.sends": "1", "idem.replayed": "false",
	}), attributes(second))
}

func TestOperationThatIsGivenUpSaysWhy(t *testing.T) {
	t.Parallel()
	srv := answering(t, 503)
	o := observe(t, srv.URL)
	o.Retry.MaxAttempts = 1
	_, err := idem.Post[string](t.Context(), o.Client, "/", nil)
	require.Error(t, err)
	operation := o.spans.Ended()[1]
	require.Equal(t, "unknown", attributes(operation)["idem.outcome"])
	require.Equal(t, string(idem.ReasonAttempts), attributes(operation)["idem.reason"])
	require.Equal(t, codes.Error, operation.Status().Code)
}

func TestAttemptWithoutAnAnswerHasAKindOfError(t *testing.T) {
	t.Parallel()
	srv := answering(t, 201)
	srv.Close()
	o := observe(t, srv.URL)
	o.Retry.MaxAttempts = 1
	_, err := idem.Post[string](t.Context(), o.Client, "/?token=tok_live_9", nil)
	require.Equal(t, idem.NotSent, idem.OutcomeOf(err))
	attempt := o.spans.Ended()[0]
	require.Equal(t, "connection", attributes(attempt)["error.type"])
	require.Contains(t, attempt.Status().Description, "connection refused")
	require.NotContains(t, attempt.Status().Description, "tok_live_9")
}

func TestMetricsCountAttemptsWaitsAndOutcomes(t *testing.T) {
	t.Parallel()
	srv := answering(t, 503, 503, 201)
	o := observe(t, srv.URL)
	_, err := idem.Post[string](t.Context(), o.Client, "/payments", nil)
	require.NoError(t, err)

	var collected metricdata.ResourceMetrics
	require.NoError(t, o.reader.Collect(t.Context(), &collected))
	counts := map[string]uint64{}
	sums := map[string]int64{}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			for _, point := range data.DataPoints {
				counts[m.Name+" "+label(point.Attributes)] += point.Count
			}
		case metricdata.Histogram[int64]:
			for _, point := range data.DataPoints {
				sums[m.Name+" "+label(point.Attributes)] += point.Sum
			}
		}
	}
	require.Equal(t, map[string]uint64{
		otelidem.OperationDuration + " done": 1,
		otelidem.AttemptDuration + " 503":    2,
		otelidem.AttemptDuration + " 201":    1,
		otelidem.WaitDuration + " ":          2,
	}, counts)
	require.Equal(t, map[string]int64{otelidem.Attempts + " done": 3}, sums)
}

// label is the outcome or the status of a set of attributes.
func label(set attribute.Set) string {
	if v, ok := set.Value("idem.outcome"); ok {
		return v.AsString()
	}
	if v, ok := set.Value("http.response.status_code"); ok {
		return strconv.FormatInt(v.AsInt64(), 10)
	}
	return ""
}

func TestTransportTellsTheServerWhichAttemptItIs(t *testing.T) {
	otel.SetTextMapPropagator(propagation.TraceContext{})
	srv := answering(t, 201)
	o := observe(t, srv.URL)
	o.Transport = otelidem.Transport(nil)
	result, err := idem.Post[string](t.Context(), o.Client, "/payments", nil)
	require.NoError(t, err)
	attempt := o.spans.Ended()[0].SpanContext()
	require.Equal(t, "00-"+attempt.TraceID().String()+"-"+attempt.SpanID().String()+"-01", result.Header.Get("X-Traceparent"))
}

func TestZeroConfigUsesTheGlobalProviders(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	hooks, err := otelidem.Config{}.Trace()
	require.NoError(t, err)
	srv := answering(t, 201)
	_, err = idem.Post[string](context.Background(), &idem.Client{BaseURL: srv.URL, Trace: hooks}, "/", nil)
	require.NoError(t, err)
	require.Len(t, spans.Ended(), 2)
}
