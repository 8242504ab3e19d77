package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/internal/pgtest"
)

const (
	stormLease   = 3 * time.Second
	stormAttempt = 1500 * time.Millisecond // what clients give an attempt
)

// storm is two servers on one database, and clients, with faults on both hops.
type storm struct {
	t        *testing.T
	db       *pgtest.DB
	database *pgtest.Proxy    // between servers and database
	network  *faultnet.Server // between clients and servers
	requests atomic.Int64
	cuts     struct{ network, database atomic.Int64 }

	events    sync.Mutex // one kill or crash at a time
	instances [2]atomic.Pointer[process]
	processes []*process // all that ever were
	kills     int        // of servers
	crashes   int        // of the database

	seen sightings
}

// sightings are the answers that clients got whole.
type sightings struct {
	mu      sync.Mutex
	answers []sighting
}

type sighting struct {
	answer

	key     string
	misused bool // the request was another than the first under its key
}

func (s *sightings) add(a sighting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, a)
}

// statuses counts the answers.
func (s *sightings) statuses() map[int]int {
	counts := make(map[int]int)
	for _, a := range s.answers {
		counts[a.status]++
	}
	return counts
}

func newStorm(t *testing.T, seed uint64) *storm {
	t.Helper()
	s := &storm{t: t, db: pgtest.NewIn(t, pgtest.CrashSafe)}
	s.database = s.db.Proxy(t)
	for i := range s.instances {
		require.True(t, s.launch(i))
	}
	s.db.Exec(t, "INSERT INTO refserver.stock SELECT 'CHAOS-' || i, 1000000 FROM generate_series(1, 3) i")
	s.database.Intercept(s.databaseFaults(seed))
	s.network = faultnet.Serve(t, s.networkFaults(seed))
	return s
}

// networkFaults meet a fifth of all exchanges between clients and servers.
func (s *storm) networkFaults(seed uint64) faultnet.Action {
	fault := func(of func(up faultnet.Upstream, n int) faultnet.Action) faultnet.Chance {
		return faultnet.Chance{P: 0.04, Action: func(x *faultnet.Exchange) {
			s.cuts.network.Add(1)
			of(s.upstream(), x.N)(x)
		}}
	}
	return faultnet.Dice(seed, s.forward,
		fault(func(up faultnet.Upstream, _ int) faultnet.Action { return up.LoseRequest() }),
		fault(func(up faultnet.Upstream, _ int) faultnet.Action { return up.LoseAnswer() }),
		fault(func(up faultnet.Upstream, _ int) faultnet.Action { return up.ResetAnswer() }),
		fault(func(up faultnet.Upstream, n int) faultnet.Action { return up.CutAnswer(n % 600) }), // in the head or the body
		fault(func(up faultnet.Upstream, _ int) faultnet.Action { return up.HoldAnswer(stormAttempt + time.Second) }),
	)
}

func (s *storm) forward(x *faultnet.Exchange) { s.upstream().Forward()(x) }

// upstream is each server in turn, dead or alive.
func (s *storm) upstream() faultnet.Upstream {
	p := s.instances[s.requests.Add(1)%2].Load()
	return faultnet.Upstream(strings.TrimPrefix(p.url, "http://"))
}

// databaseFaults cut every fiftieth statement from its answer, or from the
// database, and make some wait for longer than a server does.
func (s *storm) databaseFaults(seed uint64) func(pgtest.Statement) pgtest.Verdict {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	return func(pgtest.Statement) pgtest.Verdict {
		mu.Lock()
		roll := random.Float64()
		mu.Unlock()
		switch {
		case roll < 0.01:
			s.cuts.database.Add(1)
			return pgtest.Cut
		case roll < 0.02:
			s.cuts.database.Add(1)
			return pgtest.CutReply
		case roll < 0.022:
			<-time.After(1200 * time.Millisecond)
		}
		return pgtest.Pass
	}
}

// calm ends all faults.
func (s *storm) calm() {
	s.database.Intercept(nil)
	s.network.Play(s.forward)
}

