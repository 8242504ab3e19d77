package refserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"

	"github.com/idemhttp/idem/internal/keyfield"
	"github.com/idemhttp/idem/internal/problem"
)

const typeJSON = "application/json"

func writeJSON(w http.ResponseWriter, contentType string, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // the values are our own structs, maps and slices
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

func writeProblem(w http.ResponseWriter, status int, code, detail string) {
	writeJSON(w, problem.ContentType, status, problem.Details{
		Title: http.StatusText(status), Status: status, Code: code, Detail: detail,
	})
}

// heldAnswer keeps an answer back until it is decided what becomes of it.
type heldAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *heldAnswer) Header() http.Header { return a.header }

func (a *heldAnswer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
}

func (a *heldAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// fresh reports whether the answer comes from an execution that ended just now.
func (a *heldAnswer) fresh() bool {
	return a.status != http.StatusAccepted && a.header.Get(keyfield.Replayed) == ""
}

// send sends the answer with at most n bytes of its body.
func (a *heldAnswer) send(w http.ResponseWriter, n int) {
	w.WriteHeader(cmp.Or(a.status, http.StatusOK))
	_, _ = w.Write(a.body.Next(n))
}
