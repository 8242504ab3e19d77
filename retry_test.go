package idem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
)

// In these tests time is virtual: a wait takes none, and its length is exact.

// timeline is a server that plays the steps, and the times at which requests
// arrived, counted from now.
func timeline(t *testing.T, steps ...faultnet.Action) (srv *faultnet.Server, arrivals func() []time.Duration) {
	t.Helper()
	srv = faultnet.ServeInMemory(t, faultnet.Steps(steps...))
	return srv, srv.Arrivals
}

func TestRetryAfterIsWaitedForExactly(t *testing.T) {
	t.Parallel()
	for _, code := range []int{202, 408, 425, 429, 500, 502, 503, 504} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv, arrivals := timeline(t, status(code, "Retry-After: 3"), ok201())
				_, err := post(t, quick(srv))
				require.NoError(t, err)
				require.Equal(t, []time.Duration{0, 3 * time.Second}, arrivals())
			})
		})
	}
}

func TestRetryAfterInAllItsForms(t *testing.T) {
	t.Parallel()
	const ignored = 0                                  // the backoff of these tests
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of a synctest bubble
	in2s := now.Add(2 * time.Second)
	for name, tc := range map[string]struct {
		lines []string
		want  time.Duration
	}{
		"zero":                      {[]string{"0"}, 0},
		"seconds":                   {[]string{"3"}, 3 * time.Second},
		"a negative number":         {[]string{"-1"}, ignored},
		"a sign":                    {[]string{"+3"}, ignored},
		"a fraction":                {[]string{"1.5"}, ignored},
		"a Go duration":             {[]string{"1m0s"}, ignored},
		"hexadecimal":               {[]string{"0x10"}, ignored},
		"an exponent":               {[]string{"1e3"}, ignored},
		"an Arabic-Indic digit":     {[]string{"\u0663"}, ignored},
		"nothing":                   {[]string{""}, ignored},
		"a parameter":               {[]string{"5;"}, ignored},
		"two lines":                 {[]string{"1", "9"}, 9 * time.Second},
		"one of two lines is valid": {[]string{"2", "soon"}, 2 * time.Second},
		"a list":                    {[]string{"2, 3"}, ignored},
		"a date in the past":        {[]string{"Wed, 21 Oct 1998 07:28:00 GMT"}, 0},
		"a date":                    {[]string{in2s.Format(http.TimeFormat)}, 2 * time.Second},
		"a date of RFC 850":         {[]string{in2s.Format("Monday, 02-Jan-06 15:04:05 GMT")}, 2 * time.Second},
		"a date of asctime":         {[]string{in2s.Format(time.ANSIC)}, 2 * time.Second},
		"a date in UTC":             {[]string{in2s.Format("Mon, 02 Jan 2006 15:04:05 UTC")}, 2 * time.Second},
		"a date in another zone":    {[]string{in2s.Format("Mon, 02 Jan 2006 15:04:05 EST")}, ignored},
		"RFC 850, another zone":     {[]string{in2s.Format("Monday, 02-Jan-06 15:04:05 EST")}, ignored},
		"a date with an offset":     {[]string{in2s.Format("Mon, 02 Jan 2006 15:04:05 +0000")}, ignored},
		"a date of ISO 8601":        {[]string{in2s.Format(time.RFC3339)}, ignored},
		"a day that does not exist": {[]string{"Fri, 32 Dec 1999 23:59:59 GMT"}, ignored},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var fields []string
				for _, line := range tc.lines {
					fields = append(fields, "Retry-After: "+line)
				}
				srv, arrivals := timeline(t, status(503, fields...), ok201())
				_, err := post(t, quick(srv))
				require.NoError(t, err)
				require.Equal(t, []time.Duration{0, tc.want}, arrivals())
			})
		})
	}
}

