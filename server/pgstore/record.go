package pgstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/server"
)

// record is a row of the table.
type record struct {
	operation   uuid.UUID
	fingerprint server.Fingerprint
	status      server.Status
	attempt     int
	token       uuid.UUID // of the last claim
	leaseLeft   time.Duration
	expired     bool
	response    *server.Response
}

// errUnreadable says that a record was written by a newer version, or damaged.
// Such a record is never taken for none.
var errUnreadable = errors.New("pgstore: a record has something that this version cannot read")

// decodeRecord reads values for columns. There is no record if all but the first
// are NULL.
func decodeRecord(values [][]byte) (*record, error) {
	if values[1] == nil {
		return nil, nil //nolint:nilnil // as everywhere, no record is nil
	}
	d := decoder{values: values}
	now := d.time()
	r := &record{operation: d.uuid()}
	sum, version := [32]byte(d.sized(32)), d.int16()
	if version < 0 || version > math.MaxUint8 {
		return nil, fmt.Errorf("%w: a fingerprint of version %d", errUnreadable, version)
	}
	r.fingerprint = server.Fingerprint{Version: uint8(version), Sum: sum}
	var err error
	if r.status, err = parseStatus(string(d.next())); err != nil {
		return nil, err
	}
	r.attempt, r.token = int(d.int32()), d.uuid()
	if d.null() { // unless processing
		d.next()
	} else {
		r.leaseLeft = time.Duration(d.time()-now) * time.Microsecond
	}
	r.expired = d.time() <= now
	if d.null() { // there is no answer
		return r, d.err
	}
	code, headers, body, flags := d.int16(), d.next(), bytes.Clone(d.next()), d.int32()
	if d.err != nil {
		return nil, d.err
	}
	r.response, err = decodeResponse(int(code), headers, body, flags)
	return r, err
}

// decoder takes one value after the other, in binary format.
type decoder struct {
	values [][]byte
	err    error // that a value is not of its type
}

func (d *decoder) next() []byte {
	value := d.values[0]
	d.values = d.values[1:]
	return value
}

// sized is next for types whose values have a fixed size.
func (d *decoder) sized(size int) []byte {
	value := d.next()
	if len(value) != size {
		d.err = fmt.Errorf("%w: a value of %d bytes instead of %d", errUnreadable, len(value), size)
		return make([]byte, size)
	}
	return value
}

func (d *decoder) null() bool { return d.values[0] == nil }

func (d *decoder) int16() int16 { return int16(binary.BigEndian.Uint16(d.sized(2))) }
func (d *decoder) int32() int32 { return int32(binary.BigEndian.Uint32(d.sized(4))) }

// time returns a timestamp in microseconds.
func (d *decoder) time() int64 { return int64(binary.BigEndian.Uint64(d.sized(8))) }

func (d *decoder) uuid() uuid.UUID { return uuid.UUID(d.sized(16)) }

func parseStatus(name string) (server.Status, error) {
	for _, status := range [...]server.Status{server.Processing, server.Completed, server.Failed} {
		if status.String() == name {
			return status, nil
		}
	}
	return 0, fmt.Errorf("%w: the status %q", errUnreadable, name)
}

// verdict is what a claim does with the record it found.
type verdict int

const (
	begin  verdict = iota // claim the key for a new operation
	again                 // claim it for another attempt of the same operation
	report                // leave it alone and say what it is
)

// judge decides about the record that a claim found, which is nil if there is
// none.
func judge(r *record, req server.ClaimRequest) verdict {
	lost := r != nil && r.status == server.Processing && r.leaseLeft <= 0
	switch {
	case r == nil || r.expired:
		return begin
	case r.fingerprint.Differs(req.Fingerprint):
		return report
	case r.status == server.Failed, lost && req.Takeover == server.Rerun:
		return again
	default:
		return report
	}
}

// reported is r as a claim with fingerprint f is told of it.
func (r *record) reported(f server.Fingerprint) server.Record {
	return server.Record{
		Status: r.status, Reused: r.fingerprint.Differs(f), Operation: r.operation, Attempt: r.attempt,
		LeaseLeft: r.leaseLeft, Response: r.response,
	}
}

// Bits of response_flags. The others must be zero.
const (
	flagEncoding = 0xFF // how response_headers is encoded
	flagNotKept  = 1 << 8

	netstrings = 1 // an encoding
)

// encodeHeaders writes fields as netstrings, name and value in turn:
// "12:Content-Type,10:text/plain,". It keeps order, repetition and every byte,
// and can be read in the text view.
func encodeHeaders(fields []server.Field) []byte {
	b := []byte{}
	for _, f := range fields {
		b = appendNetstring(appendNetstring(b, f.Name), f.Value)
	}
	return b
}

func appendNetstring(b []byte, s string) []byte {
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(b, ':')
	b = append(b, s...)
	return append(b, ',')
}

func responseFlags(r server.Response) int32 {
	if r.NotKept {
		return netstrings | flagNotKept
	}
	return netstrings
}

// decodeResponse is the inverse of encodeHeaders and responseFlags. What a
// newer version has written is an error, never an answer.
func decodeResponse(status int, headers, body []byte, flags int32) (*server.Response, error) {
	if flags&flagEncoding != netstrings || flags&^(flagEncoding|flagNotKept) != 0 {
		return nil, fmt.Errorf("%w: an answer of the format %#x", errUnreadable, flags)
	}
	r := &server.Response{StatusCode: status, Body: body, NotKept: flags&flagNotKept != 0}
	for len(headers) > 0 {
		name, rest, err := cutNetstring(headers)
		if err != nil {
			return nil, err
		}
		value, rest, err := cutNetstring(rest)
		if err != nil {
			return nil, err
		}
		r.Fields = append(r.Fields, server.Field{Name: name, Value: value})
		headers = rest
	}
	return r, nil
}

func cutNetstring(b []byte) (s string, rest []byte, err error) {
	length, rest, found := bytes.Cut(b, []byte{':'})
	n, err := strconv.ParseUint(string(length), 10, 31)
	if !found || err != nil || uint64(len(rest)) <= n || rest[n] != ',' {
		return "", nil, fmt.Errorf("%w: the fields of an answer", errUnreadable)
	}
	return string(rest[:n]), rest[n+1:], nil
}
