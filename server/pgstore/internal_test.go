package pgstore

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	req := server.ClaimRequest{Fingerprint: server.Fingerprint{Version: 1, Sum: [32]byte{1}}}
	refuse := req
	refuse.Takeover = server.Refuse
	other := server.Fingerprint{Version: 1, Sum: [32]byte{2}}
	newer := server.Fingerprint{Version: 2, Sum: [32]byte{2}}
	for _, c := range []struct {
		name   string
		record *record
		req    server.ClaimRequest
		want   verdict
	}{
		{"no record", nil, req, begin},
		{"expired", &record{status: server.Completed, fingerprint: req.Fingerprint, expired: true}, req, begin},
		{"expired, something else", &record{status: server.Failed, fingerprint: other, expired: true}, req, begin},
		{"completed", &record{status: server.Completed, fingerprint: req.Fingerprint}, req, report},
		{"completed, something else", &record{status: server.Completed, fingerprint: other}, req, report},
		{"failed", &record{status: server.Failed, fingerprint: req.Fingerprint}, req, again},
		{"failed, lost owners refused", &record{status: server.Failed, fingerprint: req.Fingerprint}, refuse, again},
		{"failed, something else", &record{status: server.Failed, fingerprint: other}, req, report},
		{"failed, another scheme", &record{status: server.Failed, fingerprint: newer}, req, again},
		{"running", &record{status: server.Processing, fingerprint: req.Fingerprint, leaseLeft: 1}, req, report},
		{"lost", &record{status: server.Processing, fingerprint: req.Fingerprint}, req, again},
		{"lost, refused", &record{status: server.Processing, fingerprint: req.Fingerprint}, refuse, report},
		{"lost, something else", &record{status: server.Processing, fingerprint: other}, req, report},
	} {
		require.Equal(t, c.want, judge(c.record, c.req), c.name)
	}
}

func TestEndingOfATransaction(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		state  byte
		code   string
		want   ending
	}{
		{"2xx", 200, stateOpen, "", commitAll},
		{"2xx after an error that was healed", 200, stateOpen, "23505", commitAll},
		{"2xx of an aborted transaction", 200, stateAborted, "23505", refuse},
		{"2xx after a deadlock", 200, stateAborted, "40P01", restart},
		{"2xx after a serialization failure", 200, stateAborted, "40001", restart},
		{"2xx of a lost session", 200, stateLost, "", restart},
		{"2xx after the handler's own COMMIT", 200, stateIdle, "", storeAlone},
		{"4xx", 404, stateOpen, "", storeAlone},
		{"4xx of an aborted transaction", 422, stateAborted, "23514", storeAlone},
		{"4xx after a deadlock", 409, stateAborted, "40P01", restart},
		{"4xx of a lost session", 404, stateLost, "", storeAlone},
		{"5xx", 500, stateOpen, "", storeAlone},
	} {
		require.Equal(t, c.want, endingOf(c.status, c.state, c.code), c.name)
	}
}

func TestOutcomeOfALastFlight(t *testing.T) {
	t.Parallel()
	failure := func(severity, code string) error {
		return &pgconn.PgError{Severity: severity, Code: code}
	}
	for _, c := range []struct {
		name     string
		err      error
		inserted bool
		want     outcome
	}{
		{"acknowledged", nil, true, committed},
		{"COMMIT answered by ROLLBACK", errNotCommitted, true, refused},
		{"our own index", failure("ERROR", "23505"), false, conflict},
		{"a deferred index of the handler's", failure("ERROR", "23505"), true, refused},
		{"a deferred foreign key", failure("ERROR", "23503"), true, refused},
		{"serialization failure at COMMIT", failure("ERROR", "40001"), true, conflict},
		{"deadlock in the insert", failure("ERROR", "40P01"), false, conflict},
		{"transaction aborted before", failure("ERROR", "25P02"), false, refused},
		{"statement timeout", failure("ERROR", "57014"), false, failed},
		{"disk full", failure("ERROR", "53100"), false, failed},
		{"completion unknown", failure("ERROR", "40003"), true, unknown},
		{"session ended by the server", failure("FATAL", "57P01"), true, unknown},
		{"connection lost", io.ErrUnexpectedEOF, true, unknown},
		{"time-out", context.DeadlineExceeded, false, unknown},
		{"nothing sent", notSentError{}, false, conflict},
	} {
		require.Equal(t, c.want, outcomeOf(c.err, c.inserted), c.name)
	}
}

// notSentError is an error of a connection that had sent nothing.
type notSentError struct{}

func (notSentError) Error() string     { return "nothing sent" }
func (notSentError) SafeToRetry() bool { return true }

func TestTransientErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errRetry, true},
		{io.EOF, true},
		{&net.OpError{Op: "read", Err: errors.New("connection reset")}, true},
		{&pgconn.PgError{Severity: "FATAL", Code: "57P01"}, true},
		{&pgconn.PgError{Severity: "ERREUR", SeverityUnlocalized: "FATAL", Code: "57P01"}, true},
		{&pgconn.PgError{Severity: "ERROR", Code: "40001"}, true},
		{&pgconn.PgError{Severity: "ERROR", Code: "42P01"}, false},
		{errUnreadable, false},
		{context.Canceled, false},
		{context.DeadlineExceeded, false},
	} {
		require.Equal(t, c.want, transient(c.err), "%v", c.err)
	}
}

