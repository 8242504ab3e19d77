package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
)

var (
	chaosOps   = flag.Int("chaos.ops", 500, "operations of each chaos run, a multiple of 100; for every 100 a server is killed")
	chaosSeeds = flag.String("chaos.seeds", "1", "seeds of the chaos runs, separated by commas")
)

// TestChaos has clients make orders and payments while everything that can
// break does: connections on both hops, servers (kill -9), and the database.
// Then the weather clears, every operation is asked for once more, and the
// books must be right.
func TestChaos(t *testing.T) {
	pgtest.NewIn(t, pgtest.CrashSafe) // the cluster stays, so it is started before goroutines are counted
	for seed := range strings.SplitSeq(*chaosSeeds, ",") {
		before := runtime.NumGoroutine()
		t.Run("seed "+seed, func(t *testing.T) {
			n, err := strconv.ParseUint(seed, 10, 64)
			require.NoError(t, err)
			chaos(t, n, operations(t, n, *chaosOps))
		})
		requireGoroutines(t, before)
	}
}

func chaos(t *testing.T, seed uint64, ops []idem.Operation) {
	t.Helper()
	require.Zero(t, len(ops)%100, "operations come by the hundred")
	s := newStorm(t, seed)
	s.rage(ops)
	s.calm()
	acknowledged := s.acknowledged()
	final := s.settle(ops)

	s.requireAnswers(final)
	s.requireReplays(final, acknowledged)
	s.requireBooks(ops)
	s.requireStock()
	s.requireCharges(ops)
	s.requireEnd()
	t.Logf("answers that arrived whole: %v; cuts: %d between clients and servers, %d between servers and database; kills: %d",
		s.seen.statuses(), s.cuts.network.Load(), s.cuts.database.Load(), s.kills)
}

// rage sends all operations through the storm: some of them by two clients at
// once, some once more with another body.
func (s *storm) rage(ops []idem.Operation) {
	first, second, misuser := s.client(false), s.client(false), s.client(true)
	each(len(ops), func(i int) {
		switch {
		case i%100 == 50:
			s.kill()
		case i == len(ops)/3:
			s.crash()
		}
		var duplicate sync.WaitGroup
		if i%10 == 3 {
			duplicate.Go(func() { _, _ = s.send(second, ops[i], 20*time.Second) })
		}
		_, err := s.send(first, ops[i], 20*time.Second)
		if err == nil && i%20 == 7 {
			s.misuse(misuser, ops[i])
		}
		duplicate.Wait()
	})
	require.Equal(s.t, len(ops)/100, s.kills)
	require.Equal(s.t, 1, s.crashes)
	require.GreaterOrEqual(s.t, int(s.cuts.network.Load()), len(ops)/10)
	require.NotZero(s.t, s.cuts.database.Load())
}

// misuse sends something else under the key of an operation that is done.
func (s *storm) misuse(client *idem.Client, op idem.Operation) {
	op.Body = []byte(strings.Replace(string(op.Body), `"amount":`, `"amount":1`, 1))
	_, err := s.send(client, op, 20*time.Second)
	var conflict *idem.ConflictError
	if !errors.As(err, &conflict) || conflict.Problem == nil || conflict.Problem.Code != "IDEMPOTENCY_KEY_REUSE" {
		s.t.Errorf("another request under a used key: %v", err)
	}
}

// settle drives every operation to its end and returns the results by key. A
// lease that nobody holds any more is the longest that this can take.
func (s *storm) settle(ops []idem.Operation) map[string]idem.Result[string] {
	client := s.client(false)
	results := make([]idem.Result[string], len(ops))
	each(len(ops), func(i int) {
		var err error
		if results[i], err = s.send(client, ops[i], stormLease+5*time.Second); err != nil {
			s.t.Error(err)
		}
	})
	final := make(map[string]idem.Result[string])
	for _, r := range results {
		final[string(r.Key)] = r
	}
	require.Len(s.t, final, len(ops))
	return final
}

// acknowledged returns the keys of orders that a client has seen made.
func (s *storm) acknowledged() (keys []string) {
	for _, a := range s.seen.answers {
		if a.status == http.StatusCreated && strings.Contains(a.body, "order_id") {
			keys = append(keys, a.key)
		}
	}
	return keys
}

// requireAnswers requires that clients have seen nothing but what the contract
// has, and of every operation only one answer.
func (s *storm) requireAnswers(final map[string]idem.Result[string]) {
	s.t.Helper()
	for _, a := range s.seen.answers {
		switch {
		case a.status == http.StatusCreated && !a.misused:
			require.Equal(s.t, final[a.key].Value, a.body)
		case a.status == http.StatusConflict && a.misused:
		case a.status == http.StatusAccepted && !a.misused, a.status == http.StatusServiceUnavailable:
			require.NotEmpty(s.t, a.header.Get("Retry-After"))
		default:
			require.Fail(s.t, "an answer that the contract does not have", "%+v", a)
		}
	}
	for _, p := range s.processes {
		requireStatuses(s.t, p.log.String())
	}
}

