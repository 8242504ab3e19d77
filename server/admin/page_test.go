package admin_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/admin"
	"github.com/idemhttp/idem/server/memstore"
)

var update = flag.Bool("update", false, "write the screenshot of the docs")

// shelf is a store that shows what it is told to.
type shelf struct {
	server.Store
	stats   server.Stats
	entries []server.Entry
	err     error
	asked   int
}

func (s *shelf) Stats(context.Context) (server.Stats, error) {
	s.asked++
	return s.stats, s.err
}

func (s *shelf) Inspect(_ context.Context, id server.ID) (server.Entry, error) {
	for _, e := range s.entries {
		if e.Account == id.Account && e.Key == id.Key {
			return e, s.err
		}
	}
	return server.Entry{}, s.err
}

func (s *shelf) Unfinished(_ context.Context, limit int) (entries []server.Entry, err error) {
	for _, e := range s.entries {
		if e.Status == server.Processing && len(entries) < limit {
			entries = append(entries, e)
		}
	}
	return entries, s.err
}

func (s *shelf) Lost(context.Context, int) ([]server.Entry, error) { return nil, s.err }

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// processing returns an operation that began an age ago and whose lease lasts
// for another while.
func processing(account, key string, age, leaseLeft time.Duration) server.Entry {
	return server.Entry{
		Operation: server.Operation{ID: uuid.MustParse("03b0b752-eda7-8ce3-a86c-a6ab16aeb7b0"), Account: account, Key: key, Attempt: 1},
		Status:    server.Processing,
		CreatedAt: now.Add(-age), LeaseUntil: now.Add(leaseLeft), ExpiresAt: now.Add(leaseLeft + 48*time.Hour), SeenAt: now,
	}
}

func completed(account, key string) server.Entry {
	e := processing(account, key, 90*time.Second, 0)
	e.Status, e.ResponseStatus, e.LeaseUntil, e.CompletedAt = server.Completed, 201, time.Time{}, now.Add(-89*time.Second)
	return e
}

func conflict(account, key string, result server.Result) server.Event {
	return server.Event{
		Result: result, Method: "POST", Pattern: "POST /payments", StatusCode: http.StatusConflict,
		Operation: server.Operation{Account: account, Key: key},
	}
}

func get(t *testing.T, p *admin.Page, query string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/idempotency?"+query, nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
	return w
}

// query asks for a key.
func query(account, key string) string {
	return url.Values{"account": {account}, "key": {key}}.Encode()
}

// hostile are names that try to be something else on a page.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img/src=x/onerror=alert(1)>`, `'onfocus='alert(1)'autofocus='`, `{{.}}`, `</style></title><b>`,
	`javascript:alert(1)`, `&lt;b&gt;&amp;`, `?account=other&key=x#`, `%3Cscript%3E`, "`${alert(1)}`", `<!--`, `\u003cscript\u003e`,
}

func TestThePageInABrowser(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	for name, test := range map[string]func(*testing.T, *browser){
		"it shows what there is, and nothing of it becomes part of the page": showsEverything,
		"the look-up works without scripts":                                  looksUpWithoutScripts,
		"it refreshes itself and leaves the form alone":                      refreshes,
		"it looks as in the docs":                                            looksAsInTheDocs,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, b)
		})
	}
}

