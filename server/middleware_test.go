package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

func TestARepetitionGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/payments/1")
		w.Header().Add("Link", "</a>; rel=next")
		w.Header().Add("Link", "</b>; rel=prev")
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		w.Header().Set("Set-Cookie", "session=1")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("1,200\n"))
	})
	first := serve(s, post(`{"amount":1200}`))
	require.Equal(t, http.StatusCreated, first.Code)
	require.Equal(t, "key", first.Header().Get("Idempotency-Key"))
	require.Equal(t, "session=1", first.Header().Get("Set-Cookie"))
	first.Header().Del("Set-Cookie") // belongs to one answer alone
	for range 3 {
		requireReplay(t, first, serve(s, post(`{ "amount" : 1200 }`)))
	}
	require.EqualValues(t, 1, s.runs.Load())
	require.Equal(t, map[server.Result]int{server.ResultExecuted: 1, server.ResultReplayed: 3}, s.results())
}

func TestAnotherRequestUnderTheKeyIsRefused(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]*http.Request{
		"body":          request("POST", "/payments?to=alice", "key", `{"amount":200}`),
		"query":         request("POST", "/payments?to=mallory", "key", `{"amount":100}`),
		"missing query": request("POST", "/payments", "key", `{"amount":100}`),
		"path":          request("POST", "/refunds?to=alice", "key", `{"amount":100}`),
		"method":        request("PATCH", "/payments?to=alice", "key", `{"amount":100}`),
		"spelling":      request("post", "/payments?to=alice", "key", `{"amount":100}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(nil, created)
			original := func() *http.Request { return request("POST", "/payments?to=alice", "key", `{"amount":100}`) }
			first := serve(s, original())
			second := serve(s, other)
			requireProblem(t, second, http.StatusConflict, "IDEMPOTENCY_KEY_REUSE")
			require.Equal(t, "key", second.Header().Get("Idempotency-Key"))
			require.NotContains(t, second.Body.String(), "operation_id", "it is none of this request's business")
			requireReplay(t, first, serve(s, original()))
			require.EqualValues(t, 1, s.runs.Load())
		})
	}
}

func TestWhatIsOutsideTheFingerprintDoesNotMatter(t *testing.T) {
	t.Parallel()
	s := newService(nil, created)
	first := serve(s, request("POST", "/payments?a=1&b=2", "key", `{"amount":100,"to":"alice"}`))
	r := request("POST", "http://other.example/payments?b=2&a=1", "key", `{ "to": "alice", "amount": 100 }`)
	r.Header.Set("User-Agent", "another")
	requireReplay(t, first, serve(s, r))
}

func TestAccountsDoNotShareKeys(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
		op, _ := server.OperationFrom(r.Context())
		_, _ = io.WriteString(w, op.Account)
	})
	for _, name := range []string{"alice", "bob", "alice", "bob"} {
		r := post("{}")
		r.Header.Set("X-Account", name)
		require.Equal(t, name, serve(s, r).Body.String())
	}
	require.EqualValues(t, 2, s.runs.Load())
}

// These answers are final: a repetition gets them again.
func TestFinalAnswersAreStored(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 201, 202, 204, 301, 303, 400, 402, 404, 405, 409, 410, 412, 413, 422, 451, 499} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := newService(nil, answers(status))
			first := serve(s, post("{}"))
			require.Equal(t, status, first.Code)
			requireReplay(t, first, serve(s, post("{}")))
			require.EqualValues(t, 1, s.runs.Load())
		})
	}
}

// After these answers a repetition is executed, and the key stays with its
// request.
func TestPassingFailuresAreNotStored(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 408, 423, 425, 429, 500, 501, 502, 503, 504, 599} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := newService(nil, answers(status))
			require.Equal(t, status, serve(s, post("{}")).Code)
			require.Equal(t, server.ResultFailed, s.lastEvent().Result)
			require.Equal(t, status, s.lastEvent().StatusCode)
			requireProblem(t, serve(s, post(`{"other":1}`)), http.StatusConflict, "IDEMPOTENCY_KEY_REUSE")

			second := serve(s, post("{}"))
			require.Equal(t, http.StatusCreated, second.Code)
			require.Empty(t, second.Header()["Idempotent-Replayed"])
			require.Equal(t, 2, s.lastEvent().Operation.Attempt)
			requireReplay(t, second, serve(s, post("{}")))
			require.EqualValues(t, 2, s.runs.Load())
		})
	}
}

func TestKeySyntax(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines []string
		code  string // "" if the key is good
		echo  string
	}{
		"missing":          {nil, "IDEMPOTENCY_KEY_MISSING", ""},
		"empty":            {[]string{""}, "IDEMPOTENCY_KEY_INVALID", ""},
		"blank":            {[]string{"   "}, "IDEMPOTENCY_KEY_INVALID", ""},
		"256 bytes":        {[]string{strings.Repeat("k", 256)}, "IDEMPOTENCY_KEY_INVALID", ""},
		"6,400 bytes":      {[]string{strings.Repeat("\x80k", 3200)}, "IDEMPOTENCY_KEY_INVALID", ""},
		"Cyrillic":         {[]string{"\u043a\u043b\u044e\u0447"}, "IDEMPOTENCY_KEY_INVALID", ""},
		"byte 0xFF":        {[]string{"\xff"}, "IDEMPOTENCY_KEY_INVALID", ""},
		"blank inside":     {[]string{"a b"}, "IDEMPOTENCY_KEY_INVALID", ""},
		"two lines":        {[]string{"a", "b"}, "IDEMPOTENCY_KEY_INVALID", ""},
		"two equal lines":  {[]string{"a", "a"}, "IDEMPOTENCY_KEY_INVALID", ""},
		"unclosed quote":   {[]string{`"8e03`}, "IDEMPOTENCY_KEY_INVALID", ""},
		"255 bytes":        {[]string{strings.Repeat("k", 255)}, "", strings.Repeat("k", 255)},
		"a comma inside":   {[]string{"a,b"}, "", "a,b"},
		"blanks around":    {[]string{" 8e03\t"}, "", "8e03"},
		"the quoted form":  {[]string{`"8e03"`}, "", `"8e03"`},
		"the visible ones": {[]string{`!#$%&'()*+-./:;<=>?@[]^_{|}~`}, "", `!#$%&'()*+-./:;<=>?@[]^_{|}~`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(nil, created)
			r := post("{}")
			r.Header["Idempotency-Key"] = c.lines
			if c.lines == nil {
				r.Header.Del("Idempotency-Key")
			}
			w := serve(s, r)
			require.Equal(t, c.echo, w.Header().Get("Idempotency-Key"))
			if c.code == "" {
				require.Equal(t, http.StatusCreated, w.Code)
				return
			}
			requireProblem(t, w, http.StatusBadRequest, c.code)
			require.Zero(t, s.runs.Load())
			require.Zero(t, s.store.called("claim"))
		})
	}
}

