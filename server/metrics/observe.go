package metrics

import (
	"context"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemhttp/idem/server"
)

// maxRoutes bounds the series where something outside of the middleware sets
// the pattern of requests to what clients choose. Further routes are counted
// under the method and route "other".
const maxRoutes = 250

// reasonHandler is the reason of conflicts that are the handler's own answers,
// replays included. The other reasons are results.
const reasonHandler = "handler"

// What a route starts with at zero, so that the first of a kind is an increase.
var (
	results = []server.Result{
		server.ResultExecuted, server.ResultFailed, server.ResultAbandoned, server.ResultReplayed, server.ResultAccepted, server.ResultInFlight,
		server.ResultReused, server.ResultNotKept, server.ResultIndeterminate, server.ResultUnkeyed, server.ResultMissing,
		server.ResultInvalid, server.ResultNoAccount, server.ResultRefused, server.ResultAccountError, server.ResultTooLarge,
		server.ResultIncomplete, server.ResultStoreError, server.ResultMisconfigured,
	}
	reasons     = []server.Result{server.ResultReused, server.ResultNotKept, server.ResultIndeterminate, reasonHandler}
	lateResults = []server.Result{server.ResultRecorded, server.ResultUnrecorded}
)

// routeID is what an event says of its route.
type routeID struct{ method, pattern string }

// route has the metrics of one route.
type route struct {
	requests, conflicts, late *prometheus.CounterVec // by what became of it
	waited, handled           prometheus.Observer
	restarts, extensions      prometheus.Counter
	leasesLost, takeovers     prometheus.Counter
}

// Observe counts an event. It is made for [server.Middleware.Observe].
func (c *Collector) Observe(_ context.Context, e server.Event) {
	r := c.route(routeID{e.Method, e.Pattern})
	if e.Result == server.ResultRecorded || e.Result == server.ResultUnrecorded {
		r.late.WithLabelValues(string(e.Result)).Inc()
		return
	}
	r.requests.WithLabelValues(string(e.Result)).Inc()
	if reason := conflict(e); reason != "" {
		r.conflicts.WithLabelValues(reason).Inc()
	}
	if e.Waited > 0 {
		r.waited.Observe(e.Waited.Seconds())
	}
	if e.Operation.Attempt > 0 {
		r.handled.Observe(e.Handled.Seconds())
	}
	r.restarts.Add(float64(e.Restarts))
	r.extensions.Add(float64(e.Extensions))
	if e.LeaseLost {
		r.leasesLost.Inc()
	}
	if e.TakenOver {
		r.takeovers.Inc()
	}
}

// conflict returns the reason of a conflict, or "" if e is none.
func conflict(e server.Event) string {
	switch e.Result {
	case server.ResultReused, server.ResultNotKept, server.ResultIndeterminate:
		return string(e.Result)
	case server.ResultExecuted, server.ResultReplayed:
		if e.StatusCode == http.StatusConflict {
			return reasonHandler
		}
	default:
	}
	return ""
}

func (c *Collector) route(id routeID) *route {
	c.mu.RLock()
	r := c.routes[id]
	c.mu.RUnlock()
	if r != nil {
		return r
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.routes) >= maxRoutes {
		id = routeID{"other", "other"}
	}
	if r = c.routes[id]; r == nil {
		r = c.newRoute(id)
		c.routes[id] = r
	}
	return r
}

func (c *Collector) newRoute(id routeID) *route {
	labels := prometheus.Labels{"method": strings.ToValidUTF8(id.method, "?"), "route": id.path()}
	return &route{
		requests:   from(c.requests, labels, results),
		conflicts:  from(c.conflicts, labels, reasons),
		late:       from(c.late, labels, lateResults),
		waited:     c.waited.With(labels),
		handled:    c.handled.With(labels),
		restarts:   c.restarts.With(labels),
		extensions: c.extensions.With(labels),
		leasesLost: c.leasesLost.With(labels),
		takeovers:  c.takeovers.With(labels),
	}
}

// path returns the pattern without its method, which has a label of its own.
func (id routeID) path() string {
	path := id.pattern
	if space := strings.IndexAny(path, " \t"); space >= 0 {
		path = strings.TrimLeft(path[space:], " \t")
	}
	return strings.ToValidUTF8(path, "?")
}

// from returns the counters with the given labels, those of values at zero.
func from(counters *prometheus.CounterVec, labels prometheus.Labels, values []server.Result) *prometheus.CounterVec {
	counters = counters.MustCurryWith(labels)
	for _, value := range values {
		counters.WithLabelValues(string(value))
	}
	return counters
}
