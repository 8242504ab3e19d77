package server

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// program is a handler that makes the calls which its bytes stand for, two
// bytes a call, and notes what came of them.
type program struct {
	code     string
	notes    []string
	returned chan struct{}
}

var (
	fuzzCodes  = []int{100, 102, 103, 200, 201, 204, 205, 304, 400, 500, 599, 600, 999, 0, 1000}
	fuzzFields = []Field{
		{"Content-Type", "text/plain"},
		{"Content-Type", ""},
		{"Content-Length", "0"},
		{"Content-Length", "5"},
		{"Content-Encoding", "gzip"},
		{"Content-Encoding", ""},
		{"Transfer-Encoding", "chunked"},
		{"Transfer-Encoding", "identity"},
		{"Trailer", "X-A, X-B"},
		{"Trailer", "X-C"},
		{"X-A", "1"},
		{"X-B", "a\r\nb"},
		{"Connection", "close"},
		{"Date", ""},
		{http.TrailerPrefix + "X-D", "1"},
	}
)

func (p *program) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	defer close(p.returned)
	defer func() {
		if reason := recover(); reason != nil {
			p.note("panic", reason)
			panic(http.ErrAbortHandler)
		}
	}()
	for i := 0; i+1 < len(p.code); i += 2 {
		p.call(w, p.code[i], int(p.code[i+1]))
	}
}

func (p *program) call(w http.ResponseWriter, call byte, arg int) {
	field := fuzzFields[arg%len(fuzzFields)]
	switch call % 9 {
	case 0:
		w.WriteHeader(fuzzCodes[arg%len(fuzzCodes)])
	case 1:
		p.note(w.Write([]byte(strings.Repeat("a", arg%8))))
	case 2:
		p.note(io.WriteString(w, "<html>"+strings.Repeat("b", 16*arg)))
	case 3:
		w.Header().Set(field.Name, field.Value)
	case 4:
		if field.Name != "Content-Length" { // two of them are no answer at all
			w.Header().Add(field.Name, field.Value)
		}
	case 5:
		w.Header().Del(field.Name)
	case 6:
		w.Header()[field.Name] = nil
	case 7:
		p.note(http.NewResponseController(w).Flush())
	case 8:
		p.note(io.Copy(w, strings.NewReader(strings.Repeat("c", arg))))
	}
}

func (p *program) note(result ...any) { p.notes = append(p.notes, fmt.Sprint(result...)) }

// sight is what the handler and a client see of an answer. One that breaks off
// is the same however much of it arrives.
type sight struct {
	notes         []string // of the handler
	broken        bool
	informational []string
	status        int
	header        http.Header
	body          string
	trailer       http.Header
}

func (p *program) look(t *testing.T, url, method string) sight {
	t.Helper()
	var s sight
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
			s.informational = append(s.informational, fmt.Sprint(status, h))
			return nil
		},
	})
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	res, err := fuzzClient.Do(req)
	<-p.returned
	s.notes = p.notes
	if err != nil {
		return sight{notes: p.notes, broken: true}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return sight{notes: p.notes, broken: true}
	}
	for _, name := range []string{"Date", "Content-Length", "Content-Digest", "Connection"} {
		res.Header.Del(name)
	}
	s.status, s.header, s.body, s.trailer = res.StatusCode, res.Header, string(body), res.Trailer
	return s
}

var fuzzClient = &http.Client{
	Transport:     &http.Transport{DisableCompression: true, DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Random calls of a handler must look the same to itself and to a client, with
// and without a recorder between them.
func FuzzRecorder(f *testing.F) {
	f.Add("POST", "\x01\x05")
	f.Add("POST", "\x03\x0a\x00\x04\x02\x01\x07\x00\x01\x07")
	f.Add("HEAD", "\x03\x1c\x01\x05\x01\x01")
	f.Add("POST", "\x03\x4c\x01\x05\x03\x0e\x02\xff")
	var p *program
	serve := func(h http.HandlerFunc) string {
		srv := httptest.NewUnstartedServer(h)
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.Start()
		f.Cleanup(srv.Close)
		return srv.URL
	}
	plain := serve(func(w http.ResponseWriter, r *http.Request) { p.ServeHTTP(w, r) })
	var kept *Response
	recorded := serve(func(w http.ResponseWriter, r *http.Request) {
		rec := newRecorder(w, r, recorderConfig{maxStored: 1000, maxBuffered: 3000, logger: slog.New(slog.DiscardHandler)})
		p.ServeHTTP(rec.writer(), r)
		response, _, err := rec.finish()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if !response.NotKept {
			kept = &response
		}
		_ = rec.send()
	})
	replayed := serve(func(w http.ResponseWriter, r *http.Request) { _ = replay(w, r, *kept) })
	f.Fuzz(func(t *testing.T, method, code string) {
		if method != "HEAD" {
			method = "POST"
		}
		code = code[:min(len(code), 40)]
		p, kept = newProgram(code), nil
		want := p.look(t, plain, method)
		p = newProgram(code)
		first := p.look(t, recorded, method)
		require.Equal(t, want, first)
		if kept == nil {
			return
		}
		second := p.look(t, replayed, method)
		first.informational, first.trailer = nil, nil
		first.header.Del("Trailer")
		require.Equal(t, first, second)
	})
}

func newProgram(code string) *program {
	return &program{code: code, returned: make(chan struct{})}
}