func TestRetryAfterDateIsMeasuredAgainstTheServersOwnClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t,
			status(503, "Date: Sun, 06 Nov 1994 08:49:37 GMT", "Retry-After: Sun, 06 Nov 1994 08:49:44 GMT"), ok201())
		_, err := post(t, quick(srv))
		require.NoError(t, err)
		require.Equal(t, []time.Duration{0, 7 * time.Second}, arrivals())
	})
}

func TestRetryAfterBeyondMaxRetryAfterEndsTheOperationAtOnce(t *testing.T) {
	t.Parallel()
	for value, tc := range map[string]struct {
		want time.Duration
		runs int
	}{
		"86400": {24 * time.Hour, 1000}, "9223372037": {1<<63 - 1, 1}, "99999999999999999999": {1<<63 - 1, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			srv, arrivals := timeline(t, status(429, "Retry-After: "+value))
			client := quick(srv)
			client.Retry.MaxRetryAfter = time.Second
			client.Retry.NewBackOff = at(time.Second) // jitter must not matter
			for range tc.runs {
				_, err := post(t, client)
				given := asA[*idem.IncompleteError](t, err)
				require.Equal(t, idem.ReasonRetryAfter, given.Reason)
				require.Equal(t, tc.want, given.RetryAfter, "as the server said it, uncut")
				require.Len(t, given.Attempts, 1)
			}
			require.Equal(t, make([]time.Duration, tc.runs), arrivals())
		})
	}
}

func TestMaxElapsedIsWhenTheLastAttemptMayBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(503, "Retry-After: 1"))
		client := quick(srv)
		client.Retry.MaxAttempts, client.Retry.MaxElapsed = 10, 3*time.Second
		_, err := post(t, client)
		require.Equal(t, idem.ReasonElapsed, asA[*idem.IncompleteError](t, err).Reason)
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second}, arrivals())
	})
}

func TestNoAttemptAfterMaxElapsed(t *testing.T) {
	t.Parallel()
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			srv, arrivals := timeline(t, status(503))
			client := quick(srv)
			client.Retry = idem.RetryPolicy{MaxAttempts: idem.NoLimit, MaxElapsed: 200 * time.Millisecond, NewBackOff: at(100 * time.Millisecond)}
			start := time.Now()
			_, err := post(t, client)
			require.Equal(t, idem.ReasonElapsed, asA[*idem.IncompleteError](t, err).Reason)
			require.LessOrEqual(t, time.Since(start), 200*time.Millisecond)
			<-time.After(time.Hour)
			for _, at := range arrivals() {
				require.LessOrEqual(t, at, 200*time.Millisecond)
			}
		})
	}
}

func TestWithoutLimitsAnOperationGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		steps := make([]faultnet.Action, 1500, 1501)
		for i := range steps {
			steps[i] = status(503, "Retry-After: 3600")
		}
		srv, arrivals := timeline(t, append(steps, ok201())...)
		client := quick(srv)
		client.Retry = idem.RetryPolicy{
			MaxAttempts: idem.NoLimit, AttemptTimeout: idem.NoLimit, MaxElapsed: idem.NoLimit,
			MaxRetryAfter: idem.NoLimit, MaxWait: idem.NoLimit, NewBackOff: at(0), Budget: unlimited(),
		}
		result, err := post(t, client)
		require.NoError(t, err)
		require.Equal(t, 1501, result.Attempts)
		require.Equal(t, 1500*time.Hour, arrivals()[1500])
	})
}

func TestMaxAttemptsCountsSends(t *testing.T) {
	t.Parallel()
	for maxAttempts, want := range map[int]int{0: 5, 1: 1, 2: 2, 4: 4} {
		synctest.Test(t, func(t *testing.T) {
			srv, _ := timeline(t, status(503))
			client := quick(srv)
			client.Retry.MaxAttempts = maxAttempts
			_, err := post(t, client)
			given := asA[*idem.IncompleteError](t, err)
			require.Equal(t, idem.ReasonAttempts, given.Reason)
			require.Len(t, given.Attempts, want)
			require.Len(t, srv.Requests(), want)
		})
	}
}

