package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/digest"
)

// wire is a client's end of an answer. Unlike httptest.ResponseRecorder it
// keeps informational answers apart and can lose the client.
type wire struct {
	header        http.Header
	informational []int
	hints         http.Header // of the last informational answer
	status        int
	sent          http.Header
	body          bytes.Buffer
	flushes       int
	err           error // of every write
}

func (w *wire) Header() http.Header { return w.header }

func (w *wire) WriteHeader(status int) {
	if status < 200 {
		w.informational, w.hints = append(w.informational, status), w.header.Clone()
		return
	}
	w.status, w.sent = status, w.header.Clone()
}

func (w *wire) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	return w.body.Write(p)
}

func (w *wire) FlushError() error {
	w.flushes++
	return w.err
}

// untouched reports whether the client has seen nothing, and whether the outer
// header is as it was.
func (w *wire) untouched() bool {
	return w.status == 0 && w.body.Len() == 0 && len(w.header) == 1
}

func record(config recorderConfig) (*recorder, *wire) {
	w := &wire{header: http.Header{"X-Outer": {"1"}}}
	if config.maxStored == 0 {
		config.maxStored, config.maxBuffered = 10, 20
	}
	if config.logger == nil {
		config.logger = slog.New(slog.DiscardHandler)
	}
	return newRecorder(w, httptest.NewRequest("POST", "/", nil), config), w
}

func write(t *testing.T, w http.ResponseWriter, s string) {
	t.Helper()
	n, err := io.WriteString(w, s)
	require.NoError(t, err)
	require.Equal(t, len(s), n)
}

func TestRecorderHoldsTheAnswerBackUntilSend(t *testing.T) {
	t.Parallel()
	rec, w := record(recorderConfig{own: []Field{{"Idempotency-Key", "k"}}})
	h := rec.writer()
	require.Equal(t, "1", h.Header().Get("X-Outer"), "the handler sees what is set outside")
	h.Header().Set("X-Inner", "1")
	h.Header().Del("X-Outer")
	h.Header().Set("Idempotency-Key", "forged")
	h.WriteHeader(http.StatusCreated)
	write(t, h, "hello")
	require.True(t, w.untouched())

	response, final, err := rec.finish()
	require.NoError(t, err)
	require.True(t, final)
	require.Equal(t, Response{
		StatusCode: http.StatusCreated,
		Fields:     []Field{{"Content-Type", "text/plain; charset=utf-8"}, {"X-Inner", "1"}},
		Body:       []byte("hello"),
	}, response)
	require.True(t, w.untouched())

	require.NoError(t, rec.send())
	require.Equal(t, http.StatusCreated, w.status)
	require.Equal(t, "hello", w.body.String())
	require.Equal(t, http.Header{
		"Content-Type": {"text/plain; charset=utf-8"}, "X-Inner": {"1"}, "Idempotency-Key": {"k"},
		"Content-Length": {"5"}, "Content-Digest": {digest.Of([]byte("hello"))},
	}, w.sent)
}

func TestRecorderIsClosedWhenTheHandlerHasReturned(t *testing.T) {
	t.Parallel()
	rec, w := record(recorderConfig{})
	h := rec.writer()
	write(t, h, "hello")
	response, _, err := rec.finish()
	require.NoError(t, err)

	h.WriteHeader(http.StatusTeapot)
	h.Header().Set("X-Late", "1")
	_, err = h.Write([]byte("late"))
	require.ErrorIs(t, err, errAfterFinish)
	require.ErrorIs(t, http.NewResponseController(h).Flush(), errAfterFinish)
	require.NoError(t, rec.send())
	require.Equal(t, "hello", string(response.Body))
	require.Equal(t, "hello", w.body.String())
	require.Equal(t, http.StatusOK, w.status)
	require.NotContains(t, w.sent, "X-Late")
}

