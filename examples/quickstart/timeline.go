package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/idemhttp/idem"
)

// timeline prints what happens, and when.
type timeline struct {
	w      io.Writer
	told   int       // stories begun
	start  time.Time // of the story
	claims int
	broken int // claims that do not hold
}

func (t *timeline) printf(format string, args ...any) { fmt.Fprintf(t.w, format, args...) }

// begin begins the next story.
func (t *timeline) begin(title string) {
	t.told++
	t.start = time.Now()
	t.printf("\n%d. %s\n\n", t.told, title)
}

// event prints something that happened just now.
func (t *timeline) event(format string, args ...any) {
	t.printf("%7d ms  %s\n", time.Since(t.start).Milliseconds(), fmt.Sprintf(format, args...))
}

// claim prints what should be true and whether it is.
func (t *timeline) claim(holds bool, format string, args ...any) {
	t.claims++
	mark := "✓"
	if !holds {
		mark = "✗"
		t.broken++
	}
	t.printf("            %s %s\n", mark, fmt.Sprintf(format, args...))
}

// end returns an error if a claim did not hold.
func (t *timeline) end() error {
	if t.broken > 0 {
		return fmt.Errorf("%d of %d claims do not hold", t.broken, t.claims)
	}
	t.printf("\nAll %d claims hold.\n", t.claims)
	return nil
}

// trace returns hooks that print the attempts of a client's operations.
func (t *timeline) trace() idem.Trace {
	return idem.Trace{
		OperationStart: func(ctx context.Context, a idem.Attempt) context.Context {
			if a.Key != "" {
				t.event("%s under the key %s", a.Method, a.Key)
			}
			return ctx
		},
		AttemptDone: func(_ context.Context, a idem.Attempt) {
			t.event("attempt %d: %s", a.Number, outcome(a))
		},
		Waiting: func(_ context.Context, a idem.Attempt) {
			t.event("wait %d ms", a.Wait.Milliseconds())
		},
	}
}

func outcome(a idem.Attempt) string {
	var request *url.Error // says what was sent where, which is known
	switch {
	case errors.As(a.Err, &request):
		return "no answer: " + request.Err.Error()
	case a.Err != nil:
		return "no answer: " + a.Err.Error()
	}
	status := fmt.Sprintf("%d %s", a.Status, http.StatusText(a.Status))
	if a.Replayed {
		status += ", a replay"
	}
	if after := a.Header.Get("Retry-After"); after != "" {
		status += ", try again after " + after + " s"
	}
	return status
}
