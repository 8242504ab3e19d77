package faultnet_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
)

var created = faultnet.Answer(http.StatusCreated, `{"id":1}`, "Content-Type: application/json")

func TestServerRecordsWhatCameOffTheWire(t *testing.T) {
	t.Parallel()
	s := faultnet.Serve(t, faultnet.Reply(created))

	got := post(t, s.Transport, s.URL+"/payments?a=1", "first")
	require.Equal(t, http.StatusCreated, got.status)
	require.Equal(t, `{"id":1}`, got.body)
	require.Equal(t, "application/json", got.header.Get("Content-Type"))

	hidden := struct{ io.Reader }{strings.NewReader("second")} // of unknown length: chunked
	_, err := tryPost(t, s.Transport, s.URL, hidden)
	require.NoError(t, err)

	requests := s.Requests()
	require.Len(t, requests, 2)
	require.Equal(t, []string{"first", "second"}, s.Bodies())
	require.Equal(t, []string{"k-1", "k-1"}, s.Keys())
	require.Equal(t, []int{1, 1}, []int{requests[0].Conn, requests[1].Conn})
	require.Equal(t, []bool{true, true}, []bool{requests[0].Whole, requests[1].Whole})

	r := requests[0]
	require.Equal(t, "POST", r.Method)
	require.Equal(t, "/payments?a=1", r.Target)
	require.True(t, strings.HasPrefix(r.Head, "POST /payments?a=1 HTTP/1.1\r\nHost: "+s.Addr+"\r\n"), r.Head)
	require.Equal(t, r.Head+"first", string(r.Raw))
	require.Equal(t, requests[1].Head+"6\r\nsecond\r\n0\r\n\r\n", string(requests[1].Raw))
}

func TestServerTellsWhenRequestsArrived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := faultnet.ServeInMemory(t, faultnet.Late(time.Second, faultnet.Reply(created)))
		for range 2 {
			<-time.After(time.Minute)
			post(t, s.Transport, s.URL, "")
		}
		require.Equal(t, []time.Duration{time.Minute, 2*time.Minute + time.Second}, s.Arrivals())
	})
}

func TestServerInvitesABodyThatWaits(t *testing.T) {
	t.Parallel()
	s := faultnet.Serve(t, faultnet.Reply(created))
	s.Transport.ExpectContinueTimeout = time.Hour
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("body"))
	require.NoError(t, err)
	req.Header.Set("Expect", "100-continue")
	resp, err := s.Transport.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, []string{"body"}, s.Bodies())
}

func TestActionsThatBreakTheAnswer(t *testing.T) {
	t.Parallel()
	head := strings.Index(created, "{")
	tests := []struct {
		name   string
		action faultnet.Action
		is     error  // expected in the chain, if not nil
		text   string // expected in the error
		body   string // read before the error
	}{
		{"close without an answer", faultnet.Close(), io.EOF, "", ""},
		{"half a head", faultnet.Cut(created, 20), io.ErrUnexpectedEOF, "", ""},
		{"cut in the body", faultnet.Cut(created, head+3), io.ErrUnexpectedEOF, "", `{"i`},
		{"garbage", faultnet.Garbage(), nil, "malformed HTTP", ""},
		{"reset", faultnet.Reset(), syscall.ECONNRESET, "", ""},
		{"reset unread", faultnet.ResetUnread(), syscall.ECONNRESET, "", ""},
	}
	for name, serve := range servers {
		for _, tt := range tests {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				s := serve(t, tt.action)
				got, err := tryPost(t, s.Transport, s.URL, strings.NewReader("x"))
				require.Error(t, err)
				require.Equal(t, tt.body, got.body)
				if tt.is != nil {
					require.ErrorIs(t, err, tt.is)
				}
				require.ErrorContains(t, err, tt.text)
				require.Len(t, s.Requests(), 1)
			})
		}
	}
}

var servers = map[string]func(faultnet.TB, faultnet.Action) *faultnet.Server{
	"socket": faultnet.Serve,
	"memory": faultnet.ServeInMemory,
}

