package server

import (
	"github.com/google/uuid"
)

// Operation is what a handler knows of the operation it executes.
type Operation struct {
	// ID is the same on every attempt and new when the key is used again
	// after its record has expired.
	ID           uuid.UUID
	Account, Key string
	// Attempt is numbered from 1 and rises with every takeover and rerun. It
	// is the fencing number for the handler's own writes.
	Attempt int
}
