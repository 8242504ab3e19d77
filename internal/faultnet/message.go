package faultnet

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Request is the record of a request as it came off the wire.
type Request struct {
	Conn   int         // the connection it came on, numbered from 1
	Method string      // "" until the head has been read
	Target string      // of the request line: path and query
	Header http.Header // parsed from Head
	Head   string      // request line and fields, byte for byte, with the blank line
	Body   []byte      // without the chunked coding
	Raw    []byte      // all bytes, as they came
	Whole  bool        // head and body have been read to their end

	arrived time.Time
}

// Key returns the value of the Idempotency-Key field.
func (r Request) Key() string { return r.Header.Get("Idempotency-Key") }

// message is an HTTP/1.1 message of either direction.
type message struct {
	raw    []byte
	head   int // length of the head within raw
	body   []byte
	header http.Header
	toEnd  bool // the body had no framing and went on to the end of the stream
}

// readHead reads up to and including the blank line. Bytes that came before an
// error are in the message.
func (m *message) readHead(r *bufio.Reader) error {
	for {
		line, err := r.ReadBytes('\n')
		m.raw = append(m.raw, line...)
		m.head = len(m.raw)
		if err != nil {
			return err
		}
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			return nil
		}
	}
}

// readBody reads a body that is framed as the header says; length is that of
// a body without framing: 0 for a request, -1 (to the end of the stream) for a
// response.
func (m *message) readBody(r *bufio.Reader, length int64) error {
	if strings.EqualFold(m.header.Get("Transfer-Encoding"), "chunked") {
		return m.readChunks(r)
	}
	if declared := m.header.Get("Content-Length"); declared != "" {
		n, err := strconv.ParseInt(declared, 10, 64)
		if err != nil {
			return err
		}
		length = n
	}
	var source io.Reader = r
	m.toEnd = length < 0
	if !m.toEnd {
		source = io.LimitReader(r, length)
	}
	body, err := io.ReadAll(source)
	m.raw, m.body = append(m.raw, body...), append(m.body, body...)
	if err == nil && !m.toEnd && int64(len(body)) < length {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (m *message) readChunks(r *bufio.Reader) error {
	for {
		line, err := r.ReadBytes('\n')
		m.raw = append(m.raw, line...)
		if err != nil {
			return err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(string(line)), ";")
		n, err := strconv.ParseUint(size, 16, 31)
		if err != nil {
			return err
		}
		if n == 0 { // what is left is a trailer section, which ends as a head does
			trailer := message{}
			err := trailer.readHead(r)
			m.raw = append(m.raw, trailer.raw...)
			return err
		}
		chunk := make([]byte, n+2) // with its CRLF
		got, err := io.ReadFull(r, chunk)
		m.raw = append(m.raw, chunk[:got]...)
		m.body = append(m.body, chunk[:min(got, int(n))]...)
		if err != nil {
			return err
		}
	}
}

// readRequest reads a request. In front of the body it calls expected if the
// client waits for a 100 (Continue).
func readRequest(r *bufio.Reader, expected func()) (Request, error) {
	var m message
	err := m.readHead(r)
	record := Request{Head: string(m.raw), Raw: m.raw}
	if err != nil {
		return record, err
	}
	parsed, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(m.raw)))
	if err != nil {
		return record, err
	}
	m.header = framing(parsed.Header, parsed.TransferEncoding)
	record.Method, record.Target, record.Header = parsed.Method, parsed.RequestURI, parsed.Header
	if strings.EqualFold(parsed.Header.Get("Expect"), "100-continue") {
		expected()
	}
	err = m.readBody(r, 0)
	record.Raw, record.Body, record.Whole = m.raw, m.body, err == nil
	return record, err
}

// readResponse reads the final response to a request of the given method.
// Informational responses are left out.
func readResponse(r *bufio.Reader, method string) (message, error) {
	for {
		var m message
		if err := m.readHead(r); err != nil {
			return m, err
		}
		parsed, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(m.raw)), &http.Request{Method: method})
		if err != nil {
			return m, err
		}
		parsed.Body.Close()
		status := parsed.StatusCode
		if status >= 100 && status <= 199 && status != http.StatusSwitchingProtocols {
			continue
		}
		if method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified {
			return m, nil
		}
		m.header = framing(parsed.Header, parsed.TransferEncoding)
		return m, m.readBody(r, -1)
	}
}

// framing puts back the Transfer-Encoding that net/http takes out of a header.
func framing(h http.Header, transferEncoding []string) http.Header {
	framed := http.Header{"Content-Length": h["Content-Length"]}
	if len(transferEncoding) > 0 {
		framed["Transfer-Encoding"] = transferEncoding
	}
	return framed
}
