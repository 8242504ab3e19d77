package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"

	"github.com/google/uuid"
)

// Operation is what a handler knows of the operation it executes.
type Operation struct {
	// ID is the same on every attempt and new when the key is used again
	// after its record has expired.
	ID      uuid.UUID `json:"id"`
	Account string    `json:"account"`
	Key     string    `json:"key"`
	// Attempt is numbered from 1 and rises with every takeover and rerun. It
	// is the fencing number for the handler's own writes.
	Attempt int `json:"attempt"`
}

// DownstreamKey returns the idempotency key to send to another service, or to
// store beside an effect elsewhere, so that it is recognised there when the
// operation runs again. It is the same on every attempt. The purpose tells the
// calls of one operation apart: "charge", "receipt".
//
// The key is a UUID (version 8, RFC 9562) computed from ID and purpose.
func (o Operation) DownstreamKey(purpose string) string {
	const domain = "idem downstream key"
	h := sha256.New()
	for _, part := range [][]byte{[]byte(domain), o.ID[:], []byte(purpose)} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	key := uuid.UUID(h.Sum(nil)[:16])
	key[6] = key[6]&0x0F | 0x80 // version 8
	key[8] = key[8]&0x3F | 0x80 // variant of RFC 9562
	return key.String()
}

type operationKey struct{}

// OperationFrom returns the operation that the handler with the context ctx
// executes. It reports false where none is: the method is not governed, or the
// request has no key.
func OperationFrom(ctx context.Context) (Operation, bool) {
	if e, ok := ctx.Value(operationKey{}).(*execution); ok {
		return e.Operation, true
	}
	return Operation{}, false
}

// execution is an operation as the context of its handler carries it.
type execution struct {
	Operation
	acceptance

	atomic    bool        // under an AtomicLease: its effects are lost unless it completes
	abandoned atomic.Bool // nobody knows whether it had its effects
}

func (e *execution) context(parent context.Context) context.Context {
	return context.WithValue(parent, operationKey{}, e)
}