func TestPollingCountsNeitherAttemptsNorMaxElapsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		progress := status(202, "Retry-After: 10")
		srv, arrivals := timeline(t, progress, progress, progress, ok201())
		client := quick(srv)
		client.Retry.MaxAttempts, client.Retry.MaxElapsed = 1, time.Second
		result, err := post(t, client)
		require.NoError(t, err)
		require.Equal(t, 4, result.Attempts)
		require.Equal(t, []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second}, arrivals())
	})
}

func TestPollingHasItsOwnLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(202, "Retry-After: 4"))
		client := quick(srv)
		client.Retry.MaxWait = 10 * time.Second
		_, err := post(t, client)
		given := asA[*idem.IncompleteError](t, err)
		require.Equal(t, idem.ReasonMaxWait, given.Reason)
		require.Equal(t, idem.Pending, idem.OutcomeOf(err))
		require.Equal(t, 4*time.Second, given.RetryAfter)
		require.Equal(t, []time.Duration{0, 4 * time.Second, 8 * time.Second}, arrivals())
	})
}

func TestPollingIsNeverFasterThanItsFloor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		progress := status(202, "Retry-After: 0")
		unreadable := status(202, "Retry-After: shortly")
		srv, arrivals := timeline(t, progress, unreadable, ok201())
		_, err := post(t, quick(srv))
		require.NoError(t, err)
		require.Equal(t, []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond}, arrivals())
	})
}

func TestCancellationEndsAWaitAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(503, "Retry-After: 30"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		start := time.Now()
		_, err := idem.Post[payment](ctx, quick(srv), "/payments", rub1200)
		require.Equal(t, 50*time.Millisecond, time.Since(start))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 503, asA[*idem.StatusError](t, err).StatusCode)
		require.Len(t, asA[*idem.IncompleteError](t, err).Attempts, 1)
		<-time.After(time.Minute)
		require.Equal(t, []time.Duration{0}, arrivals())
	})
}

func TestContextThatHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, ok201())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := idem.Post[payment](ctx, quick(srv), "/payments", rub1200)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, idem.NotSent, idem.OutcomeOf(err))
		require.Empty(t, asA[*idem.IncompleteError](t, err).Attempts)
		require.Empty(t, arrivals())
	})
}

func TestCauseOfACancellationIsFoundBesideContextCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shutdown := errors.New("shutting down")
		srv, _ := timeline(t, faultnet.Hang())
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(shutdown) })
		_, err := idem.Post[payment](ctx, quick(srv), "/payments", rub1200)
		require.ErrorIs(t, err, shutdown)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, idem.ReasonContext, asA[*idem.IncompleteError](t, err).Reason)
		require.Equal(t, idem.Unknown, idem.OutcomeOf(err))
	})
}

func TestWaitThatCannotFitIntoTheDeadlineIsNotBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, faultnet.Reply(faultnet.Answer(503, "maintenance", "Retry-After: 5")))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := idem.Post[payment](ctx, quick(srv), "/payments", rub1200)
		require.Zero(t, time.Since(start))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		given := asA[*idem.IncompleteError](t, err)
		require.Equal(t, 503, given.Response.StatusCode)
		require.Equal(t, "maintenance", string(given.Response.Body))
		require.Equal(t, 5*time.Second, given.RetryAfter)
		require.True(t, given.Timeout())
	})
}