// The key comes back on every answer but the refusal of a malformed one, and
// the marker on replays alone.
func TestEchoAndMarker(t *testing.T) {
	t.Parallel()
	fail := true
	s := newService(func(mw *server.Middleware) { mw.MaxBody = 100 }, func(w http.ResponseWriter, r *http.Request) {
		if fail {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Idempotency-Key", "forged")
		created(w, r)
	})
	check := func(what string, r *http.Request, status int, echo, marker []string) {
		t.Helper()
		w := serve(s, r)
		require.Equal(t, status, w.Code, what)
		require.Equal(t, echo, w.Header()["Idempotency-Key"], what)
		require.Equal(t, marker, w.Header()["Idempotent-Replayed"], what)
	}
	key, yes := []string{"key"}, []string{"true"}
	check("not stored", post("{}"), 503, key, nil)
	fail = false
	check("executed again", post("{}"), 201, key, nil)
	check("replayed", post("{}"), 201, key, yes)
	check("reused", post(`{"other":1}`), 409, key, nil)
	check("too large", post(strings.Repeat(" ", 101)), 413, key, nil)
	check("no account", withAccount(post("{}"), ""), 401, key, nil)
	check("malformed", request("POST", "/payments", "a b", "{}"), 400, nil, nil)
	s.store.fail("claim", errOutage)
	check("store down", post("{}"), 503, key, nil)
}

func withAccount(r *http.Request, account string) *http.Request {
	r.Header.Set("X-Account", account)
	return r
}

func TestTheQuotedFormIsTheSameKey(t *testing.T) {
	t.Parallel()
	s := newService(nil, created)
	serve(s, request("POST", "/payments", "8e03", "{}"))
	w := serve(s, request("POST", "/payments", `"8e03"`, "{}"))
	require.Equal(t, "true", w.Header().Get("Idempotent-Replayed"))
	require.Equal(t, `"8e03"`, w.Header().Get("Idempotency-Key"), "echoed as it was sent")
}

type refusedError struct{ status int }

func (e refusedError) Error() string   { return "secret detail" }
func (e refusedError) HTTPStatus() int { return e.status }

func TestAccountsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		account string
		err     error
		status  int
		code    string
	}{
		"no name":               {"", nil, 401, "ACCOUNT_REQUIRED"},
		"no account":            {"", server.ErrNoAccount, 401, "ACCOUNT_REQUIRED"},
		"no account, wrapped":   {"ignored", fmt.Errorf("token: %w", server.ErrNoAccount), 401, "ACCOUNT_REQUIRED"},
		"forbidden":             {"", refusedError{403}, 403, "ACCOUNT_REFUSED"},
		"forbidden, wrapped":    {"", fmt.Errorf("scope: %w", refusedError{403}), 403, "ACCOUNT_REFUSED"},
		"no status of a refuse": {"", refusedError{200}, 503, "ACCOUNT_UNAVAILABLE"},
		"lookup failed":         {"", errors.New("secret detail"), 503, "ACCOUNT_UNAVAILABLE"},
		"too long":              {strings.Repeat("a", 256), nil, 400, "ACCOUNT_REFUSED"},
		"NUL":                   {"a\x00b", nil, 400, "ACCOUNT_REFUSED"},
		"bad UTF-8":             {"a\xff", nil, 400, "ACCOUNT_REFUSED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(func(mw *server.Middleware) {
				mw.Account = func(*http.Request) (string, error) { return c.account, c.err }
			}, created)
			w := serve(s, post("{}"))
			requireProblem(t, w, c.status, c.code)
			require.Equal(t, "key", w.Header().Get("Idempotency-Key"))
			require.NotContains(t, w.Body.String(), "secret")
			require.Equal(t, c.status == 503, w.Header().Get("Retry-After") != "")
			require.Zero(t, s.runs.Load())
			require.Zero(t, s.store.called("claim"))
			if c.status == 403 || c.status == 503 { // the service's own reasons
				require.ErrorIs(t, s.lastEvent().Err, c.err)
			}
		})
	}
}

