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
	"github.com/jackc/pgx/v5/pgtype"

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

// read scans a row that begins with values for first and ends with columns,
// and sets *r to the record in it. There is none if there is no row, or if the
// columns are NULL.
func read(row pgx.Row, r **record, first ...any) error {
	var c found
	err := row.Scan(append(first, &c.now, &c.operation, &c.sum, &c.version, &c.status, &c.attempt, &c.token,
		&c.leaseUntil, &c.expiresAt, &c.code, &c.headers, &c.body, &c.flags)...)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !c.operation.Valid {
		*r = nil
		return nil
	}
	if err != nil {
		return err
	}
	*r, err = c.record()
	return err
}

// found is columns, in types that pgx scans without a search for a way to do it.
// Those of records are never NULL unless commented so.
type found struct {
	now, expiresAt   pgtype.Timestamptz
	operation, token pgtype.UUID
	sum              []byte
	version          pgtype.Int2
	status           pgtype.Text
	attempt, flags   pgtype.Int4
	leaseUntil       pgtype.Timestamptz // NULL unless processing
	code             pgtype.Int2        // NULL if there is no answer, and so are
	headers, body    []byte
}

func (c *found) record() (*record, error) {
	status, err := parseStatus(c.status.String)
	if err != nil {
		return nil, err
	}
	r := &record{
		operation: c.operation.Bytes, status: status, attempt: int(c.attempt.Int32), token: c.token.Bytes,
		expired: !c.expiresAt.Time.After(c.now.Time),
	}
	version := c.version.Int16
	if len(c.sum) != len(r.fingerprint.Sum) || version < 0 || version > math.MaxUint8 {
		return nil, fmt.Errorf("%w: a fingerprint of version %d with %d bytes", errUnreadable, version, len(c.sum))
	}
	r.fingerprint = server.Fingerprint{Version: uint8(version), Sum: [32]byte(c.sum)}
	if c.leaseUntil.Valid {
		r.leaseLeft = c.leaseUntil.Time.Sub(c.now.Time)
	}
	if c.code.Valid {
		r.response, err = decodeResponse(int(c.code.Int16), c.headers, c.body, c.flags.Int32)
	}
	return r, err
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
