package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"log/slog"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/keyfield"
)

// Key is an idempotency key: the name that a client gives to one logical
// operation and repeats on every attempt of it. It is 1 to 255 bytes of visible
// ASCII. Errors print it whole, because it is needed to try again; logs
// shorten it.
type Key string

// NewKey returns a new random key, a UUIDv4 (RFC 9562).
func NewKey() Key { return Key(uuid.NewString()) }

// DeriveKey returns the key that belongs to parts, for example to ("order",
// orderID): the same parts give the same key, in any process, after any crash,
// with nothing stored. Every part counts as a whole, so ("ab", "c") and ("a",
// "bc") differ. The key is a SHA-256 over the length-prefixed parts, printed as
// a UUIDv8.
//
// Without parts, or with an empty one, the key would not name one operation:
// DeriveKey then returns "", which every send refuses.
func DeriveKey(parts ...string) Key {
	if len(parts) == 0 {
		return ""
	}
	h := sha256.New()
	for _, part := range parts {
		if part == "" {
			return ""
		}
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	id := uuid.UUID(h.Sum(nil)[:16])
	id[6] = id[6]&0x0F | 0x80 // version 8
	id[8] = id[8]&0x3F | 0x80 // variant of RFC 9562
	return Key(id.String())
}

// LogValue implements [slog.LogValuer]: a log gets the beginning of the key,
// enough to find an operation and too little to repeat it.
func (k Key) LogValue() slog.Value { return slog.StringValue(keyfield.Shorten(string(k))) }