func TestCutResetInTheBody(t *testing.T) {
	t.Parallel()
	s := faultnet.ServeInMemory(t, faultnet.CutReset(created, len(created)-1))
	_, err := tryPost(t, s.Transport, s.URL, strings.NewReader("x"))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestStepsPlaysInTurnAndRepeatsTheLast(t *testing.T) {
	t.Parallel()
	s := faultnet.Serve(t, faultnet.Steps(
		faultnet.Reply(faultnet.Answer(503, "")),
		faultnet.Reply(faultnet.Answer(502, "")),
		faultnet.Reply(created),
	))
	var statuses []int
	for range 4 {
		statuses = append(statuses, post(t, s.Transport, s.URL, "x").status)
	}
	require.Equal(t, []int{503, 502, 201, 201}, statuses)
}

func TestPlaySwitchesWhileTheServerRuns(t *testing.T) {
	t.Parallel()
	s := faultnet.Serve(t, faultnet.Reply(created))
	require.Equal(t, 201, post(t, s.Transport, s.URL, "x").status)
	s.Play(faultnet.Reply(faultnet.Answer(500, "")))
	require.Equal(t, 500, post(t, s.Transport, s.URL, "x").status)
}

func TestDicePicksTheSameForTheSameSeed(t *testing.T) {
	t.Parallel()
	roll := func(seed uint64) (statuses []int) {
		s := faultnet.ServeInMemory(t, faultnet.Dice(seed, faultnet.Reply(created),
			faultnet.Chance{P: 0.2, Action: faultnet.Reply(faultnet.Answer(503, ""))},
			faultnet.Chance{P: 0.3, Action: faultnet.Reply(faultnet.Answer(502, ""))},
		))
		for range 100 {
			statuses = append(statuses, post(t, s.Transport, s.URL, "x").status)
		}
		return statuses
	}
	first := roll(7)
	count := make(map[int]int)
	for _, status := range first {
		count[status]++
	}
	require.Equal(t, map[int]int{201: 46, 502: 34, 503: 20}, count)
	require.Equal(t, first, roll(7))
	require.NotEqual(t, first, roll(8))
}

func TestHangEndsWhenTheClientGoesAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan time.Time, 1)
		s := faultnet.ServeInMemory(t, func(x *faultnet.Exchange) {
			faultnet.Hang()(x)
			gone <- time.Now()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		require.NoError(t, err)
		_, err = s.Transport.RoundTrip(req)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Minute, (<-gone).Sub(start))
	})
}

func TestTrickleGoesOnUntilTheClientHasEnough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		endless := "HTTP/1.1 503 Service Unavailable\r\n\r\n"
		s := faultnet.ServeInMemory(t, faultnet.Trickle(endless, 2, time.Second))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
		require.NoError(t, err)
		start := time.Now()
		resp, err := s.Transport.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, time.Duration(0), time.Since(start))
		got := make([]byte, 10)
		_, err = io.ReadFull(resp.Body, got)
		require.NoError(t, err)
		require.Equal(t, "..........", string(got))
		require.Equal(t, 5*time.Second, time.Since(start))
		require.NoError(t, resp.Body.Close())
	})
}

func TestLateAnswersAfterTheDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := faultnet.ServeInMemory(t, faultnet.Late(time.Minute, faultnet.Reply(created)))
		start := time.Now()
		require.Equal(t, 201, post(t, s.Transport, s.URL, "x").status)
		require.Equal(t, time.Minute, time.Since(start))
	})
}

func TestCloseEndsActionsThatWait(t *testing.T) {
	t.Parallel()
	for name, action := range map[string]faultnet.Action{
		"hang":    faultnet.Hang(),
		"trickle": faultnet.Trickle("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", 1, time.Hour),
		"late":    faultnet.Late(time.Hour, faultnet.Hang()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := faultnet.ServeInMemory(t, action)
				start := time.Now()
				time.AfterFunc(time.Second, s.Close)
				_, err := tryPost(t, s.Transport, s.URL, strings.NewReader("x"))
				require.Error(t, err)
				require.Equal(t, time.Second, time.Since(start))
			})
		})
	}
}

func TestAnActionThatLeavesTheRequestUnreadEndsTheConnection(t *testing.T) {
	t.Parallel()
	s := faultnet.Serve(t, func(*faultnet.Exchange) {})
	_, err := tryPost(t, s.Transport, s.URL, strings.NewReader("x"))
	require.Error(t, err) // the end of the stream or, for what was left unread, a reset
	require.Len(t, s.Requests(), 1)
}

func TestARequestThatBreaksOffIsRecordedAsSuch(t *testing.T) {
	t.Parallel()
	recorded := make(chan struct{})
	s := faultnet.ServeInMemory(t, func(x *faultnet.Exchange) {
		faultnet.Reply(created)(x)
		close(recorded)
	})
	conn, err := s.Transport.DialContext(t.Context(), "tcp", s.Addr)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	<-recorded
	r := s.Requests()[0]
	require.False(t, r.Whole)
	require.Equal(t, "half", string(r.Body))
}