// A replay is guarded by the same gates as an execution.
func TestAReplayNeedsTheAccountToo(t *testing.T) {
	t.Parallel()
	tokens := map[string]string{"t1": "alice", "t2": "bob"}
	s := newService(func(mw *server.Middleware) {
		mw.Account = func(r *http.Request) (string, error) {
			name, lacksScope := strings.CutSuffix(tokens[r.Header.Get("Authorization")], " without the scope")
			if lacksScope {
				return "", refusedError{http.StatusForbidden}
			}
			return name, nil
		}
	}, created)
	as := func(token string) *http.Request {
		r := post("{}")
		r.Header.Set("Authorization", token)
		r.Header.Set("X-Account-Id", "alice")
		return r
	}
	require.Equal(t, http.StatusCreated, serve(s, as("t1")).Code)
	foreign := serve(s, as("t2"))
	require.Empty(t, foreign.Header()["Idempotent-Replayed"], "bob's own operation, whatever his fields claim")
	require.EqualValues(t, 2, s.runs.Load())
	tokens["t1"] = "alice without the scope"
	requireProblem(t, serve(s, as("t1")), http.StatusForbidden, "ACCOUNT_REFUSED")
	delete(tokens, "t1")
	requireProblem(t, serve(s, as("t1")), http.StatusUnauthorized, "ACCOUNT_REQUIRED")
}

func TestBodiesUpToTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for name, c := range map[string]struct {
		size    int64
		chunked bool
		status  int
	}{
		"exactly the limit":          {limit, false, 201},
		"exactly the limit, chunked": {limit, true, 201},
		"one byte more":              {limit + 1, false, 413},
		"one byte more, chunked":     {limit + 1, true, 413},
		"3 MiB chunked":              {3 * limit, true, 413},
		"10 GiB chunked":             {10 << 30, true, 413},
		"an absurd length":           {math.MaxInt64, false, 413},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
				n, err := io.Copy(io.Discard, r.Body)
				assert.NoError(t, err)
				assert.Equal(t, c.size, n)
				assert.Equal(t, c.size, r.ContentLength)
				w.WriteHeader(http.StatusCreated)
			})
			upload := func() *http.Request {
				r := httptest.NewRequest("POST", "/files", io.LimitReader(zeros{}, c.size))
				r.Header.Set("Idempotency-Key", "key")
				if !c.chunked {
					r.ContentLength = c.size
				}
				return r
			}
			w := serve(s, upload())
			require.Equal(t, c.status, w.Code)
			if c.status == http.StatusRequestEntityTooLarge {
				requireProblem(t, w, c.status, "REQUEST_TOO_LARGE")
				require.Zero(t, s.store.called("claim"))
				require.Equal(t, http.StatusCreated, serve(newServiceOn(s, created), post("{}")).Code, "the key is still free")
				return
			}
			requireReplay(t, w, serve(s, upload()))
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// newServiceOn returns another service on the store of s.
func newServiceOn(s *service, handler http.HandlerFunc) *service {
	return newService(func(mw *server.Middleware) { mw.Store = s.store }, handler)
}

func TestAnUploadTakesLessThanTwiceItsLimit(t *testing.T) { //nolint:paralleltest // measures allocations
	const limit = 1 << 20
	for name, c := range map[string]struct {
		size   int64
		known  bool
		status int
	}{
		"at the limit":          {limit, true, 201},
		"at the limit, chunked": {limit, false, 201},
		"over it":               {limit + 1, true, 413},
		"over it, chunked":      {10 << 30, false, 413},
	} {
		s := newService(nil, created)
		r := httptest.NewRequest("POST", "/files", io.LimitReader(zeros{}, c.size))
		r.Header.Set("Idempotency-Key", "key")
		if c.known {
			r.ContentLength = c.size
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		status := serve(s, r).Code
		runtime.ReadMemStats(&after)
		require.Equal(t, c.status, status, name)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*limit), name)
	}
}

func TestAnIncompleteUploadDoesNotClaimTheKey(t *testing.T) {
	t.Parallel()
	for name, upload := range map[string]string{
		"less than Content-Length": "Content-Length: 20\r\n\r\n{\"amount\":12",
		"no last chunk":            "Transfer-Encoding: chunked\r\n\r\nc\r\n{\"amount\":12\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(nil, created)
			answered := make(chan server.Event, 1)
			s.mw.Observe = func(_ context.Context, e server.Event) { answered <- e }
			srv := httptest.NewServer(s)
			defer srv.Close()
			conn, err := net.Dial("tcp", srv.Listener.Addr().String())
			require.NoError(t, err)
			_, err = io.WriteString(conn, "POST /payments HTTP/1.1\r\nHost: x\r\nIdempotency-Key: key\r\n"+upload)
			require.NoError(t, err)
			require.NoError(t, conn.Close())

			e := <-answered
			require.Equal(t, server.ResultIncomplete, e.Result)
			require.Equal(t, http.StatusBadRequest, e.StatusCode)
			require.ErrorIs(t, e.Err, io.ErrUnexpectedEOF)
			require.Zero(t, s.store.called("claim"))
			require.Zero(t, s.runs.Load())

			whole := post(`{"amount":1200,"x":1}`)
			require.Equal(t, http.StatusCreated, serve(s, whole).Code)
		})
	}
}