func TestRetryIsBounded(t *testing.T) {
	t.Parallel()
	calls := 0
	err := retry(t.Context(), func() error {
		calls++
		return errRetry
	})
	require.ErrorIs(t, err, errRetry)
	require.Equal(t, 5, calls)
}

func FuzzResponse(f *testing.F) {
	f.Add("Content-Type", "text/plain", "Set", "a\xffb,\x00:", int32(1))
	f.Add("", "", "", "", int32(257))
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2 string, flags int32) {
		want := server.Response{
			StatusCode: 201, Body: []byte(v1), NotKept: flags&flagNotKept != 0,
			Fields: []server.Field{{Name: n1, Value: v1}, {Name: n2, Value: v2}},
		}
		got, err := decodeResponse(201, encodeHeaders(want.Fields), want.Body, responseFlags(want))
		require.NoError(t, err)
		require.Equal(t, want, *got)
		if flags&^(flagEncoding|flagNotKept) != 0 || flags&flagEncoding != netstrings {
			_, err = decodeResponse(201, nil, nil, flags)
			require.ErrorIs(t, err, errUnreadable)
		}
	})
}

func FuzzDecodeFields(f *testing.F) {
	for _, seed := range []string{"", "1:a,1:b,", "1:a,", "0:,0:,", "9:a,", "1:ab", ":,", "-1:,", "1", "99999999999:a,", "+1:a,1:b,", "01:a,1:b,"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, headers []byte) {
		r, err := decodeResponse(200, headers, nil, netstrings)
		if err != nil {
			require.ErrorIs(t, err, errUnreadable)
			return
		}
		again, err := decodeResponse(200, encodeHeaders(r.Fields), nil, netstrings)
		require.NoError(t, err)
		require.Equal(t, r.Fields, again.Fields)
	})
}

func TestFieldsCanBeRead(t *testing.T) {
	t.Parallel()
	require.Equal(t, "12:Content-Type,10:text/plain,5:Empty,0:,",
		string(encodeHeaders([]server.Field{{Name: "Content-Type", Value: "text/plain"}, {Name: "Empty"}})))
}

func TestClockGuard(t *testing.T) {
	t.Parallel()
	start := time.Now()
	g := clockGuard{database: start, here: start}
	at := func(database, here time.Duration) (jump time.Duration, rests bool) {
		jump = g.check(start.Add(database), start.Add(here))
		return jump, g.rests(start.Add(here))
	}
	for _, c := range []struct {
		name           string
		database, here time.Duration
		jump           time.Duration
		rests          bool
	}{
		{"runs as it should", time.Minute, time.Minute, 0, false},
		{"drifts a little", 2*time.Minute + time.Second, 2 * time.Minute, 0, false},
		{"jumps forward", 24 * time.Hour, 3 * time.Minute, 24*time.Hour - 3*time.Minute - time.Second, true},
		{"runs on", 24*time.Hour + 58*time.Minute, 61 * time.Minute, 0, true},
		{"has been steady for an hour", 24*time.Hour + 60*time.Minute, 63 * time.Minute, 0, false},
		{"jumps back", 64 * time.Minute, 64 * time.Minute, -24*time.Hour + 3*time.Minute, true},
	} {
		jump, rests := at(c.database, c.here)
		require.Equal(t, c.rests, rests, c.name)
		require.InDelta(t, c.jump, jump, float64(2*time.Minute), c.name)
	}
}

func TestASweepStartsOverWhenNothingIsLeftAndNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := sweep{began: time.Now()}
		newest := time.Now()
		s.after(newest, true, time.Minute)
		require.Equal(t, newest, s.from)
		s.after(newest, false, time.Minute)
		require.Zero(t, s.from, "the batch was not full")
		<-time.After(time.Minute)
		s.after(newest, true, time.Minute)
		require.Equal(t, newest, s.from)
		<-time.After(time.Second)
		s.after(newest, true, time.Minute)
		require.Zero(t, s.from, "what was skipped may be left")
		s.after(newest, true, time.Minute)
		require.Equal(t, newest, s.from)
	})
}

func TestKeysOfDifferentIDsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[int64]string{}
	for _, id := range []server.ID{{Account: "a", Key: "bc"}, {Account: "ab", Key: "c"}, {Account: "", Key: "abc"}, {Account: "abc", Key: ""}} {
		for _, table := range []string{"one", "two"} {
			k := keysOf(table, server.ClaimRequest{ID: id})
			require.Empty(t, seen[k.id])
			seen[k.id] = table + "/" + id.Account + "/" + id.Key
		}
	}
}

func TestDerivedIDsAreStable(t *testing.T) {
	t.Parallel()
	c := claiming{req: server.ClaimRequest{ID: server.ID{Account: "acme", Key: "key"}}}
	require.Equal(t, uuid.MustParse("5c6b90cc-4e07-81f3-b8d9-eb474e70f947"), c.derive(uuid.Nil))
}
