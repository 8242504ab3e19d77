package server

import "crypto/sha256"

// Fingerprint identifies the meaning of a request: two requests with the same
// fingerprint ask for the same thing.
type Fingerprint struct {
	// Version is the scheme by which Sum was computed.
	Version uint8
	Sum     [sha256.Size]byte
}

// Differs reports whether f and other are proved to belong to different
// requests. Sums of different versions prove nothing.
func (f Fingerprint) Differs(other Fingerprint) bool {
	return f.Version == other.Version && f.Sum != other.Sum
}