func showsEverything(t *testing.T, browser *browser) {
	t.Helper()
	s := &shelf{stats: server.Stats{Processing: 2, Completed: 41, Failed: 3}, entries: []server.Entry{
		processing("acme", "slow", 3*time.Minute, 20*time.Second),
		processing("globex", "lost", time.Hour, -10*time.Minute),
		completed("acme", "done"),
	}}
	p := &admin.Page{Store: s, StoreInterval: 1, Logger: quiet}
	for _, name := range hostile {
		s.entries = append(s.entries, processing(name, name, time.Second, time.Second))
		p.Observe(t.Context(), conflict(name, name, server.ResultReused))
	}
	ts := httptest.NewServer(p)
	defer ts.Close()
	b := browser.open(t, ts.URL)
	require.Equal(t, "Idempotency", b.text(`document.title`))
	require.Equal(t, "2", b.text(`document.querySelector(".processing dd").textContent`))
	require.Equal(t, "41", b.text(`document.querySelector(".completed dd").textContent`))
	require.Equal(t, "3", b.text(`document.querySelector(".failed dd").textContent`))
	row := func(n int) string {
		return b.text(fmt.Sprintf(`Array.from(document.querySelectorAll("#in-flight tbody tr")[%d].cells, c => c.textContent).join("|")`, n))
	}
	require.Equal(t, "acme|slow|1|3m 0s|20s left", row(0))
	require.Equal(t, "globex|lost|1|1h 0m|lost 10m 0s ago", row(1))
	for i, name := range hostile {
		require.Equal(t, name+"|"+name+"|1|1s|1s left", row(2+i))
		cells := fmt.Sprintf(`Array.from(document.querySelectorAll("#conflicts tbody tr")[%d].cells, c => c.textContent).slice(1).join("|")`, len(hostile)-1-i)
		require.Equal(t, name+"|"+name+"|POST /payments|reused", b.text(cells))
	}

	for i, name := range hostile { // each link leads to its own record
		b.open(ts.URL)
		b.text(fmt.Sprintf(`document.querySelectorAll("#in-flight a")[%d].click()`, 2+i))
		b.waitForPage()
		require.Equal(t, name, b.text(`document.querySelector("input[name=account]").value`))
		require.Equal(t, name, b.text(`document.querySelector("input[name=key]").value`))
		require.Contains(t, b.text(`document.querySelector("#found").innerText`), "processing")
	}
	b.requireNoTrouble()
}

func looksUpWithoutScripts(t *testing.T, browser *browser) {
	t.Helper()
	e := completed("acme", "done")
	e.Attempt = 2
	ts := httptest.NewServer(&admin.Page{Store: &shelf{entries: []server.Entry{e}}, Logger: quiet})
	defer ts.Close()
	b := browser.open(t, ts.URL)
	b.disableScripts()
	b.open(ts.URL)
	b.fill("account", "acme")
	b.fill("key", "done")
	b.pressEnter()
	found := func() string {
		return b.text(`Array.from(document.querySelectorAll("#found tr"), r => r.cells[0].textContent + ": " + r.cells[1].textContent).join("\n")`)
	}
	require.Equal(t, strings.Join([]string{
		"status: completed",
		"operation: 03b0b752-eda7-8ce3-a86c-a6ab16aeb7b0",
		"attempt: 2",
		"answered: 201",
		"began: 2026-11-30 11:58:30 UTC, 1m 30s ago",
		"completed: 2026-11-30 11:58:31 UTC",
		"expires: 2026-12-02 12:00:00 UTC",
	}, "\n"), found())
	require.Equal(t, "acme", b.text(`document.querySelector("input[name=account]").value`))

	b.fill("key", "unused")
	b.pressEnter()
	require.Equal(t, "There is no record of unused of acme.", b.text(`document.querySelector("#found").innerText`))
	require.Contains(t, b.text(`document.querySelector("header").innerText`), "reload the page")
	b.requireNoTrouble()
}

func refreshes(t *testing.T, browser *browser) {
	t.Helper()
	p := &admin.Page{Store: new(memstore.Store), StoreInterval: 1, Logger: quiet}
	ts := httptest.NewServer(p)
	defer ts.Close()
	b := browser.open(t, ts.URL)
	require.Contains(t, b.text(`document.querySelector("#conflicts").innerText`), "None.")
	b.fill("key", "half of a ke")
	p.Observe(t.Context(), conflict("acme", "k-1", server.ResultNotKept))
	shows := func(selector, text string) func() bool {
		return func() bool { return strings.Contains(b.text(`document.querySelector("`+selector+`").innerText`), text) }
	}
	require.Eventually(t, shows("#conflicts", "not_kept"), time.Minute, 200*time.Millisecond)
	require.Equal(t, "half of a ke", b.text(`document.activeElement.value`))
	b.requireNoTrouble()

	require.Equal(t, "none", b.text(`getComputedStyle(document.querySelector(".stale")).display`))
	ts.Close()
	require.Eventually(t, shows("header", "not refreshed"), time.Minute, 200*time.Millisecond)
}

