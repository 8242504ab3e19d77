// Package bounded reads bodies into memory, within bounds.
package bounded

import (
	"fmt"
	"io"
	"slices"
)

// TooLargeError says that a body is beyond its bound.
type TooLargeError struct{ Limit int64 }

// Error implements error.
func (e *TooLargeError) Error() string { return fmt.Sprintf("it is larger than %d bytes", e.Limit) }

// trusted is how many bytes are set aside for a body before they have arrived:
// nobody makes us allocate more by a promise.
const trusted = 1 << 20

// maxIdle is how many reads in a row may return nothing.
const maxIdle = 100

// Read appends what r holds to buf, which may have room for it, and fails with
// a [*TooLargeError] if that makes more than limit bytes. size is how many are
// expected, or negative. What was read is returned with an error of r's too.
//
// A body of the expected size is allocated once. One of unknown size takes,
// with all that is thrown away while it grows, less than three times limit, and
// less than twice if limit is 1 MiB or less.
func Read(buf []byte, r io.Reader, size, limit int64) ([]byte, error) {
	if expected := min(size, limit, trusted) + 1; int64(cap(buf)) < expected {
		buf = make([]byte, 0, expected)
	}
	for idle := 0; ; idle++ {
		if len(buf) == cap(buf) {
			buf = grown(buf, limit)
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if n > 0 {
			idle = 0
		}
		switch {
		case int64(len(buf)) > limit:
			return nil, &TooLargeError{limit}
		case err == io.EOF:
			return slices.Clip(buf), nil
		case err != nil:
			return buf, err
		case idle == maxIdle:
			return buf, io.ErrNoProgress
		}
	}
}

// grown returns buf with four times its capacity while that is small, then
// twice, but with no more than it takes to find that limit is exceeded.
func grown(buf []byte, limit int64) []byte {
	const smallest = 512
	have := int64(cap(buf))
	more := max(smallest, have, min(3*have, trusted))
	bigger := make([]byte, len(buf), min(have+more-1, limit)+1)
	copy(bigger, buf)
	return bigger
}
