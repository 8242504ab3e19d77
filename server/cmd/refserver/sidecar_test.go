package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/internal/redistest"
)

// service is the one of testdata, in a process of its own.
type service struct {
	url string
	cmd *exec.Cmd
}

// startService starts a service that takes delay for a payment.
func startService(t *testing.T, delay time.Duration) *service {
	t.Helper()
	node, err := exec.LookPath("node")
	require.NoError(t, err, "Node.js is missing; install it with: apt-get install --no-install-recommends nodejs")
	s := &service{cmd: exec.CommandContext(t.Context(), node, "testdata/service.js", fmt.Sprint(delay.Milliseconds()))}
	_, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // an error if the test did it
		_ = s.cmd.Wait()
	})
	port, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	s.url = "http://127.0.0.1:" + strings.TrimSpace(port)
	return s
}

// payment is one that the service has made.
type payment struct {
	Number    int    `json:"number"`
	Operation string `json:"operation"`
	Attempt   string `json:"attempt"`
}

func (s *service) payments(t *testing.T) (payments []payment) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(get(s.url).body), &payments))
	return payments
}

// inFront are the flags by which a program stands in front of the service.
func (s *service) inFront(flags ...string) []string {
	return append([]string{"-upstream=" + s.url, "-account-header=X-Account-Id", "-admin-addr=127.0.0.1:0"}, flags...)
}

func TestAServiceThatKnowsNothingOfKeysMakesOnePaymentOfFiftyDuplicates(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string]func(t *testing.T) []string{
		"memory":   func(*testing.T) []string { return nil },
		"postgres": func(t *testing.T) []string { t.Helper(); return onDatabase(pgtest.New(t), "-store-timeout=10s") },
		"redis":    func(t *testing.T) []string { t.Helper(); return onRedis(redistest.Start(t), "-store-timeout=10s") },
		"redis in front of postgres": func(t *testing.T) []string {
			t.Helper()
			return onDatabase(pgtest.New(t), "-store-timeout=10s", "-redis-url="+redisURL(redistest.Start(t)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, 100*time.Millisecond)
			p := startProcess(t, nil, s.inFront(flags(t)...)...)
			answers := make([]answer, 50)
			var sent sync.WaitGroup
			for i := range answers {
				sent.Go(func() { answers[i] = untilDone(t, p.url, "/payments") })
			}
			sent.Wait()
			payments := s.payments(t)
			require.Len(t, payments, 1)
			require.NoError(t, uuid.Validate(payments[0].Operation))
			require.Equal(t, "1", payments[0].Attempt)
			for _, a := range answers {
				require.Equal(t, http.StatusCreated, a.status)
				require.Equal(t, answers[0].body, a.body)
			}
			require.Contains(t, answers[0].body, `"number":1`)

			for n := range 2 { // without a key each is a payment
				unkeyed := post(p.url, "/payments", "Idempotency-Key")
				require.Contains(t, unkeyed.body, fmt.Sprintf(`"number":%d`, 2+n))
			}
		})
	}
}

// Load balancers stop sending soon after a server has said that it is not ready.
// Whatever they have sent is answered.
func TestSIGTERMUnderLoadLeavesNothingUnanswered(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := startService(t, 30*time.Millisecond)
	p := startProcess(t, nil, s.inFront(onDatabase(db, "-wait=0s", "-unready-for=5s", "-store-timeout=10s")...)...)
	var stopped atomic.Bool
	var answered atomic.Int64
	var workers sync.WaitGroup
	for worker := range 8 {
		workers.Go(func() {
			for n := 0; !stopped.Load(); n++ {
				a := post(p.url, "/payments", fmt.Sprintf("Idempotency-Key: %d-%d", worker/2, n)) // two send the same
				assert.Contains(t, []int{http.StatusCreated, http.StatusAccepted}, a.status, a.body)
				answered.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return answered.Load() > 200 }, time.Minute, time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool { return get(p.adminURL+"/readyz").status == http.StatusServiceUnavailable }, 10*time.Second, time.Millisecond)
	stopped.Store(true)
	workers.Wait()
	require.NoError(t, p.cmd.Wait(), "the exit code must be 0")
	requireCount(t, db, 0, "idem_operations WHERE status <> 'completed'")
	requireCount(t, db, len(s.payments(t)), "idem_operations")
}

func TestSIGTERMOfASidecarLosesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := startService(t, 2*time.Second)
	before := startProcess(t, nil, s.inFront(onDatabase(db, "-wait=0s")...)...)
	after := startProcess(t, nil, s.inFront(onDatabase(db)...)...)
	running := make(chan int, 1)
	go func() { running <- post(before.url, "/payments").status }()
	eventually(t, db, 1, "idem_operations WHERE status = 'processing'")
	require.NoError(t, before.cmd.Process.Signal(syscall.SIGTERM))
	replay := untilDone(t, after.url, "/payments")
	require.Equal(t, http.StatusCreated, replay.status)
	require.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))
	require.Equal(t, http.StatusCreated, <-running)
	require.NoError(t, before.cmd.Wait(), "the exit code must be 0")
	requireCount(t, db, 1, "idem_operations WHERE status = 'completed'")
	require.Len(t, s.payments(t), 1)
}