// requireReplays requires that orders which were acknowledged were not made
// again.
func (s *storm) requireReplays(final map[string]idem.Result[string], acknowledged []string) {
	s.t.Helper()
	require.NotEmpty(s.t, acknowledged)
	for _, key := range acknowledged {
		require.True(s.t, final[key].Replayed, "order %s", key)
	}
}

// requireStatuses reads an access log, which also knows the answers that never
// arrived.
func requireStatuses(t *testing.T, log string) {
	t.Helper()
	for line := range strings.Lines(log) {
		var record struct {
			Msg    string `json:"msg"`
			Status int    `json:"status"`
		}
		if json.Unmarshal([]byte(line), &record) == nil && record.Msg == "request" {
			require.Contains(t, []int{201, 202, 409, 503}, record.Status, line)
		}
	}
}

// requireBooks requires one order or payment for each key, and no more.
func (s *storm) requireBooks(ops []idem.Operation) {
	s.t.Helper()
	requireCount(s.t, s.db, len(ops), "idem_operations")
	requireCount(s.t, s.db, len(ops), "idem_operations WHERE status = 'completed'")
	for _, table := range []string{"orders", "payments", "provider_charges"} {
		requireCount(s.t, s.db, len(ops)/2, "refserver."+table)
	}
	requireCount(s.t, s.db, len(ops), "(SELECT DISTINCT amount FROM refserver.ledger) amounts") // no two keys have the same
}

// requireStock requires that what was ordered has left the stock.
func (s *storm) requireStock() {
	s.t.Helper()
	requireCount(s.t, s.db, 0, `
		refserver.stock s WHERE sku LIKE 'CHAOS-%' AND qty <> 1000000 - (
			SELECT coalesce(sum((item->>'qty')::int), 0) FROM refserver.orders, jsonb_array_elements(items) item
			WHERE item->>'sku' = s.sku)`)
}

// requireCharges requires that the provider was asked for a charge no more
// often than there were attempts, and more than once for some.
func (s *storm) requireCharges(ops []idem.Operation) {
	s.t.Helper()
	requests := collect[string, int](s.t, s.db, "SELECT charge_key, requests FROM refserver.provider_charges")
	operations := collect[string, uuid.UUID](s.t, s.db, "SELECT idempotency_key, operation_id FROM idem_operations")
	attempts := collect[string, int](s.t, s.db, "SELECT idempotency_key, attempt FROM idem_operations")
	again := 0
	for _, op := range ops {
		key := string(op.Key)
		asked := requests[server.Operation{ID: operations[key]}.DownstreamKey("charge")]
		require.LessOrEqual(s.t, asked, attempts[key], "the charge of %s", key)
		if op.URL == "/payments" {
			require.NotZero(s.t, asked)
			again += asked - 1
		}
	}
	require.NotZero(s.t, again, "nothing was lost between a charge and its record")
}

// collect returns the rows of a query with two columns.
func collect[K comparable, V any](t *testing.T, db *pgtest.DB, sql string) map[K]V {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	rows, _ := conn.Query(t.Context(), sql)
	all := make(map[K]V)
	var key K
	var value V
	_, err = pgx.ForEachRow(rows, []any{&key, &value}, func() error {
		all[key] = value
		return nil
	})
	require.NoError(t, err)
	return all
}

// requireEnd requires that one server stops in order, and that the other has no
// goroutine more than one that has just been started.
func (s *storm) requireEnd() {
	s.t.Helper()
	one, other := s.instances[0].Load(), s.instances[1].Load()
	require.NoError(s.t, one.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(s.t, one.cmd.Wait(), "the exit code must be 0")

	s.launch(0)
	fresh := s.instances[0].Load()
	<-time.After(time.Second) // for what is about to end
	require.LessOrEqual(s.t, goroutines(s.t, other), goroutines(s.t, fresh), other.log)
}

// goroutines makes a process end with a dump of its goroutines, and counts
// those that its own code has started.
func goroutines(t *testing.T, p *process) (n int) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGQUIT))
	require.Error(t, p.cmd.Wait())
	dump := bufio.NewScanner(strings.NewReader(p.log.String()))
	for dump.Scan() {
		creator, found := strings.CutPrefix(dump.Text(), "created by ")
		if found && !strings.HasPrefix(creator, "runtime.") {
			n++
		}
	}
	require.NoError(t, dump.Err())
	require.NotZero(t, n)
	return n
}

// requireGoroutines waits until there are no more goroutines than there were.
func requireGoroutines(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			require.Fail(t, fmt.Sprintf("%d goroutines are left of %d", runtime.NumGoroutine(), before),
				string(stacks[:runtime.Stack(stacks, true)]))
		}
	}
}
