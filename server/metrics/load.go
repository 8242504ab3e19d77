package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemhttp/idem/server"
)

var (
	executingDesc = desc("operations_executing", "Operations that this process executes, or whose answers it is still to record.")
	waitersDesc   = desc("waiters", "Requests that wait for an attempt in flight.")
	pendingDesc   = desc("completions_pending", "Answers that were sent, but could not be recorded yet.")
)

// Watch lets the Collector ask each middleware, when it is scraped, what it is
// busy with.
func (c *Collector) Watch(middlewares ...*server.Middleware) { c.load.watch(middlewares) }

// load collects what the middlewares of this process are busy with. It says
// nothing as long as it watches none.
type load struct {
	mu          sync.Mutex
	middlewares []*server.Middleware
}

func (l *load) watch(middlewares []*server.Middleware) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.middlewares = append(l.middlewares, middlewares...)
}

// Describe implements [prometheus.Collector].
func (l *load) Describe(ch chan<- *prometheus.Desc) {
	ch <- executingDesc
	ch <- waitersDesc
	ch <- pendingDesc
}

// Collect implements [prometheus.Collector].
func (l *load) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.middlewares) == 0 {
		return
	}
	var sum server.Load
	for _, m := range l.middlewares {
		load := m.Load()
		sum.Executing += load.Executing
		sum.Waiting += load.Waiting
		sum.Pending += load.Pending
	}
	gauge(ch, executingDesc, float64(sum.Executing))
	gauge(ch, waitersDesc, float64(sum.Waiting))
	gauge(ch, pendingDesc, float64(sum.Pending))
}
