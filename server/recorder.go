package server

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
)

var (
	errBufferFull    = errors.New("idem: the answer of a transactional route outgrew MaxBuffered")
	errShortBody     = errors.New("idem: the handler wrote less than its Content-Length says")
	errAfterFinish   = errors.New("idem: the handler has returned, its answer is closed")
	errHijackRefused = fmt.Errorf("idem: a transactional route cannot be hijacked: %w", http.ErrNotSupported)
)

// recorderConfig is what a recorder needs to know of its route.
type recorderConfig struct {
	maxStored   int64   // bytes of a body that are kept for replay
	maxBuffered int64   // bytes of a body that are held back until send
	atomic      bool    // nothing of the answer may leave before send
	own         []Field // set on the answer whatever the handler does
	logger      *slog.Logger
}

// recorder stands in for the http.ResponseWriter while a handler runs. It
// holds the answer back until send, so that it can be stored before the client
// sees it, and keeps the rules of package net/http so closely that neither
// handler nor client can tell the difference.
//
// The handler works on a copy of the header. Unless the route is atomic, a
// flush or a body over maxBuffered lets the answer pass from then on; it is
// still recorded up to maxStored bytes.
//
// Like any ResponseWriter it is not safe for concurrent use.
type recorder struct {
	recorderConfig
	outer  http.ResponseWriter
	method string

	before   http.Header // the outer writer's, before the handler ran
	header   http.Header // the handler's
	frozen   http.Header // the handler's as it was at WriteHeader
	trailers http.Header // the handler's when it returned
	status   int         // 0 until WriteHeader

	declared int64  // by Content-Length, or -1
	written  int64  // accepted from the handler
	body     []byte // all of it, unless dropped

	overrun  bool  // the handler tried to write more than declared
	passing  bool  // header and body go to the outer writer at once
	dropped  bool  // the body outgrew maxStored while passing
	hijacked bool  // the connection is the handler's
	finished bool  // the handler returned
	broken   error // the answer must not be sent
	sendErr  error // the client is gone
}

func newRecorder(w http.ResponseWriter, r *http.Request, c recorderConfig) *recorder {
	return &recorder{
		recorderConfig: c,
		outer:          w,
		method:         r.Method,
		before:         maps.Clone(w.Header()),
		header:         w.Header().Clone(),
		declared:       -1,
	}
}

// flusher is a recorder whose handler may flush. It is a type of its own so
// that asserting http.Flusher fails where flushing does.
type flusher struct{ *recorder }

// Flush implements [http.Flusher].
func (f flusher) Flush() { _ = f.FlushError() }

// writer returns what the handler gets.
func (rec *recorder) writer() http.ResponseWriter {
	if rec.canFlush() {
		return flusher{rec}
	}
	return rec
}