// An attempt that is run again begins with a recorder of its own.
func TestRecorderLeavesTheOuterHeaderAsItWas(t *testing.T) {
	t.Parallel()
	rec, w := record(recorderConfig{atomic: true})
	rec.Header().Set("Link", "</a>")
	rec.Header().Del("X-Outer")
	rec.WriteHeader(http.StatusEarlyHints)
	require.Equal(t, []int{http.StatusEarlyHints}, w.informational)
	require.Equal(t, http.Header{"Link": {"</a>"}}, w.hints)
	rec.WriteHeader(http.StatusCreated)
	write(t, rec, "hello")
	_, _, err := rec.finish()
	require.NoError(t, err)
	require.Equal(t, http.Header{"X-Outer": {"1"}}, w.header)
}

func TestRecorderOfAnAtomicRouteLetsNothingPass(t *testing.T) {
	t.Parallel()
	rec, w := record(recorderConfig{atomic: true})
	h := rec.writer()
	_, ok := h.(http.Flusher)
	require.False(t, ok)
	require.ErrorIs(t, http.NewResponseController(h).Flush(), http.ErrNotSupported)
	_, _, err := http.NewResponseController(h).Hijack()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.EqualError(t, err, "idem: a transactional route cannot be hijacked: feature not supported")
	require.Zero(t, rec.status, "the handler can still answer")

	write(t, h, strings.Repeat("x", 20))
	require.ErrorIs(t, http.NewResponseController(h).Flush(), http.ErrNotSupported)
	require.True(t, w.untouched())
	require.Zero(t, w.flushes)

	response, final, err := rec.finish()
	require.NoError(t, err)
	require.True(t, final)
	require.Equal(t, Response{StatusCode: http.StatusOK, NotKept: true}, response)
	require.NoError(t, rec.send())
	require.Equal(t, strings.Repeat("x", 20), w.body.String(), "what is too large to keep is still sent")
}

func TestRecorderOfAnAtomicRouteBreaksWhenTheBufferIsFull(t *testing.T) {
	t.Parallel()
	rec, w := record(recorderConfig{atomic: true})
	rec.WriteHeader(http.StatusCreated)
	write(t, rec, strings.Repeat("x", 20))
	_, err := rec.Write([]byte("x"))
	require.ErrorIs(t, err, errBufferFull)
	_, err = rec.Write([]byte("x"))
	require.ErrorIs(t, err, errBufferFull, "and stays so")
	response, final, err := rec.finish()
	require.ErrorIs(t, err, errBufferFull)
	require.False(t, final)
	require.Equal(t, Response{StatusCode: http.StatusCreated}, response)
	require.True(t, w.untouched())
}

func TestRecorderBehindAWriterThatCannotFlush(t *testing.T) {
	t.Parallel()
	_, w := record(recorderConfig{})
	plain := struct{ http.ResponseWriter }{w}
	rec := newRecorder(plain, httptest.NewRequest("POST", "/", nil), recorderConfig{maxStored: 10, maxBuffered: 10})
	_, ok := rec.writer().(http.Flusher)
	require.False(t, ok)
	write(t, rec.writer(), "x")
	require.ErrorIs(t, http.NewResponseController(rec.writer()).Flush(), http.ErrNotSupported)
	require.True(t, w.untouched())
}

type unwrapping struct{ http.ResponseWriter }

