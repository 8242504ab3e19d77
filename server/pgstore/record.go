package pgstore

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/idemhttp/idem/server"
)

// record is a row as selectRecord finds it.
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

// read scans the row that selectRecord finds, if there is one, into *r.
func read(row pgx.Row, r **record) error {
	var (
		found              record
		version            int16
		sum, headers, body []byte
		status             string
		attempt, flags     int32
		leaseLeft          int64
		responseStatus     *int16
	)
	err := row.Scan(&found.operation, &sum, &version, &status, &attempt, &found.token, &leaseLeft, &found.expired,
		&responseStatus, &headers, &body, &flags)
	if errors.Is(err, pgx.ErrNoRows) {
		*r = nil
		return nil
	}
	if err != nil {
		return err
	}
	if len(sum) != len(found.fingerprint.Sum) || version < 0 || version > math.MaxUint8 {
		return fmt.Errorf("%w: a fingerprint of version %d with %d bytes", errUnreadable, version, len(sum))
	}
	found.fingerprint.Version = uint8(version)
	copy(found.fingerprint.Sum[:], sum)
	if found.status, err = parseStatus(status); err != nil {
		return err
	}
	if responseStatus != nil {
		if found.response, err = decodeResponse(int(*responseStatus), headers, body, flags); err != nil {
			return err
		}
	}
	found.attempt, found.leaseLeft = int(attempt), time.Duration(leaseLeft)*time.Microsecond
	*r = &found
	return nil
}

func parseStatus(name string) (server.Status, error) {
	for _, status := range []server.Status{server.Processing, server.Completed, server.Failed} {
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