// canFlush reports whether the route may flush and the outer writer can, which
// is looked for as [http.ResponseController] does.
func (rec *recorder) canFlush() bool {
	if rec.atomic {
		return false
	}
	w := rec.outer
	for {
		switch t := w.(type) {
		case interface{ FlushError() error }, http.Flusher:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// Unwrap lets [http.ResponseController] find what the recorder does not do
// itself, such as deadlines.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.outer }

// Header implements [http.ResponseWriter].
func (rec *recorder) Header() http.Header { return rec.header }

// WriteHeader implements [http.ResponseWriter]. Informational answers pass at
// once: they are no part of the answer.
func (rec *recorder) WriteHeader(status int) {
	switch {
	case rec.hijacked || rec.finished || rec.status != 0:
		rec.logger.Warn("superfluous WriteHeader", "status", status, "hijacked", rec.hijacked)
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	case status < 200 && status != http.StatusSwitchingProtocols:
		rec.inform(status)
	default:
		rec.freeze(status)
	}
}

// inform sends an informational answer with the header as it stands, and
// leaves the outer header as it was.
func (rec *recorder) inform(status int) {
	h := rec.outer.Header()
	replace(h, rec.header)
	rec.outer.WriteHeader(status)
	replace(h, rec.before)
}

// begin answers 200 if the handler has not said anything else.
func (rec *recorder) begin() {
	if rec.status == 0 {
		rec.freeze(http.StatusOK)
	}
}

func (rec *recorder) freeze(status int) {
	rec.status, rec.frozen = status, rec.header.Clone()
	length := rec.frozen.Get("Content-Length")
	if length == "" {
		return
	}
	n, err := strconv.ParseInt(length, 10, 64)
	if err != nil || n < 0 {
		rec.logger.Warn("invalid Content-Length", "value", length)
		rec.frozen.Del("Content-Length")
		return
	}
	rec.declared = n
}

// Write implements [http.ResponseWriter].
func (rec *recorder) Write(p []byte) (int, error) {
	if err := rec.admit(int64(len(p))); err != nil {
		return 0, err
	}
	rec.written += int64(len(p))
	if rec.passing {
		return rec.pass(p)
	}
	held := min(int64(len(p)), rec.maxBuffered-int64(len(rec.body)))
	rec.body = append(rec.body, p[:held]...)
	if held == int64(len(p)) {
		return len(p), nil
	}
	rec.letPass()
	n, err := rec.pass(p[held:])
	return int(held) + n, err
}

// admit decides whether the handler may write n more bytes.
func (rec *recorder) admit(n int64) error {
	if err := rec.closed(); err != nil {
		return err
	}
	rec.begin()
	switch {
	case n == 0:
		return nil
	case !bodyAllowed(rec.status):
		return http.ErrBodyNotAllowed
	case rec.overrun || rec.declared >= 0 && n > rec.declared-rec.written:
		rec.overrun = true
		return http.ErrContentLength
	case rec.atomic && n > rec.maxBuffered-rec.written:
		rec.broken, rec.body = errBufferFull, nil
	}
	return rec.broken
}

// closed returns why nothing can be written any more, or nil.
func (rec *recorder) closed() error {
	if rec.hijacked {
		return http.ErrHijacked
	}
	if rec.finished {
		return errAfterFinish
	}
	return nil
}

// letPass sends what was held back and lets the rest of the answer pass.
func (rec *recorder) letPass() {
	if rec.passing {
		return
	}
	rec.passing = true
	rec.sniff()
	rec.commit()
	rec.transmit(rec.body)
	rec.keep(nil)
}

// pass sends p at once. As long as the body is kept, an error stays hidden
// from the handler, which still works for the replay.
func (rec *recorder) pass(p []byte) (int, error) {
	rec.keep(p)
	rec.transmit(p)
	if rec.dropped && rec.sendErr != nil {
		return 0, rec.sendErr
	}
	return len(p), nil
}

// keep records p, which has been counted, unless the body is too large now.
func (rec *recorder) keep(p []byte) {
	if rec.written > rec.maxStored {
		rec.dropped, rec.body = true, nil
		return
	}
	rec.body = append(rec.body, p...)
}

func (rec *recorder) transmit(p []byte) {
	if rec.sendErr == nil {
		rec.sendErr = writeBody(rec.outer, rec.status, p)
	}
}

// commit sends the header: the handler's in place of the outer one, and our
// own fields on top.
func (rec *recorder) commit() {
	h := rec.outer.Header()
	replace(h, rec.frozen)
	set(h, rec.own)
	rec.outer.WriteHeader(rec.status)
}

// sniff does what net/http does for a body without a Content-Type, so that the
// type can be stored.
func (rec *recorder) sniff() {
	_, typed := rec.frozen["Content-Type"]
	if typed || len(rec.body) == 0 || rec.frozen.Get("Content-Encoding") != "" || rec.frozen.Get("Transfer-Encoding") != "" {
		return
	}
	rec.frozen.Set("Content-Type", http.DetectContentType(rec.body))
}

// FlushError is what [http.ResponseController] calls.
func (rec *recorder) FlushError() error {
	if !rec.canFlush() {
		return http.ErrNotSupported
	}
	if err := rec.closed(); err != nil {
		return err
	}
	rec.begin()
	rec.letPass()
	if rec.sendErr == nil {
		rec.sendErr = http.NewResponseController(rec.outer).Flush()
	}
	if rec.dropped {
		return rec.sendErr
	}
	return nil
}

// Hijack implements [http.Hijacker]. What the handler says on the connection
// cannot be recorded.
func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if rec.atomic {
		return nil, nil, errHijackRefused
	}
	if rec.status != 0 {
		rec.letPass()
	}
	conn, buf, err := http.NewResponseController(rec.outer).Hijack()
	rec.hijacked = rec.hijacked || err == nil
	return conn, buf, err
}

// finish ends the recording. final says whether resp is to be stored; if not,
// the operation is to be released. An error says that the handler broke its
// answer off: it is to be released as well, and answered with 500 unless it is
// passing already.
//
// A response that was hijacked or outgrew maxStored is final without its body.
// Of a hijacked one the status is 101 unless the handler wrote another.
func (rec *recorder) finish() (resp Response, final bool, err error) {
	rec.finished = true
	if rec.hijacked {
		return Response{StatusCode: cmp.Or(rec.status, http.StatusSwitchingProtocols), NotKept: true}, true, nil
	}
	rec.begin()
	if rec.short() {
		rec.broken = cmp.Or(rec.broken, errShortBody)
	}
	if rec.broken != nil {
		return Response{StatusCode: rec.status}, false, rec.broken
	}
	rec.trailers = maps.Clone(rec.header)
	maps.DeleteFunc(rec.trailers, func(name string, _ []string) bool { return !rec.isTrailer(name, nil) })
	if rec.passing {
		rec.sendTrailers()
	} else {
		rec.sniff()
	}
	if rec.written > rec.maxStored {
		return Response{StatusCode: rec.status, NotKept: true}, stored(rec.status), nil
	}
	resp = Response{StatusCode: rec.status, Fields: storedFields(rec.before, rec.frozen), Body: rec.body}
	return resp, stored(rec.status), nil
}

// beInterim makes resp the answer of a handler that has given none, with what
// fields it has set all the same. An answer that is of resp's status, whoever
// gave it, then says when to come back.
func (rec *recorder) beInterim(resp Response) {
	if rec.hijacked {
		return
	}
	const retryAfter = "Retry-After"
	fields := http.Header{}
	set(fields, resp.Fields)
	if rec.status == 0 {
		rec.header.Del("Content-Length")
		rec.header.Set("Content-Type", fields.Get("Content-Type"))
		rec.WriteHeader(resp.StatusCode)
		_, _ = rec.Write(resp.Body)
	}
	if rec.status == resp.StatusCode && rec.frozen.Get(retryAfter) == "" {
		rec.frozen[retryAfter] = fields[retryAfter]
	}
}

// short reports whether the body has less bytes than the client will wait for.
func (rec *recorder) short() bool {
	coding := rec.frozen.Get("Transfer-Encoding") // which rules the length out
	return rec.declared > rec.written && rec.method != http.MethodHead && bodyAllowed(rec.status) &&
		(coding == "" || coding == "identity")
}

// send writes the answer to the client, or what is left of it if it is
// passing already. It is called after finish, and returns the error by which
// the client was lost.
func (rec *recorder) send() error {
	if rec.passing || rec.hijacked {
		return rec.sendErr
	}
	sized := len(rec.trailers) == 0 && len(rec.frozen["Trailer"]) == 0 // a body of known length has no trailers
	seal(rec.frozen, rec.method, rec.status, rec.body, sized)
	rec.commit()
	rec.sendErr = writeBody(rec.outer, rec.status, rec.body)
	rec.sendTrailers()
	return rec.sendErr
}

// sendTrailers hands over the fields that package net/http looks for when the
// handler has returned. They are never stored, so a replay has none.
func (rec *recorder) sendTrailers() {
	h := rec.outer.Header()
	maps.DeleteFunc(h, rec.isTrailer)
	maps.Copy(h, rec.trailers)
}

func (rec *recorder) isTrailer(name string, _ []string) bool {
	return strings.HasPrefix(name, http.TrailerPrefix) || listed(rec.frozen["Trailer"], name)
}

// replace makes dst equal to src.
func replace(dst, src http.Header) {
	clear(dst)
	maps.Copy(dst, src)
}