func (w unwrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestRecorderFindsTheFlusherInside(t *testing.T) {
	t.Parallel()
	_, w := record(recorderConfig{})
	rec := newRecorder(unwrapping{w}, httptest.NewRequest("POST", "/", nil), recorderConfig{maxStored: 10, maxBuffered: 10})
	rec.writer().(http.Flusher).Flush()
	require.Equal(t, 1, w.flushes)
	require.Equal(t, http.StatusOK, w.status)
}

func TestRecorderLetsPassWhatIsTooLargeToHoldBack(t *testing.T) {
	t.Parallel()
	rec, w := record(recorderConfig{maxStored: 40, maxBuffered: 20, own: []Field{{"Idempotency-Key", "k"}}})
	write(t, rec, strings.Repeat("x", 20))
	require.True(t, w.untouched())
	write(t, rec, "y")
	require.Equal(t, strings.Repeat("x", 20)+"y", w.body.String())
	require.Equal(t, http.Header{
		"X-Outer": {"1"}, "Idempotency-Key": {"k"}, "Content-Type": {"text/plain; charset=utf-8"},
	}, w.sent)
	write(t, rec, strings.Repeat("z", 19))
	response, final, err := rec.finish()
	require.NoError(t, err)
	require.True(t, final)
	require.Equal(t, w.body.String(), string(response.Body), "it is kept all the same")
	require.Equal(t, []Field{{"Content-Type", "text/plain; charset=utf-8"}}, response.Fields)
	require.NoError(t, rec.send())
	require.Equal(t, 40, w.body.Len(), "and sent once")
}

func TestRecorderGivesUpKeepingWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	for name, passing := range map[string]bool{"held back": false, "passing": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec, w := record(recorderConfig{})
			if passing {
				rec.writer().(http.Flusher).Flush()
			}
			write(t, rec, strings.Repeat("x", 10))
			write(t, rec, "y")
			response, final, err := rec.finish()
			require.NoError(t, err)
			require.True(t, final)
			require.Equal(t, Response{StatusCode: http.StatusOK, NotKept: true}, response)
			require.NoError(t, rec.send())
			require.Equal(t, strings.Repeat("x", 10)+"y", w.body.String())
			require.Equal(t, passing, len(rec.body) == 0, "what was sent is dropped")
		})
	}
}

func TestRecorderTakesLittleMemoryForALongStream(t *testing.T) { //nolint:paralleltest // measures allocations
	const limit, length = 1 << 20, 1 << 30
	w := &counting{header: http.Header{}}
	rec := newRecorder(w, httptest.NewRequest("POST", "/", nil), recorderConfig{maxStored: limit, maxBuffered: 2 * limit})
	chunk := make([]byte, 64<<10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range length / len(chunk) {
		_, err := rec.Write(chunk)
		require.NoError(t, err)
	}
	runtime.ReadMemStats(&after)
	require.Equal(t, int64(length), w.n)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16*limit))
}

// counting counts what is written to it.
type counting struct {
	header http.Header
	n      int64
}

func (w *counting) Header() http.Header { return w.header }
func (w *counting) WriteHeader(int)     {}
func (w *counting) Write(p []byte) (int, error) {
	w.n += int64(len(p))
	return len(p), nil
}

func TestRecorderWorksOnForAClientThatIsGone(t *testing.T) {
	t.Parallel()
	gone := errors.New("connection reset")
	rec, w := record(recorderConfig{})
	h := rec.writer()
	write(t, h, "a")
	require.NoError(t, http.NewResponseController(h).Flush())
	w.err = gone
	write(t, h, "b")
	require.NoError(t, http.NewResponseController(h).Flush())
	require.Equal(t, 1, w.flushes)
	write(t, h, "c")
	response, final, err := rec.finish()
	require.NoError(t, err)
	require.True(t, final)
	require.Equal(t, "abc", string(response.Body))
	require.ErrorIs(t, rec.send(), gone)
	require.Equal(t, "a", w.body.String())
}

// Nothing is left to work for.
func TestRecorderTellsTheHandlerThatTheClientIsGoneOnceTheBodyIsTooLarge(t *testing.T) {
	t.Parallel()
	gone := errors.New("connection reset")
	rec, w := record(recorderConfig{})
	h := rec.writer()
	h.(http.Flusher).Flush()
	w.err = gone
	write(t, h, strings.Repeat("x", 10))
	_, err := h.Write([]byte("y"))
	require.ErrorIs(t, err, gone)
	require.ErrorIs(t, http.NewResponseController(h).Flush(), gone)
}

