package redisstore

import (
	"errors"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/internal/netstring"
	"github.com/idemhttp/idem/server"
)

// state says what a note on a door means.
type state string

const (
	// asking: a claim is being made at the durable store, and it is not known
	// yet what comes of it.
	asking state = "asking"
	// running: the durable store has given the lease of this attempt.
	running state = "running"
	// completed: the durable store has the answer.
	completed state = "completed"
)

// note is the value of a door in Redis. It can be told from every other by its
// state and the token of the claim that wrote it.
type note struct {
	state       state // "" if there is none
	token       string
	fingerprint server.Fingerprint
	operation   uuid.UUID // unknown while asking, and so is attempt
	attempt     int
	response    string // encoded
}

// nothing in place of a note takes it off the door.
var nothing note

const noteFormat = "1"

func (n note) encode() string {
	if n.state == "" {
		return ""
	}
	return netstring.Join(noteFormat, string(n.state), n.token, encodeFingerprint(n.fingerprint),
		n.operation.String(), strconv.Itoa(n.attempt), n.response)
}

func decodeNote(s string) (note, error) {
	parts, ok := netstring.Split(s)
	if !ok || len(parts) != 7 || parts[0] != noteFormat || len(parts[3]) != 33 {
		return note{}, errUnreadable
	}
	n := note{state: state(parts[1]), token: parts[2], response: parts[6]}
	n.fingerprint.Version = parts[3][0]
	copy(n.fingerprint.Sum[:], parts[3][1:])
	operation, idErr := uuid.Parse(parts[4])
	attempt, attemptErr := strconv.Atoi(parts[5])
	n.operation, n.attempt = operation, attempt
	return n, errors.Join(idErr, attemptErr)
}

// report returns what a claim with fingerprint f is told of an operation with
// this note, which stands for another left. It returns false if the durable
// store has to be asked.
func (n note) report(f server.Fingerprint, left time.Duration) (server.Record, bool) {
	rec := server.Record{
		Status: server.Processing, Reused: n.fingerprint.Differs(f), Operation: n.operation, Attempt: n.attempt,
		LeaseLeft: max(left, time.Millisecond), // zero would say that the owner was lost, which the durable store decides
	}
	switch n.state {
	case asking: // its own request may be the one that is refused
		return rec, !rec.Reused
	case running:
		return rec, true
	case completed:
		var err error
		rec.Status, rec.LeaseLeft = server.Completed, 0
		rec.Response, err = decodeResponse(n.response)
		return rec, err == nil
	default:
		return rec, false
	}
}