// The picture of the docs is of what the page looks like.
func looksAsInTheDocs(t *testing.T, browser *browser) {
	t.Helper()
	s := &shelf{
		stats: server.Stats{
			Processing: 3, Completed: 18_204, Failed: 12, Bytes: 43 << 20, OldestProcessing: 12 * time.Minute, CleanupLag: 41 * time.Second,
		},
		entries: []server.Entry{
			processing("acme", "order-2026-11-7731", 12*time.Minute, -11*time.Minute),
			processing("globex", "5f0c9f4e-8a4e-4c5d-9d39-0d6f1f0f2a11", 48*time.Second, 22*time.Second),
			processing("acme", "2c9a1e9b-4b9e-4d6e-9e67-6e3b2e7c1e32", 1300*time.Millisecond, 28*time.Second),
			completed("initech", "invoice-0042"),
		},
	}
	p := &admin.Page{Store: s, Middlewares: []*server.Middleware{new(server.Middleware)}, Logger: quiet}
	p.Observe(t.Context(), conflict("initech", "invoice-0042", server.ResultReused))
	p.Observe(t.Context(), conflict("acme", "order-2026-11-7731", server.ResultIndeterminate))
	ts := httptest.NewServer(p)
	defer ts.Close()
	b := browser.open(t, ts.URL+"?"+query("initech", "invoice-0042"))
	const width, height = 1000, 1100
	shot := b.screenshot(width, height)
	picture, err := png.Decode(bytes.NewReader(shot))
	require.NoError(t, err)
	require.Equal(t, width, picture.Bounds().Dx())
	require.Equal(t, height, picture.Bounds().Dy())
	if *update {
		require.NoError(t, os.WriteFile("../../docs/admin-page.png", shot, 0o644))
	}
}

func TestThePageAllowsItselfNothingMore(t *testing.T) {
	t.Parallel()
	h := get(t, new(admin.Page), "").Header()
	require.Regexp(t, `^default-src 'none'; script-src 'sha256-[^' ]+'; style-src 'sha256-[^' ]+'; connect-src 'self'; `+
		`img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'$`, h.Get("Content-Security-Policy"))
	require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
	require.Equal(t, "no-referrer", h.Get("Referrer-Policy"))
	require.Equal(t, "no-store", h.Get("Cache-Control"))
}

func TestThePageChangesNothing(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		w := httptest.NewRecorder()
		new(admin.Page).ServeHTTP(w, httptest.NewRequest(method, "/debug/idempotency", nil))
		require.Equal(t, http.StatusMethodNotAllowed, w.Code)
		require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	}
}

func TestAnswersAreNeverShown(t *testing.T) {
	t.Parallel()
	store := new(memstore.Store)
	guard := &server.Middleware{Store: store, Account: func(*http.Request) (string, error) { return "acme", nil }}
	h := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Answer", "secret field")
		_, _ = io.Copy(w, r.Body)
	}))
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("secret body"))
	r.Header.Set("Idempotency-Key", "k-1")
	h.ServeHTTP(httptest.NewRecorder(), r)
	body := get(t, &admin.Page{Store: store}, query("acme", "k-1")).Body.String()
	require.Contains(t, body, `<span class="status completed">completed</span>`)
	require.NotContains(t, body, "secret")
}

func TestARecordIsShownAsItIs(t *testing.T) {
	t.Parallel()
	accepted := processing("acme", "accepted", time.Minute, time.Minute)
	accepted.ResponseStatus = http.StatusAccepted
	notKept := completed("acme", "not kept")
	notKept.NotKept = true
	expired := completed("acme", "expired")
	expired.ExpiresAt = now
	failed := completed("acme", "failed")
	failed.Status, failed.ResponseStatus, failed.CompletedAt = server.Failed, 0, time.Time{}
	p := &admin.Page{Store: &shelf{entries: []server.Entry{
		accepted, notKept, expired, failed, processing("acme", "lost", time.Minute, 0),
	}}}
	for key, want := range map[string][]string{
		"accepted": {`<span class="status processing">processing</span></td>`, "<td>202, for the time being</td>", "until 2026-11-30 12:01:00 UTC"},
		"not kept": {"<td>201, the answer was not kept</td>"},
		"expired":  {"completed</span>, expired</td>", `<th scope="row">expired</th>`},
		"failed":   {"failed</span></td>", "<td>not yet</td>"},
		"lost":     {"processing</span>, its owner was lost</td>"},
	} {
		body := get(t, p, query("acme", key)).Body.String()
		for _, part := range want {
			require.Contains(t, body, part, key)
		}
	}
}