func TestRecorderTakesABodyThatIsTooShortForBroken(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		method, length string
		status         int
		broken         error
	}{
		"too short":                {"POST", "6", 200, errShortBody},
		"complete":                 {"POST", "5", 200, nil},
		"no number":                {"POST", "six", 200, nil},
		"negative":                 {"POST", "-6", 200, nil},
		"too large to be a number": {"POST", "9223372036854775808", 200, nil},
		"an answer to HEAD":        {"HEAD", "6", 200, nil},
		"an answer without body":   {"POST", "6", 304, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := newRecorder(httptest.NewRecorder(), httptest.NewRequest(tt.method, "/", nil),
				recorderConfig{maxStored: 10, maxBuffered: 10, logger: slog.New(slog.DiscardHandler)})
			rec.Header().Set("Content-Length", tt.length)
			rec.WriteHeader(tt.status)
			_, _ = rec.Write([]byte("hello"))
			_, final, err := rec.finish()
			require.Equal(t, tt.broken, err)
			require.Equal(t, tt.broken == nil, final)
		})
	}
}

func TestRecorderRefusesMoreThanTheDeclaredLength(t *testing.T) {
	t.Parallel()
	rec, w := record(recorderConfig{})
	rec.Header().Set("Content-Length", "5")
	write(t, rec, "hell")
	_, err := rec.Write([]byte("o!"))
	require.ErrorIs(t, err, http.ErrContentLength)
	_, err = rec.Write([]byte("o"))
	require.ErrorIs(t, err, http.ErrContentLength, "as net/http has it")
	_, _, err = rec.finish()
	require.ErrorIs(t, err, errShortBody)
	require.True(t, w.untouched())
}

func TestRecorderLogsWhatNetHTTPWouldLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	rec, _ := record(recorderConfig{logger: slog.New(slog.NewTextHandler(&log, nil))})
	rec.Header().Set("Content-Length", "five")
	rec.WriteHeader(http.StatusCreated)
	rec.WriteHeader(http.StatusTeapot)
	require.Contains(t, log.String(), `msg="invalid Content-Length" value=five`)
	require.Contains(t, log.String(), `msg="superfluous WriteHeader" status=418`)
}

func TestRecorderPanicsForAStatusThatIsNone(t *testing.T) {
	t.Parallel()
	for _, status := range []int{-1, 0, 99, 1000} {
		rec, w := record(recorderConfig{})
		require.PanicsWithValue(t, fmt.Sprintf("invalid WriteHeader code %d", status), func() { rec.WriteHeader(status) })
		require.True(t, w.untouched())
	}
}

// Over HTTP/2 there is nothing to hijack.
func TestRecorderSurvivesAHijackThatFails(t *testing.T) {
	t.Parallel()
	for name, started := range map[string]bool{"before the header": false, "behind it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec, w := record(recorderConfig{})
			if started {
				rec.WriteHeader(http.StatusCreated)
			}
			_, _, err := http.NewResponseController(rec.writer()).Hijack()
			require.ErrorIs(t, err, http.ErrNotSupported)
			write(t, rec, "x")
			response, final, err := rec.finish()
			require.NoError(t, err)
			require.True(t, final)
			require.Equal(t, "x", string(response.Body))
			require.NoError(t, rec.send())
			require.Equal(t, "x", w.body.String())
		})
	}
}

func TestRecorderKeepsNoTrailers(t *testing.T) {
	t.Parallel()
	rec, w := record(recorderConfig{})
	rec.Header().Set("Trailer", "X-Sum")
	write(t, rec, "x")
	rec.Header().Set("X-Sum", "1")
	rec.Header().Set(http.TrailerPrefix+"X-More", "2")
	response, _, err := rec.finish()
	require.NoError(t, err)
	require.Equal(t, []Field{{"Content-Type", "text/plain; charset=utf-8"}}, response.Fields)
	require.NoError(t, rec.send())
	require.NotContains(t, w.sent, "Content-Length", "which would leave no room for trailers")
	require.Equal(t, []string{"1"}, w.header["X-Sum"])
	require.Equal(t, []string{"2"}, w.header[http.TrailerPrefix+"X-More"])
}
