package redisstore

import "time"

// SetRest sets for how long Redis is left alone after it has failed.
func (l *Locked) SetRest(d time.Duration) { l.outage.rest = d }