func TestABodyThatCannotBeReadIsAnswered(t *testing.T) {
	t.Parallel()
	s := newService(nil, created)
	r := post("")
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), failingReader{}))
	members := requireProblem(t, serve(s, r), http.StatusBadRequest, "REQUEST_INCOMPLETE")
	require.Equal(t, "Nothing was done; send the whole request again with the same key.", members["detail"])
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestABodyThatWasReadOutsideIsNotTakenForEmpty(t *testing.T) {
	t.Parallel()
	s := newService(func(mw *server.Middleware) {
		mw.Account = func(r *http.Request) (string, error) {
			_, err := io.ReadAll(r.Body)
			return "acme", err
		}
	}, created)
	requireProblem(t, serve(s, post(`{"amount":1}`)), http.StatusInternalServerError, "MIDDLEWARE_MISCONFIGURED")
	require.Zero(t, s.runs.Load())
	require.Contains(t, s.log.String(), "was read outside")
}

// Both would wait for each other, and the answer "in flight" would be kept.
func TestARequestIsNotGuardedTwice(t *testing.T) {
	t.Parallel()
	s := newService(nil, created)
	outside := newServiceOn(s, s.ServeHTTP)
	requireProblem(t, serve(outside, post("{}")), http.StatusInternalServerError, "MIDDLEWARE_MISCONFIGURED")
	require.Equal(t, server.ResultMisconfigured, s.lastEvent().Result)
	require.Equal(t, server.ResultFailed, outside.lastEvent().Result)
	require.Contains(t, s.log.String(), "guards the request already")
	require.Zero(t, s.runs.Load())
	require.Equal(t, "attempt 2", serve(s, post("{}")).Body.String(), "the key is free again")

	another := newServiceOn(s, func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Idempotency-Key", "another")
		s.ServeHTTP(w, r)
	})
	require.Equal(t, "attempt 1", serve(another, request("POST", "/payments", "one", "{}")).Body.String(), "another operation is none of this")
}

func TestTheHandlerSeesTheWholeRequest(t *testing.T) {
	t.Parallel()
	form := url.Values{"amount": {"100"}, "to": {"a b"}}.Encode()
	const multi = "--b\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n100\r\n--b--\r\n"
	for name, c := range map[string]struct {
		contentType, body, other string
		read                     func(r *http.Request) (string, error)
	}{
		"json.Decoder": {"application/json", `{"amount":100}`, `{"amount":200}`, func(r *http.Request) (string, error) {
			var v struct {
				Amount int `json:"amount"`
			}
			err := json.NewDecoder(r.Body).Decode(&v)
			return fmt.Sprint(v.Amount), err
		}},
		"ParseForm": {"application/x-www-form-urlencoded", form, form + "0", func(r *http.Request) (string, error) {
			err := r.ParseForm()
			return r.PostForm.Get("amount"), err
		}},
		"ParseMultipartForm": {
			"multipart/form-data; boundary=b", multi, strings.Replace(multi, "100", "200", 1),
			func(r *http.Request) (string, error) {
				err := r.ParseMultipartForm(1 << 20)
				return r.PostForm.Get("amount"), err
			},
		},
		"ReadAll, twice": {"text/plain", "100", "200", func(r *http.Request) (string, error) {
			first, err := io.ReadAll(r.Body)
			if err != nil {
				return "", err
			}
			second, err := io.ReadAll(r.Body)
			return string(first) + string(second), err
		}},
		"not at all": {"text/plain", "100", "200", func(*http.Request) (string, error) { return "100", nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
				assert.EqualValues(t, len(c.body), r.ContentLength)
				assert.Empty(t, r.TransferEncoding)
				assert.Empty(t, r.Header["Accept-Encoding"])
				got, err := c.read(r)
				assert.NoError(t, err)
				_, _ = io.WriteString(w, got)
				again, err := r.GetBody()
				assert.NoError(t, err)
				whole, err := io.ReadAll(again)
				assert.NoError(t, err)
				assert.Equal(t, c.body, string(whole))
			})
			send := func(body string) *httptest.ResponseRecorder {
				r := post(body)
				r.Header.Set("Content-Type", c.contentType)
				r.Header.Set("Accept-Encoding", "gzip")
				r.TransferEncoding, r.ContentLength = []string{"chunked"}, -1
				return serve(s, r)
			}
			require.Equal(t, "100", send(c.body).Body.String())
			requireProblem(t, send(c.other), http.StatusConflict, "IDEMPOTENCY_KEY_REUSE")
		})
	}
}

