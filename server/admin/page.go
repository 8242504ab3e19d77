// Package admin shows people what the idempotency middleware does: a page with
// what its store holds, which operations are in flight, the latest conflicts,
// and the look-up of a key.
//
//	page := &admin.Page{Store: store}
//	guard := &server.Middleware{Store: store, Account: account, Observe: page.Observe}
//	mux.Handle("/debug/idempotency", page) // on a listener for operators
//
// It shows accounts, keys and times, but never what was sent or answered, and it
// changes nothing. Accounts and keys are nobody's business but the operators':
// serve it where only they can reach it.
package admin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // the page
	"encoding/base64"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/idemhttp/idem/server"
)

// Page is an [http.Handler] that answers GET and HEAD, with a page that needs
// nothing else, and that refreshes itself where scripts run. The zero value shows
// nothing but the conflicts that it is told of. It is safe for concurrent use;
// its fields must not be changed after first use.
type Page struct {
	// Store is asked for what it holds if it is a [server.Stater], and for its
	// operations if it is a [server.Inspector]. What it cannot tell the page
	// says that it cannot. May be nil.
	Store server.Store
	// StoreTimeout bounds each question. Zero means 5 s.
	StoreTimeout time.Duration
	// StoreInterval is for how long what the store said is shown to everybody,
	// the look-up of a key aside: it may have to read all its records. If it
	// took long, that is longer, so that the store is not kept busy. Zero means
	// 5 s.
	StoreInterval time.Duration
	// Middlewares are those of this process. The page shows what they are busy
	// with.
	Middlewares []*server.Middleware
	// Logger gets the failures of the store. Nil means [slog.Default].
	Logger *slog.Logger

	conflicts conflicts
	mu        sync.Mutex // held by who asks the store
	overview  overview
}

// unfinished is how many operations in flight are listed.
const unfinished = 20

// overview is what the store said last.
type overview struct {
	At       time.Time
	Counted  bool
	Stats    server.Stats
	Listed   bool
	InFlight []server.Entry
	Err      error
	until    time.Time // for how long it is shown
}

// lookUp is what became of the question for one key.
type lookUp struct {
	ID    server.ID
	Asked bool
	Entry server.Entry
	Err   error
}

// view is what the template shows.
type view struct {
	Style     template.CSS
	Script    template.JS
	Now       time.Time
	Load      server.Load
	Watched   bool
	Overview  overview
	Limit     int
	Conflicts []conflict
	LookUp    lookUp
}

var (
	//go:embed page.html
	html string
	//go:embed page.css
	style string
	//go:embed page.js
	script string

	page = template.Must(template.New("page").Funcs(template.FuncMap{
		"bytes": formatBytes, "duration": formatDuration, "instant": formatInstant,
		"abs": time.Duration.Abs,
	}).Parse(html))

	// policy lets the page do what it does and nothing else.
	policy = "default-src 'none'; script-src " + source(script) + "; style-src " + source(style) +
		"; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

// source names an inline script or style in a content security policy.
func source(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer") // the URL may have a key
	h.Set("Cache-Control", "no-store")
	var b bytes.Buffer
	if err := page.Execute(&b, p.view(r)); err != nil {
		p.logger().ErrorContext(r.Context(), "the page of the idempotency middleware cannot be shown", "error", err)
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(b.Bytes())
}

func (p *Page) view(r *http.Request) view {
	v := view{
		Style: template.CSS(style), Script: template.JS(script), //nolint:gosec // they are ours
		Now: time.Now(), Watched: len(p.Middlewares) > 0, Limit: unfinished,
		Overview:  p.look(r.Context()),
		Conflicts: p.conflicts.latest(),
		LookUp:    p.lookUp(r.Context(), server.ID{Account: r.FormValue("account"), Key: r.FormValue("key")}),
	}
	for _, m := range p.Middlewares {
		load := m.Load()
		v.Load.Executing += load.Executing
		v.Load.Waiting += load.Waiting
		v.Load.Pending += load.Pending
	}
	return v
}

// look returns what the store holds, or held a moment ago.
func (p *Page) look(ctx context.Context) overview {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.overview.At.IsZero() || !now.Before(p.overview.until) {
		p.overview = p.ask(context.WithoutCancel(ctx)) // others will be shown it too
		took := time.Since(now)
		p.overview.until = now.Add(max(cmp.Or(p.StoreInterval, 5*time.Second), 20*took))
	}
	return p.overview
}

func (p *Page) ask(ctx context.Context) overview {
	ctx, cancel := context.WithTimeout(ctx, p.timeout())
	defer cancel()
	o := overview{At: time.Now()}
	if stater, ok := p.Store.(server.Stater); ok {
		stats, err := stater.Stats(ctx)
		o.Stats, o.Counted = stats, o.told(err)
	}
	if inspector, ok := p.Store.(server.Inspector); ok {
		entries, err := inspector.Unfinished(ctx, unfinished)
		o.InFlight, o.Listed = entries, o.told(err)
	}
	p.logError(ctx, o.Err)
	return o
}

// told reports whether the store has answered. That it cannot is no error.
func (o *overview) told(err error) bool {
	if !errors.Is(err, errors.ErrUnsupported) {
		o.Err = errors.Join(o.Err, err)
	}
	return err == nil
}

func (p *Page) lookUp(ctx context.Context, id server.ID) lookUp {
	inspector, ok := p.Store.(server.Inspector)
	if !ok || id.Account == "" || id.Key == "" {
		return lookUp{ID: id}
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout())
	defer cancel()
	entry, err := inspector.Inspect(ctx, id)
	p.logError(ctx, err)
	return lookUp{ID: id, Asked: true, Entry: entry, Err: err}
}

func (p *Page) logError(ctx context.Context, err error) {
	if err != nil {
		p.logger().ErrorContext(ctx, "the idempotency store could not be asked", "error", err)
	}
}

func (p *Page) timeout() time.Duration { return cmp.Or(p.StoreTimeout, 5*time.Second) }

func (p *Page) logger() *slog.Logger { return cmp.Or(p.Logger, slog.Default()) }