// launch starts server i, if need be again until it stands.
func (s *storm) launch(i int) bool {
	for range 20 {
		p, err := tryProcess(s.t, nil, onDatabase(s.database.With("pool_max_conns", "20"),
			"-lease="+stormLease.String(), "-wait=300ms", "-fault-delay=0.3", "-fault-delay-for=100ms")...)
		if err == nil {
			s.processes = append(s.processes, p)
			s.instances[i].Store(p)
			return true
		}
	}
	s.t.Error("a server does not start")
	return false
}

// kill kills a server and starts another in its place.
func (s *storm) kill() {
	s.events.Lock()
	defer s.events.Unlock()
	i := s.kills % len(s.instances)
	s.kills++
	s.instances[i].Load().kill(s.t)
	s.launch(i)
}

// crash makes the database server crash, and waits until it has recovered.
func (s *storm) crash() {
	s.events.Lock()
	defer s.events.Unlock()
	s.crashes++
	if err := s.killSession(); err != nil {
		s.t.Error(err)
		return
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		if conn, err := pgx.Connect(s.t.Context(), s.db.URL); err == nil {
			conn.Close(s.t.Context())
			return
		}
	}
	s.t.Error("the database does not come back")
}

// killSession kills one session of the database, after which the server ends
// all others and recovers. On a server that is not ours it ends the sessions of
// the database one by one.
func (s *storm) killSession() error {
	conn, err := pgx.Connect(s.t.Context(), s.db.URL)
	if err != nil {
		return err
	}
	defer conn.Close(s.t.Context())
	if os.Getenv("TEST_DATABASE_URL") != "" {
		_, err := conn.Exec(s.t.Context(), `
			SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		return err
	}
	session, err := os.FindProcess(int(conn.PgConn().PID()))
	if err != nil {
		return err
	}
	return session.Kill()
}

// client returns a client that goes on until its context ends. What it sees is
// noted, and whether it misuses keys.
func (s *storm) client(misuse bool) *idem.Client {
	return &idem.Client{
		BaseURL:   s.network.URL,
		Header:    http.Header{"X-Account-Id": {"acme"}},
		Transport: witness{&s.seen, misuse, &http.Transport{DialContext: s.network.Transport.DialContext, DisableKeepAlives: true}},
		Retry: idem.RetryPolicy{
			MaxAttempts: idem.NoLimit, MaxElapsed: idem.NoLimit, MaxWait: idem.NoLimit, AttemptTimeout: stormAttempt,
			Budget: &idem.Budget{Burst: idem.NoLimit},
			NewBackOff: func() backoff.BackOff {
				return backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
					backoff.WithMaxInterval(time.Second), backoff.WithRandomizationFactor(0), backoff.WithMaxElapsedTime(0))
			},
		},
	}
}

// witness notes every answer that arrives whole.
type witness struct {
	seen   *sightings
	misuse bool
	next   http.RoundTripper
}

func (w witness) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), iotest.ErrReader(err)))
		return resp, nil
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	w.seen.add(sighting{
		answer: answer{resp.StatusCode, resp.Header, string(body)}, key: req.Header.Get("Idempotency-Key"), misused: w.misuse,
	})
	return resp, nil
}

// operations returns n operations, every other one an order.
func operations(t *testing.T, seed uint64, n int) []idem.Operation {
	t.Helper()
	ops := make([]idem.Operation, n)
	for i := range ops {
		body := fmt.Sprintf(`{"items":[{"sku":"CHAOS-%d","qty":%d},{"sku":"CHAOS-%d","qty":1}],"amount":%d,"currency":"RUB"}`,
			1+i%3, 1+i%5, 1+(i/2)%3, 1+i)
		op, err := idem.NewOperation(http.MethodPost, routes[i%2], []byte(body))
		require.NoError(t, err)
		op.Header = http.Header{"Content-Type": {"application/json"}}
		op.Key = idem.DeriveKey("chaos", fmt.Sprint(seed), fmt.Sprint(i))
		ops[i] = op
	}
	return ops
}

// each calls f for 0 to n-1, 32 at a time.
func each(n int, f func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	workers.Wait()
}

// send drives an operation for at most d.
func (s *storm) send(client *idem.Client, op idem.Operation, d time.Duration) (idem.Result[string], error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), d)
	defer cancel()
	return idem.Send[string](ctx, client, op)
}