func TestARequestWithoutBody(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(_ http.ResponseWriter, r *http.Request) {
		assert.Equal(t, http.NoBody, r.Body)
		assert.Zero(t, r.ContentLength)
	})
	r := post("")
	r.Body = nil // as a caller that is no server may leave it
	first := serve(s, r)
	require.Equal(t, http.StatusOK, first.Code)
	requireReplay(t, first, serve(s, post("")))
}

func TestWhatTheHandlerDoesToItsRequestIsItsOwnAffair(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		clear(body)
		r.URL.Path, r.URL.RawQuery, r.Method = "/other", "x=1", http.MethodGet
		r.Header.Set("Idempotency-Key", "other")
		r.Header.Set("X-Account", "mallory")
		r.Header["Content-Type"][0] = "text/plain"
		w.WriteHeader(http.StatusCreated)
	})
	r := post(`{"amount":1}`)
	first := serve(http.StripPrefix("", s), r)
	require.Equal(t, "/payments", r.URL.Path, "those outside still see the original")
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
	require.Equal(t, "key", first.Header().Get("Idempotency-Key"))
	requireReplay(t, first, serve(s, post(`{"amount":1}`)))
	require.EqualValues(t, 1, s.runs.Load())
	stats, err := s.store.Store.(server.Stater).Stats(t.Context())
	require.NoError(t, err)
	stats.Bytes = 0
	require.Equal(t, server.Stats{Completed: 1}, stats, "there is no other record")
}

func TestMethodsThatAreNotGovernedPassThrough(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(w http.ResponseWriter, r *http.Request) {
		_, ok := server.OperationFrom(r.Context())
		assert.False(t, ok)
		w.Header().Set("Accept-Encoding-Seen", r.Header.Get("Accept-Encoding"))
	})
	for i, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE", "get", "PUT", "DELETE", "QUERY"} {
		for _, key := range []string{"key", "", "malformed key"} {
			r := httptest.NewRequest(method, "/payments", nil)
			if key != "" {
				r.Header.Set("Idempotency-Key", key)
			}
			r.Header.Set("Accept-Encoding", "gzip")
			w := serve(s, r)
			require.Equal(t, http.StatusOK, w.Code)
			require.Equal(t, "gzip", w.Header().Get("Accept-Encoding-Seen"))
			require.Empty(t, w.Header()["Idempotency-Key"])
		}
		require.EqualValues(t, 3*(i+1), s.runs.Load())
	}
	require.Zero(t, s.store.called("claim"))
	require.Empty(t, s.results())
}