func TestLastAnswerAndLastErrorAreKept(t *testing.T) {
	t.Parallel()
	dbDown := faultnet.Reply(faultnet.Answer(500, "db down", "X-Request-Id: r7"))
	check := func(t *testing.T, err error, attempts int) {
		t.Helper()
		e := asA[*idem.StatusError](t, err)
		require.Equal(t, attempts, e.Attempts)
		require.Equal(t, 500, e.StatusCode)
		require.Equal(t, "r7", e.Header.Get("X-Request-Id"))
		require.Equal(t, "db down", string(e.Body))
		require.Len(t, asA[*idem.IncompleteError](t, err).Attempts, attempts)
	}
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, dbDown)
		client := quick(srv)
		client.Retry.MaxAttempts = 3
		_, err := post(t, client)
		check(t, err, 3)
	})
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, dbDown)
		client := quick(srv)
		client.Retry.NewBackOff = at(time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client.Trace.Waiting = func(_ context.Context, a idem.Attempt) {
			if a.Number == 2 {
				time.AfterFunc(time.Nanosecond, cancel)
			}
		}
		_, err := idem.Post[payment](ctx, client, "/payments", rub1200)
		require.ErrorIs(t, err, context.Canceled)
		check(t, err, 2)
	})
}

func TestAttemptTimeoutIsRetriedAndTheCallersDeadlineIsNot(t *testing.T) {
	t.Parallel()
	slow := func(x *faultnet.Exchange) {
		x.Read()
		if x.Wait(200 * time.Millisecond) {
			x.Write(faultnet.Answer(201, created))
		}
	}
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, slow, ok201())
		client := quick(srv)
		client.Retry.AttemptTimeout = 50 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		result, err := idem.Post[payment](ctx, client, "/payments", rub1200)
		require.NoError(t, err)
		require.Equal(t, 2, result.Attempts)
		require.Equal(t, []time.Duration{0, 50 * time.Millisecond}, arrivals())
		require.Equal(t, []string{string(result.Key), string(result.Key)}, srv.Keys())
	})
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, slow)
		client := quick(srv)
		client.Retry.AttemptTimeout = 50 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := idem.Post[payment](ctx, client, "/payments", rub1200)
		require.Equal(t, 120*time.Millisecond, time.Since(start))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, asA[*idem.IncompleteError](t, err).Attempts, 3)
		require.Equal(t, idem.Unknown, idem.OutcomeOf(err))
		<-time.After(time.Minute)
		require.Equal(t, []time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond}, arrivals())
	})
}

func TestAttemptTimeoutIsNotTheCallersDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, faultnet.Hang())
		client := quick(srv)
		client.Retry.AttemptTimeout, client.Retry.MaxAttempts = time.Second, 2
		_, err := post(t, client)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "no complete answer within the attempt timeout of 1s")
		given := asA[*idem.IncompleteError](t, err)
		require.Equal(t, idem.ReasonAttempts, given.Reason)
		require.True(t, given.Timeout())
	})
}

func TestAttemptTimeoutCoversTheBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, faultnet.Trickle("HTTP/1.1 201 Created\r\nContent-Length: 1000000\r\n\r\n", 1, 100*time.Millisecond), ok201())
		client := quick(srv)
		client.Retry.AttemptTimeout = time.Second
		result, err := post(t, client)
		require.NoError(t, err)
		require.Equal(t, "p1", result.Value.ID)
		require.Equal(t, []time.Duration{0, time.Second}, arrivals())
	})
}

func TestJitterNeverComesBeforeRetryAfterAndSpreads(t *testing.T) {
	t.Parallel()
	for name, maxRetryAfter := range map[string]time.Duration{"below the limit": time.Minute, "at the limit": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waits := waits(t, 2000, http.Header{"Retry-After": {"10"}}, idem.RetryPolicy{
				MaxAttempts: 2, MaxRetryAfter: maxRetryAfter, NewBackOff: at(10 * time.Second), MaxElapsed: idem.NoLimit, Budget: unlimited(),
			})
			require.Len(t, waits, 2000)
			buckets := map[time.Duration]bool{}
			for _, wait := range waits {
				require.GreaterOrEqual(t, wait, 10*time.Second)
				require.LessOrEqual(t, wait, 20*time.Second)
				buckets[wait/(10*time.Millisecond)] = true
			}
			require.GreaterOrEqual(t, len(buckets), 100)
		})
	}
}

