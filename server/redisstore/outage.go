package redisstore

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"
)

// errResting says that Redis was not called.
var errResting = errors.New("redisstore: Redis failed a moment ago")

// outage keeps claims from waiting for a Redis that does not answer. The zero
// value is none.
type outage struct {
	rest    time.Duration // for how long Redis is left alone; 0 means a second
	retryAt atomic.Int64  // nanoseconds since process start; 0 if Redis works
}

var processStart = time.Now()

// mayCall reports whether to call Redis. While it fails, one call in a rest
// finds out whether it still does.
func (o *outage) mayCall() bool {
	at := o.retryAt.Load()
	return at == 0 || int64(time.Since(processStart)) >= at && o.retryAt.CompareAndSwap(at, o.afterRest())
}

func (o *outage) afterRest() int64 {
	return int64(time.Since(processStart) + cmp.Or(o.rest, time.Second))
}

// begin notes that a call failed, and reports whether it is the first.
func (o *outage) begin() bool { return o.retryAt.Swap(o.afterRest()) == 0 }

// end notes that a call succeeded, and reports whether others had failed.
func (o *outage) end() bool { return o.retryAt.Load() != 0 && o.retryAt.Swap(0) != 0 }