func TestMethodsAreGovernedAsConfigured(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"POST", "PATCH", "post", "pOsT"} {
		s := newService(nil, created)
		first := serve(s, request(method, "/payments", "key", "{}"))
		requireReplay(t, first, serve(s, request(method, "/payments", "key", "{}")))
		require.Equal(t, strings.ToUpper(method), s.lastEvent().Method, "metrics know the configured spelling alone")
	}
	s := newService(func(mw *server.Middleware) { mw.Methods = []string{} }, created)
	requireProblem(t, serve(s, httptest.NewRequest("POST", "/payments", nil)), http.StatusBadRequest, "IDEMPOTENCY_KEY_MISSING")
	s = newService(func(mw *server.Middleware) { mw.Methods = []string{"PUT", "PURGE"} }, created)
	for _, method := range []string{"PUT", "PURGE"} {
		r := httptest.NewRequest(method, "/payments", nil)
		requireProblem(t, serve(s, r), http.StatusBadRequest, "IDEMPOTENCY_KEY_MISSING")
	}
	require.Equal(t, http.StatusCreated, serve(s, httptest.NewRequest("POST", "/payments", nil)).Code)
}

func TestCORSKnowsEveryFieldOfTheContract(t *testing.T) {
	t.Parallel()
	require.Equal(t, "Idempotency-Key", server.CORSAllowHeaders)
	s := newService(func(mw *server.Middleware) { mw.Wait = server.NoWait }, func(w http.ResponseWriter, r *http.Request) {
		inFlight := httptest.NewRecorder()
		r.Context().Value(http.ServerContextKey).(http.Handler).ServeHTTP(inFlight, post("{}"))
		assert.Equal(t, http.StatusAccepted, inFlight.Code)
		w.Header().Set("Seen", strings.Join(slices.Collect(maps.Keys(inFlight.Header())), ", "))
	})
	ctx := context.WithValue(t.Context(), http.ServerContextKey, s)
	serve(s, post("{}").WithContext(ctx))
	replay := serve(s, post("{}"))
	names := strings.Split(replay.Header().Get("Seen"), ", ")
	names = append(names, slices.Collect(maps.Keys(replay.Header()))...)
	exposed := strings.Split(server.CORSExposeHeaders, ", ")
	for _, name := range names {
		switch name {
		case "Content-Type", "Content-Length", "Seen": // always exposed, and the test's own
		default:
			require.Contains(t, exposed, name)
		}
	}
	require.Subset(t, names, exposed, "none is exposed in vain")
}

func TestOptionalKeys(t *testing.T) {
	t.Parallel()
	s := newService(func(mw *server.Middleware) { mw.Optional = true }, created)
	for range 2 {
		r := post("{}")
		r.Header.Del("Idempotency-Key")
		w := serve(s, r)
		require.Equal(t, http.StatusCreated, w.Code)
		require.Empty(t, w.Header()["Idempotency-Key"])
	}
	require.EqualValues(t, 2, s.runs.Load())
	require.Equal(t, map[server.Result]int{server.ResultUnkeyed: 2}, s.results())
	requireReplay(t, serve(s, post("{}")), serve(s, post("{}")))
	requireProblem(t, serve(s, request("POST", "/payments", "", "{}")), http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID")
}

func TestAnswersTooLargeToKeep(t *testing.T) {
	t.Parallel()
	const limit = 256 << 10
	for size, kept := range map[int]bool{limit: true, limit + 1: false, 300 << 10: false} {
		s := newService(func(mw *server.Middleware) { mw.MaxStored = limit }, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(make([]byte, size))
		})
		first := serve(s, post("{}"))
		require.Equal(t, http.StatusCreated, first.Code)
		require.Equal(t, size, first.Body.Len())
		second := serve(s, post("{}"))
		require.EqualValues(t, 1, s.runs.Load())
		if kept {
			requireReplay(t, first, second)
			continue
		}
		members := requireProblem(t, second, http.StatusConflict, "RESPONSE_NOT_KEPT")
		require.InDelta(t, http.StatusCreated, members["original_status"], 0)
		require.Equal(t, s.events[0].Operation.ID.String(), members["operation_id"])
		require.Empty(t, second.Header()["Idempotent-Replayed"])
	}
}

