// Package providertest has stand-ins for the APIs of providers, for tests and
// examples. Each looks for the key where its provider does, makes one thing for
// each key, and answers repetitions as its provider documents. They know nothing
// of package dialect, which is tested against them.
package providertest

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"
)

// API is a stand-in for a provider. It is safe for concurrent use; its fields
// must not be changed after the first request.
type API struct {
	// Key finds the key in a request. It returns "" if there is none, which is
	// answered with 400.
	Key func(r *http.Request, body []byte) string
	// First answers the first request with a key, and Again its repetitions.
	First, Again Answer
	// Busy answers a repetition while the first request runs. The zero Answer
	// means that the repetition waits for it.
	Busy Answer
	// Reused answers another request with the same key. The zero Answer means
	// that this is not noticed.
	Reused Answer
	// Takes is how long a first request runs, even if the client goes away.
	Takes time.Duration

	mu   sync.Mutex
	made map[string]*thing // by key
}

// Answer is an answer. A {n} in its body is the number of the thing made.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// thing is what the first request with a key makes.
type thing struct {
	number  int
	request string // method, target and body
	done    chan struct{}
}

// Effects returns how many things were made.
func (a *API) Effects() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.made)
}

// ServeHTTP implements [http.Handler].
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone away
	}
	key := a.Key(r, body)
	if key == "" {
		http.Error(w, "no key", http.StatusBadRequest)
		return
	}
	request := r.Method + " " + r.URL.String() + " " + string(body)
	made, first := a.claim(key, request)
	switch {
	case first:
		<-time.After(a.Takes)
		close(made.done)
		a.First.write(w, made)
	case a.Reused.Status != 0 && made.request != request:
		a.Reused.write(w, made)
	case a.Busy.Status != 0 && made.running():
		a.Busy.write(w, made)
	default:
		<-made.done
		a.Again.write(w, made)
	}
}

func (a *API) claim(key, request string) (made *thing, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if made := a.made[key]; made != nil {
		return made, false
	}
	if a.made == nil {
		a.made = make(map[string]*thing)
	}
	made = &thing{number: len(a.made) + 1, request: request, done: make(chan struct{})}
	a.made[key] = made
	return made, true
}

func (t *thing) running() bool {
	select {
	case <-t.done:
		return false
	default:
		return true
	}
}

func (a Answer) write(w http.ResponseWriter, t *thing) {
	w.Header().Set("Content-Type", "application/json")
	maps.Copy(w.Header(), a.Header)
	w.WriteHeader(a.Status)
	_, _ = io.WriteString(w, strings.ReplaceAll(a.Body, "{n}", strconv.Itoa(t.number)))
}

// Transport returns a transport that reaches the API whatever the URL, and loses
// the first n answers: what they are about has been made, and the client does
// not know. A request that is given up runs on.
func (a *API) Transport(n int) http.RoundTripper { return &transport{api: a, losing: n} }

type transport struct {
	api    *API
	mu     sync.Mutex
	losing int
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	inner := req.Clone(context.WithoutCancel(req.Context()))
	inner.Body = http.NoBody
	if req.Body != nil {
		defer req.Body.Close()
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		inner.Body = io.NopCloser(bytes.NewReader(body))
	}
	answer := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.api.ServeHTTP(answer, inner)
	}()
	select {
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	case <-done:
	}
	if t.loses() {
		return nil, io.ErrUnexpectedEOF
	}
	resp := answer.Result()
	resp.Request = req
	return resp, nil
}

func (t *transport) loses() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.losing--
	return t.losing >= 0
}
