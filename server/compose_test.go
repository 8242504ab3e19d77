package server_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/digest"
	"github.com/idemhttp/idem/server"
)

// compressing is a middleware as many are: it compresses for who asks for it,
// and drops the fields that are about the bytes as they were.
func compressing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Encoding")
		if accept := r.Header.Get("Accept-Encoding"); !strings.Contains(accept, "gzip") || strings.Contains(accept, "q=0") {
			next.ServeHTTP(w, r)
			return
		}
		coder := gzip.NewWriter(w)
		next.ServeHTTP(&compressor{w, coder}, r)
		_ = coder.Close()
	})
}

type compressor struct {
	http.ResponseWriter
	coder *gzip.Writer
}

func (w *compressor) WriteHeader(status int) {
	h := w.Header()
	h.Del("Content-Length")
	h.Del("Content-Digest")
	h.Set("Content-Encoding", "gzip")
	w.ResponseWriter.WriteHeader(status)
}

func (w *compressor) Write(p []byte) (int, error) {
	if w.Header().Get("Content-Encoding") == "" {
		w.WriteHeader(http.StatusOK)
	}
	return w.coder.Write(p)
}

// document is 10 KB of JSON.
var document = `{"list":[` + strings.Repeat(`"entry",`, 1279) + `""]}`

func describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, document)
}

func accepting(coding string) *http.Request {
	r := post("{}")
	r.Header.Set("Accept-Encoding", coding)
	return r
}

// requireDocument demands the document in the given coding, and fields that
// agree with it.
func requireDocument(t *testing.T, w *httptest.ResponseRecorder, coding string) {
	t.Helper()
	require.Equal(t, http.StatusCreated, w.Code)
	require.Equal(t, coding, w.Header().Get("Content-Encoding"))
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, []string{"Accept-Encoding"}, w.Header()["Vary"])
	if length := w.Header().Get("Content-Length"); length != "" {
		require.Equal(t, strconv.Itoa(w.Body.Len()), length)
	}
	if sum := w.Header().Get("Content-Digest"); sum != "" {
		require.Equal(t, digest.Of(w.Body.Bytes()), sum)
	}
	body := w.Body.Bytes()
	if coding == "gzip" {
		decoder, err := gzip.NewReader(bytes.NewReader(body))
		require.NoError(t, err)
		body, err = io.ReadAll(decoder)
		require.NoError(t, err)
	}
	require.Equal(t, document, string(body))
}

// Every client gets the answer in a coding that it takes, whoever was first.
func TestCompressionOutside(t *testing.T) {
	t.Parallel()
	for _, accepts := range [][]string{
		{"gzip", "identity", "gzip;q=0", "gzip"},
		{"identity", "gzip"},
		{"gzip;q=0", "gzip"},
	} {
		s := newService(nil, describe)
		outside := compressing(s)
		for _, accept := range accepts {
			coding := ""
			if accept == "gzip" {
				coding = "gzip"
			}
			requireDocument(t, serve(outside, accepting(accept)), coding)
		}
		require.EqualValues(t, 1, s.runs.Load())
	}
}

// The handler's request asks for no coding, so nothing is compressed that is
// kept for everybody.
func TestCompressionInside(t *testing.T) {
	t.Parallel()
	s := newService(nil, compressing(http.HandlerFunc(describe)).ServeHTTP)
	for _, accept := range []string{"gzip", "identity", "gzip;q=0", "gzip"} {
		requireDocument(t, serve(s, accepting(accept)), "")
	}
	require.EqualValues(t, 1, s.runs.Load())
}

func TestAHandlerThatCompressesWhoeverAsks(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Accept-Encoding", "gzip")
		compressing(http.HandlerFunc(describe)).ServeHTTP(w, r)
	})
	requireDocument(t, serve(s, accepting("gzip")), "gzip")
	requireDocument(t, serve(s, accepting("identity")), "")
	requireDocument(t, serve(s, accepting("gzip;q=0")), "")
	requireDocument(t, serve(s, accepting("gzip")), "gzip")
	require.EqualValues(t, 1, s.runs.Load())
}

// The client is told that time is up, the operation is finished all the same.
func TestTimeoutHandlerOutside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, func(w http.ResponseWriter, _ *http.Request) {
			_, isFlusher := w.(http.Flusher)
			assert.False(t, isFlusher, "as without our middleware")
			time.Sleep(3 * time.Second)
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "done")
		})
		outside := http.TimeoutHandler(s, time.Second, "too slow")
		require.Equal(t, http.StatusServiceUnavailable, serve(outside, post("{}")).Code)
		time.Sleep(3 * time.Second)
		retry := serve(outside, post("{}"))
		require.Equal(t, http.StatusCreated, retry.Code)
		require.Equal(t, "done", retry.Body.String())
		require.Equal(t, "true", retry.Header().Get("Idempotent-Replayed"))
		require.EqualValues(t, 1, s.runs.Load())
	})
}

// What TimeoutHandler says in place of a slow handler is not final, so a retry
// calls that again; HandlerTimeout is the better choice.
func TestTimeoutHandlerInside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if op, _ := server.OperationFrom(r.Context()); op.Attempt == 1 {
				<-r.Context().Done()
			}
			w.WriteHeader(http.StatusCreated)
		}), time.Second, "too slow").ServeHTTP)
		require.Equal(t, http.StatusServiceUnavailable, serve(s, post("{}")).Code)
		require.Equal(t, http.StatusCreated, serve(s, post("{}")).Code)
		require.Equal(t, "true", serve(s, post("{}")).Header().Get("Idempotent-Replayed"))
		require.EqualValues(t, 2, s.runs.Load())
	})
}

// A handler that returns before it has written what it announced has most
// likely lost what it copied from.
func TestAnAnswerShorterThanItsLengthIsNotFinal(t *testing.T) {
	t.Parallel()
	length := "10"
	s := newService(nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", length)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "hello")
	})
	requireProblem(t, serve(s, post("{}")), http.StatusInternalServerError, "OPERATION_FAILED")
	require.Equal(t, server.ResultFailed, s.lastEvent().Result)
	length = "5"
	second := serve(s, post("{}"))
	require.Equal(t, "hello", second.Body.String())
	requireReplay(t, second, serve(s, post("{}")))
	require.EqualValues(t, 2, s.runs.Load())
}

// A handler may remove what a middleware outside has set, though only from
// the first answer.
func TestOuterFieldsThatTheHandlerRemoves(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("X-Outer") })
	outside := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "1")
		s.ServeHTTP(w, r)
	})
	require.Empty(t, serve(outside, post("{}")).Header()["X-Outer"])
	require.Equal(t, []string{"1"}, serve(outside, post("{}")).Header()["X-Outer"])
}
