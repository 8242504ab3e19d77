package server

// Waiting returns how many requests wait.
func Waiting(m *Middleware) int {
	m.room.mu.Lock()
	defer m.room.mu.Unlock()
	return m.room.waiting
}
