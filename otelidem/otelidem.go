// Package otelidem traces and measures the operations of an idem client with
// OpenTelemetry. Each operation is a span, each attempt of it a child span that
// follows the semantic conventions for HTTP clients.
//
//	trace, err := otelidem.Config{}.Trace()
//	client := &idem.Client{Trace: trace, Transport: otelidem.Transport(nil)}
//
// Spans carry the beginning of the idempotency key, as logs do; neither they nor
// metrics carry queries, credentials or bodies.
package otelidem

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/idemhttp/idem"
)

// scope names the instrumentation.
const scope = "github.com/idemhttp/idem/otelidem"

// The metrics, all of them histograms.
const (
	// OperationDuration is how long operations took, in seconds, by method,
	// server and outcome.
	OperationDuration = "idem.client.operation.duration"
	// AttemptDuration is how long attempts took, in seconds, by method, server,
	// status and kind of error.
	AttemptDuration = "idem.client.attempt.duration"
	// WaitDuration is how long operations waited between attempts, in seconds,
	// by method and server.
	WaitDuration = "idem.client.wait.duration"
	// Attempts is how often operations were sent, by method, server and outcome.
	Attempts = "idem.client.operation.attempts"
)

// Attributes of our own.
const (
	keyAttribute     = attribute.Key("idem.idempotency_key")
	outcomeAttribute = attribute.Key("idem.outcome")
	replayAttribute  = attribute.Key("idem.replayed")
	sendsAttribute   = attribute.Key("idem.sends")
	reasonAttribute  = attribute.Key("idem.reason")
)

// Config says where traces and metrics go. The zero value uses the global
// providers.
type Config struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
}

// Trace returns hooks for [idem.Client.Trace]. The error is of the meter
// provider.
func (c Config) Trace() (idem.Trace, error) {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	h := &hooks{tracer: c.TracerProvider.Tracer(scope)}
	if err := h.instruments(c.MeterProvider.Meter(scope)); err != nil {
		return idem.Trace{}, err
	}
	return idem.Trace{
		OperationStart: h.operationStart, AttemptStart: h.attemptStart, AttemptDone: h.attemptDone,
		Waiting: h.waiting, OperationDone: h.operationDone,
	}, nil
}

type hooks struct {
	tracer                       trace.Tracer
	operations, attempts, pauses metric.Float64Histogram
	sends                        metric.Int64Histogram
}

func (h *hooks) instruments(meter metric.Meter) error {
	seconds := func(name, description string) (metric.Float64Histogram, error) {
		return meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300))
	}
	var errs [4]error
	h.operations, errs[0] = seconds(OperationDuration, "Duration of operations, all attempts and waits included.")
	h.attempts, errs[1] = seconds(AttemptDuration, "Duration of single attempts.")
	h.pauses, errs[2] = seconds(WaitDuration, "Duration of the waits between attempts.")
	h.sends, errs[3] = meter.Int64Histogram(Attempts, metric.WithUnit("{attempt}"),
		metric.WithDescription("Number of attempts of operations."), metric.WithExplicitBucketBoundaries(1, 2, 3, 5, 10, 20, 50, 100))
	return errors.Join(errs[:]...)
}

func (h *hooks) operationStart(ctx context.Context, a idem.Attempt) context.Context {
	ctx, _ = h.tracer.Start(ctx, "idem "+a.Method, trace.WithTimestamp(a.Start), trace.WithAttributes(common(a)...),
		trace.WithAttributes(keyAttribute.String(a.Key.LogValue().String())))
	return ctx
}

func (h *hooks) attemptStart(ctx context.Context, a idem.Attempt) context.Context {
	attributes := append(common(a), semconv.URLFull(a.URL))
	if a.Number > 1 {
		attributes = append(attributes, semconv.HTTPRequestResendCount(a.Number-1))
	}
	ctx, _ = h.tracer.Start(ctx, a.Method, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(a.Start), trace.WithAttributes(attributes...))
	return ctx
}

func (h *hooks) attemptDone(ctx context.Context, a idem.Attempt) {
	result := resultOf(a)
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(append(result, sendsAttribute.Int(a.Sends), replayAttribute.Bool(a.Replayed))...)
	if a.Err != nil || a.Status >= http.StatusBadRequest {
		span.SetStatus(codes.Error, text(a.Err))
	}
	span.End(trace.WithTimestamp(a.Start.Add(a.Duration)))
	h.attempts.Record(ctx, a.Duration.Seconds(), metric.WithAttributes(append(common(a), result...)...))
}

func (h *hooks) waiting(ctx context.Context, a idem.Attempt) {
	trace.SpanFromContext(ctx).AddEvent("wait", trace.WithAttributes(attribute.String("duration", a.Wait.String())))
	h.pauses.Record(ctx, a.Wait.Seconds(), metric.WithAttributes(common(a)...))
}

func (h *hooks) operationDone(ctx context.Context, a idem.Attempt) {
	outcome := outcomeAttribute.String(idem.OutcomeOf(a.Err).String())
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(outcome)
	var incomplete *idem.IncompleteError
	if errors.As(a.Err, &incomplete) {
		span.SetAttributes(reasonAttribute.String(string(incomplete.Reason)))
		span.SetStatus(codes.Error, string(incomplete.Reason))
	}
	span.End(trace.WithTimestamp(a.Start.Add(a.Duration)))
	attributes := metric.WithAttributes(append(common(a), outcome)...)
	h.operations.Record(ctx, a.Duration.Seconds(), attributes)
	h.sends.Record(ctx, int64(a.Number), attributes)
}

// common are the attributes of everything about an operation.
func common(a idem.Attempt) []attribute.KeyValue {
	attributes := []attribute.KeyValue{semconv.HTTPRequestMethodKey.String(a.Method)}
	u, err := url.Parse(a.URL)
	if err != nil {
		return attributes
	}
	attributes = append(attributes, semconv.ServerAddress(u.Hostname()))
	if port, err := strconv.Atoi(u.Port()); err == nil {
		attributes = append(attributes, semconv.ServerPort(port))
	}
	return attributes
}

// resultOf are the attributes of how an attempt ended.
func resultOf(a idem.Attempt) []attribute.KeyValue {
	switch {
	case a.Err != nil:
		return []attribute.KeyValue{semconv.ErrorTypeKey.String(kind(a.Err))}
	case a.Status >= http.StatusBadRequest:
		return []attribute.KeyValue{semconv.HTTPResponseStatusCode(a.Status), semconv.ErrorTypeKey.String(strconv.Itoa(a.Status))}
	}
	return []attribute.KeyValue{semconv.HTTPResponseStatusCode(a.Status)}
}

// kind names the kind of an error in one of few words.
func kind(err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return "connection"
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Transport returns a transport that tells the server which attempt a request
// belongs to, in the fields of the global propagator, for use as
// [idem.Client.Transport]. A nil base means [http.DefaultTransport]. It is not
// needed where base propagates by itself, as that of otelhttp does.
func Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return propagating{base}
}

type propagating struct{ base http.RoundTripper }

func (t propagating) RoundTrip(req *http.Request) (*http.Response, error) {
	traced := req.Clone(req.Context())
	otel.GetTextMapPropagator().Inject(req.Context(), propagation.HeaderCarrier(traced.Header))
	return t.base.RoundTrip(traced)
}