func TestWhatAStoreCannotTellThePageSays(t *testing.T) {
	t.Parallel()
	type plain struct{ server.Store }
	for _, p := range []*admin.Page{
		{},
		{Store: plain{new(memstore.Store)}},
		{Store: &shelf{err: fmt.Errorf("no: %w", errors.ErrUnsupported)}},
	} {
		body := get(t, p, "").Body.String()
		require.Contains(t, body, "does not count its records")
		require.Contains(t, body, "does not list its operations")
		require.NotContains(t, body, "could not be asked")
	}
}

func TestAStoreThatFailsIsLoggedAndTheRestIsShown(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p := &admin.Page{Store: &shelf{err: errors.New("no connection to db.internal")}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	p.Observe(t.Context(), conflict("acme", "k-1", server.ResultReused))
	body := get(t, p, query("acme", "k-1")).Body.String()
	require.Equal(t, 2, strings.Count(body, "could not be asked"))
	require.NotContains(t, body, "db.internal")
	require.Contains(t, body, "reused")
	require.Contains(t, log.String(), "db.internal")
}

func TestTheStoreIsNotKeptBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(shelf)
		p := &admin.Page{Store: s}
		for _, want := range []struct {
			after time.Duration
			asked int
		}{{0, 1}, {4 * time.Second, 1}, {time.Second, 2}, {4 * time.Second, 2}} {
			time.Sleep(want.after)
			get(t, p, "")
			require.Equal(t, want.asked, s.asked)
		}
		slow := &slowShelf{}
		p = &admin.Page{Store: slow}
		get(t, p, "") // which takes a second
		time.Sleep(18 * time.Second)
		get(t, p, "")
		require.Equal(t, 1, slow.asked)
		time.Sleep(time.Second)
		get(t, p, "")
		require.Equal(t, 2, slow.asked)
	})
}

// slowShelf takes a second to count.
type slowShelf struct{ shelf }

func (s *slowShelf) Stats(ctx context.Context) (server.Stats, error) {
	time.Sleep(time.Second)
	return s.shelf.Stats(ctx)
}

func TestConflictsAreRememberedForAWhile(t *testing.T) {
	t.Parallel()
	p := new(admin.Page)
	own := conflict("acme", "own", server.ResultReplayed)
	success := own
	success.StatusCode, success.Operation.Key = http.StatusCreated, "success"
	inFlight := conflict("acme", "waits", server.ResultInFlight)
	for _, e := range []server.Event{own, success, inFlight, conflict("acme", "lost", server.ResultIndeterminate)} {
		p.Observe(t.Context(), e)
	}
	body := get(t, p, "").Body.String()
	require.Equal(t, 2, strings.Count(body, "<td>POST /payments</td>"))
	require.Contains(t, body, "<td>handler</td>")
	require.Contains(t, body, "<td>indeterminate</td>")

	for i := range 51 {
		p.Observe(t.Context(), conflict("acme", fmt.Sprintf("key-%02d", i), server.ResultReused))
	}
	body = get(t, p, "").Body.String()
	require.Equal(t, 50, strings.Count(body, "<td>reused</td>"))
	require.NotContains(t, body, "key-00")
	require.Less(t, strings.Index(body, "key-50"), strings.Index(body, "key-01"), "the latest first")
}

func TestThePageShowsWhatTheProcessIsBusyWith(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		guard := &server.Middleware{Store: new(memstore.Store), Account: func(*http.Request) (string, error) { return "acme", nil }}
		h := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(100 * time.Millisecond) }))
		p := &admin.Page{Store: guard.Store, Middlewares: []*server.Middleware{guard}}
		for range 3 {
			go func() {
				r := httptest.NewRequest(http.MethodPost, "/payments", nil)
				r.Header.Set("Idempotency-Key", "k-1")
				h.ServeHTTP(httptest.NewRecorder(), r)
			}()
		}
		synctest.Wait()
		body := get(t, p, "").Body.String()
		require.Contains(t, body, "<dt>executing here</dt><dd>1</dd>")
		require.Contains(t, body, "<dt>waiting here</dt><dd>2</dd>")
		require.Contains(t, body, "<td>acme</td>")
		time.Sleep(time.Second)
	})
}

var quiet = slog.New(slog.DiscardHandler)
