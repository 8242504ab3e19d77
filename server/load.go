package server

// Load is what a [Middleware] is busy with at one moment.
type Load struct {
	Executing int // operations that it executes, or whose answers are Pending
	Waiting   int // requests that wait for an attempt in flight
	Pending   int // answers that were sent, but could not be recorded yet
}

// Load returns what m is busy with. It may be called at any time.
func (m *Middleware) Load() Load {
	m.room.mu.Lock()
	load := Load{Executing: len(m.room.running), Waiting: m.room.waiting}
	m.room.mu.Unlock()
	m.backlog.mu.Lock()
	defer m.backlog.mu.Unlock()
	load.Pending = m.backlog.n
	return load
}
