package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/netstring"
	"github.com/idemhttp/idem/server"
)

// errUnreadable says that something was written by a newer version, or
// damaged. It is never taken for nothing.
var errUnreadable = errors.New("redisstore: a record has something that this version cannot read")

// encodeFingerprint writes a fingerprint as one byte of version and the sum.
func encodeFingerprint(f server.Fingerprint) string {
	return string(append([]byte{f.Version}, f.Sum[:]...))
}

// The format of a response. Its first part is the version.
const responseFormat = "1"

// encodeResponse writes a response as netstrings: format, status, whether it
// was kept, body, and the names and values of its fields in turn.
func encodeResponse(r server.Response) string {
	kept := "kept"
	if r.NotKept {
		kept = "not kept"
	}
	parts := append(make([]string, 0, 4+2*len(r.Fields)), responseFormat, strconv.Itoa(r.StatusCode), kept, string(r.Body))
	for _, f := range r.Fields {
		parts = append(parts, f.Name, f.Value)
	}
	return netstring.Join(parts...)
}

func decodeResponse(s string) (*server.Response, error) {
	parts, ok := netstring.Split(s)
	if !ok || len(parts) < 4 || len(parts)%2 != 0 || parts[0] != responseFormat {
		return nil, errors.New("the format of an answer")
	}
	status, err := strconv.Atoi(parts[1])
	notKept := parts[2] == "not kept"
	if err != nil || !notKept && parts[2] != "kept" {
		return nil, errors.New("the status of an answer")
	}
	r := &server.Response{StatusCode: status, NotKept: notKept, Body: []byte(parts[3])}
	for i := 4; i < len(parts); i += 2 {
		r.Fields = append(r.Fields, server.Field{Name: parts[i], Value: parts[i+1]})
	}
	return r, nil
}

// reader reads the reply of a script, value by value. What it returns after an
// error means nothing.
type reader struct {
	reply []any
	err   error
}

// record reads the record that a reply ends with.
func (r *reader) record() server.Record {
	rec := server.Record{Operation: r.uuid(), Attempt: r.int(), Status: r.status()}
	leaseLeft := time.Duration(r.int()) * time.Millisecond
	if rec.Status == server.Processing {
		rec.LeaseLeft = leaseLeft
	}
	rec.Reused = r.flag()
	rec.Response = r.response()
	return rec
}

func (r *reader) next() (value any) {
	if len(r.reply) == 0 {
		r.fail(errors.New("a reply is too short"))
		return nil
	}
	value, r.reply = r.reply[0], r.reply[1:]
	return value
}

func (r *reader) fail(err error) {
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("%w: %w", errUnreadable, err)
	}
}

func (r *reader) int() int {
	switch value := r.next().(type) {
	case int64:
		return int(value)
	case string:
		n, err := strconv.Atoi(value)
		r.fail(err)
		return n
	default:
		r.fail(fmt.Errorf("%T in place of a number", value))
		return 0
	}
}

// time reads a time in milliseconds since 1970, or 0 for none.
func (r *reader) time() time.Time {
	n := r.int()
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(n))
}

func (r *reader) flag() bool { return r.int() == 1 }

func (r *reader) text() string {
	value := r.next()
	s, ok := value.(string)
	if !ok {
		r.fail(fmt.Errorf("%T in place of a text", value))
	}
	return s
}

func (r *reader) uuid() uuid.UUID {
	id, err := uuid.Parse(r.text())
	r.fail(err)
	return id
}

func (r *reader) status() server.Status {
	name := r.text()
	for _, status := range []server.Status{server.Processing, server.Completed, server.Failed} {
		if status.String() == name {
			return status
		}
	}
	r.fail(fmt.Errorf("the status %q", name))
	return 0
}

// response reads a response, which may be none.
func (r *reader) response() *server.Response {
	if len(r.reply) > 0 && r.reply[0] == nil {
		return nil
	}
	resp, err := decodeResponse(r.text())
	r.fail(err)
	return resp
}