func TestFieldsOfMiddlewaresOutsideStaySingle(t *testing.T) {
	t.Parallel()
	s := newService(nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Vary", "Origin, Accept")
		w.WriteHeader(http.StatusCreated)
	})
	var n int
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Trace", fmt.Sprint(n))
		w.Header().Set("Vary", "Origin")
		s.ServeHTTP(w, r)
	})
	for i := range 2 {
		h := serve(outer, post("{}")).Header()
		require.Equal(t, []string{"*"}, h["Access-Control-Allow-Origin"])
		require.Equal(t, []string{fmt.Sprint(i + 1)}, h["Trace"], "of this answer, not of the stored one")
		require.Equal(t, []string{"Origin, Accept"}, h["Vary"])
	}
}

func TestAnInvalidConfigurationIsExplained(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*server.Middleware){
		"Store":           func(mw *server.Middleware) { mw.Store = nil },
		"Account":         func(mw *server.Middleware) { mw.Account = nil },
		"Methods":         func(mw *server.Middleware) { mw.Methods = []string{"POST", "get"} },
		"Methods, a list": func(mw *server.Middleware) { mw.Methods = []string{"POST, PATCH"} },
		"Methods, empty":  func(mw *server.Middleware) { mw.Methods = []string{""} },
		"Wait":            func(mw *server.Middleware) { mw.Wait = -1 },
		"Lease":           func(mw *server.Middleware) { mw.Lease = 999 * time.Microsecond },
		"TTL":             func(mw *server.Middleware) { mw.TTL = -time.Hour },
		"HandlerTimeout":  func(mw *server.Middleware) { mw.HandlerTimeout = -1 },
		"StoreTimeout":    func(mw *server.Middleware) { mw.StoreTimeout = -1 },
		"MaxBody":         func(mw *server.Middleware) { mw.MaxBody = -1 },
		"MaxStored":       func(mw *server.Middleware) { mw.MaxStored = -1 },
		"MaxBuffered":     func(mw *server.Middleware) { mw.MaxBuffered = -1 },
		"MaxWaiters":      func(mw *server.Middleware) { mw.MaxWaiters = -1 },
		"Takeover":        func(mw *server.Middleware) { mw.Takeover = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			field, _, _ := strings.Cut(name, ",")
			s := newService(spoil, created)
			var wrong *server.ConfigError
			require.ErrorAs(t, s.mw.Validate(), &wrong)
			require.Equal(t, field, wrong.Field)
			require.Contains(t, wrong.Error(), "idem: Middleware."+field)
			require.Contains(t, wrong.Reason, ": ", "what is wrong, and the cure")
			require.Contains(t, s.log.String(), "Middleware."+field)
			require.Equal(t, 1, strings.Count(s.log.String(), "misconfigured"))
			for _, method := range []string{"POST", "GET"} {
				w := serve(s, request(method, "/payments", "key", "{}"))
				requireProblem(t, w, http.StatusInternalServerError, "MIDDLEWARE_MISCONFIGURED")
			}
			require.Equal(t, 1, strings.Count(s.log.String(), "misconfigured"), "it is logged once")
			require.Zero(t, s.runs.Load())
		})
	}
	require.NoError(t, newService(nil, created).mw.Validate())
	require.NoError(t, newService(func(mw *server.Middleware) {
		mw.Wait, mw.HandlerTimeout = server.NoWait, server.NoTimeout
	}, created).mw.Validate())
}

func TestAllFaultsOfAConfigurationAreNamed(t *testing.T) {
	t.Parallel()
	err := new(server.Middleware).Validate()
	require.ErrorContains(t, err, "Store is nil")
	require.ErrorContains(t, err, "Account is nil")
}

func TestNoHandlerIsAConfigurationError(t *testing.T) {
	t.Parallel()
	s := newService(nil, created)
	w := serve(s.mw.Handler(nil), post("{}"))
	requireProblem(t, w, http.StatusInternalServerError, "MIDDLEWARE_MISCONFIGURED")
}