func TestWaitsWithoutRetryAfterAreDrawnFromZeroToTheCeiling(t *testing.T) {
	t.Parallel()
	const attempts = 9
	waits := waits(t, 300, nil, idem.RetryPolicy{MaxAttempts: attempts, MaxElapsed: idem.NoLimit, Budget: unlimited()})
	require.Len(t, waits, 300*(attempts-1))
	for i := range attempts - 1 {
		ceiling := min(10*time.Second, 200*time.Millisecond<<i)
		longest, distinct := time.Duration(0), map[time.Duration]bool{}
		for j := i; j < len(waits); j += attempts - 1 {
			require.LessOrEqual(t, waits[j], ceiling)
			longest = max(longest, waits[j])
			distinct[waits[j]] = true
		}
		require.Greater(t, longest, ceiling/2, "retry %d", i+1)
		require.Greater(t, len(distinct), 250, "retry %d is jittered", i+1)
	}
}

// waits runs n operations that are always answered 503 with fields, and returns
// their waits.
func waits(t *testing.T, n int, fields http.Header, policy idem.RetryPolicy) []time.Duration {
	t.Helper()
	var r recorder
	unavailable := roundTripperFunc(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 503, Header: fields, Body: http.NoBody}, nil
	})
	synctest.Test(t, func(t *testing.T) {
		client := &idem.Client{BaseURL: "http://bank.test", Transport: unavailable, Retry: policy, Trace: r.trace()}
		for range n {
			_, err := post(t, client)
			require.Equal(t, idem.ReasonAttempts, asA[*idem.IncompleteError](t, err).Reason)
		}
	})
	return r.waits
}

func TestWaitIsAsLongAsTheTraceSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		srv, arrivals := timeline(t, status(503), status(503, "Retry-After: 2"), status(202, "Retry-After: 1"), ok201())
		client := &idem.Client{BaseURL: srv.URL, Transport: srv.Transport, Trace: r.trace()}
		_, err := post(t, client)
		require.NoError(t, err)
		require.Len(t, r.waits, 3)
		var at time.Duration
		for i, wait := range r.waits {
			at += wait
			require.Equal(t, at, arrivals()[i+1])
		}
		require.Equal(t, 4, r.end[0].Number)
		require.Equal(t, at, r.end[0].Duration)
		require.NoError(t, r.end[0].Err)
	})
}

func TestBackOffMayEndAnOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(503))
		client := quick(srv)
		client.Retry.NewBackOff = func() backoff.BackOff { return backoff.WithMaxRetries(&backoff.ZeroBackOff{}, 2) }
		_, err := post(t, client)
		require.Equal(t, idem.ReasonBackOff, asA[*idem.IncompleteError](t, err).Reason)
		require.Len(t, arrivals(), 3)
	})
}

func TestBudgetKeepsAnOutageFromBeingMultiplied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(503))
		client := quick(srv)
		client.Retry.Budget = &idem.Budget{Burst: 10, PerOperation: 0.25, PerSecond: 1e-9}
		for range 100 {
			_, err := post(t, client)
			require.Error(t, err)
		}
		// 100 first attempts, the burst, and a quarter of a retry for each
		// operation after the bucket was no longer full.
		require.InDelta(t, 100+10+25, len(arrivals()), 1)
		_, err := post(t, client)
		require.Equal(t, idem.ReasonBudget, asA[*idem.IncompleteError](t, err).Reason)
	})
}

func TestBudgetRecoversWithTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(503))
		client := quick(srv)
		client.Retry.Budget = &idem.Budget{Burst: 4, PerOperation: 1e-9, PerSecond: 2}
		_, err := post(t, client) // takes all four
		require.Equal(t, idem.ReasonAttempts, asA[*idem.IncompleteError](t, err).Reason)
		_, err = post(t, client)
		require.Equal(t, idem.ReasonBudget, asA[*idem.IncompleteError](t, err).Reason)
		<-time.After(time.Second) // gives two back
		_, err = post(t, client)
		require.Equal(t, idem.ReasonBudget, asA[*idem.IncompleteError](t, err).Reason)
		require.Len(t, arrivals(), 5+1+3)
		<-time.After(time.Hour)
		_, err = post(t, client)
		require.Equal(t, idem.ReasonAttempts, asA[*idem.IncompleteError](t, err).Reason)
	})
}

func TestBudgetIsNotSpentOnPolling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		progress := status(202, "Retry-After: 0")
		srv, _ := timeline(t, progress, progress, progress, progress, status(503), ok201())
		client := quick(srv)
		client.Retry.Budget = &idem.Budget{Burst: 1, PerOperation: 1e-9, PerSecond: 1e-9}
		result, err := post(t, client)
		require.NoError(t, err)
		require.Equal(t, 6, result.Attempts)
	})
}

func TestBudgetOfAClientIsSharedByItsOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(503))
		client := &idem.Client{BaseURL: srv.URL, Transport: srv.Transport, Retry: idem.RetryPolicy{NewBackOff: at(0)}}
		for range 1000 {
			_, err := post(t, client)
			require.Error(t, err)
		}
		// A burst of 100, then one retry for ten operations.
		require.InDelta(t, 1000+100+100, len(arrivals()), 10)
	})
}

func TestCancelledWaitsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left at its end
		srv, _ := timeline(t, status(503, "Retry-After: 3600"))
		client := quick(srv)
		client.Retry.MaxRetryAfter, client.Retry.MaxElapsed = idem.NoLimit, idem.NoLimit
		for range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(5*time.Millisecond, cancel)
			_, err := idem.Post[payment](ctx, client, "/payments", rub1200)
			require.ErrorIs(t, err, context.Canceled)
		}
	})
}

func postFor(t *testing.T, c *idem.Client, d time.Duration) (idem.Result[payment], error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return idem.Post[payment](ctx, c, "/payments", rub1200)
}

func TestLogTellsTheStoryWithoutSecrets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		srv, _ := timeline(t, status(503, "Retry-After: 2"), status(503))
		client := quick(srv)
		client.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		client.Retry.MaxAttempts = 2
		client.Header = http.Header{"Authorization": {"Bearer sk_7"}}
		op := idem.Operation{Key: "2c9a1e9b-4b9e-4d6e-9e67-6e3b2e7c1e32", Method: "POST", URL: "/payments?token=tok_live_9", Body: []byte(paymentJSON)}
		_, err := idem.Send[payment](t.Context(), client, op)
		require.Error(t, err)
		common := " idempotency_key=2c9a1e9b... method=POST url=" + srv.URL + "/payments"
		require.Equal(t, strings.Join([]string{
			`level=INFO msg="idem waits to send again"` + common + " attempt=1 status=503 wait=2s",
			`level=WARN msg="idem gave an operation up"` + common + ` attempt=2 status=503 reason="MaxAttempts is reached" outcome=unknown`,
			"",
		}, "\n"), log.String())
	})
}

func TestBackOffThatIsNilIsTheDefault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, arrivals := timeline(t, status(503), status(202, "Retry-After: 1"), ok201())
		client := quick(srv)
		client.Retry.NewBackOff = func() backoff.BackOff { return nil }
		_, err := post(t, client)
		require.NoError(t, err)
		require.LessOrEqual(t, arrivals()[1], 200*time.Millisecond)
	})
}

func TestBackOffIsFreshForEveryOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int32
		srv, _ := timeline(t, status(503))
		client := quick(srv)
		client.Retry.NewBackOff = func() backoff.BackOff {
			made.Add(1)
			return &backoff.ZeroBackOff{}
		}
		for range 3 {
			_, err := post(t, client)
			require.Error(t, err)
		}
		require.EqualValues(t, 3, made.Load())
	})
}
