package pgstore_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

var stressKeys = flag.Int("stress.keys", 50, "operations that TestStress runs with every store and on every way to it")

const (
	stressProcesses  = 3
	stressConns      = 8                     // of each process
	stressClients    = 200                   // at the same time
	stressDuplicates = 6                     // of each request
	stressPause      = 10 * time.Millisecond // between an effect and its answer, at most
	stressKill       = 25 * time.Millisecond // between the ends of two sessions
)

// TestStress sends every request several times at once to processes whose
// handlers fail after their effect as often as not, while session after session
// is ended. It is not parallel: it needs what connections there are.
func TestStress(t *testing.T) { //nolint:paralleltest // see above
	stores := map[string]func(*testing.T, *pgtest.DB) *pgstore.Store{
		"database/sql": func(t *testing.T, db *pgtest.DB) *pgstore.Store {
			t.Helper()
			opened := sqlDB(t, db)
			opened.SetMaxOpenConns(stressConns)
			return pgstore.FromDB(opened)
		},
	}
	for mode, newStore := range modes {
		stores[mode] = func(t *testing.T, db *pgtest.DB) *pgstore.Store {
			t.Helper()
			return newStore(db.With("pool_max_conns", strconv.Itoa(stressConns)).Pool(t))
		}
	}
	for mode, newStore := range stores {
		for _, locks := range []string{"", " without locks"} {
			for _, way := range []string{"", " through pgbouncer"} {
				t.Run(mode+locks+way, func(t *testing.T) {
					db := newStressDB(t)
					if locks != "" {
						withoutLocksForAll(t, db)
					}
					stop := endSessions(t, db)
					reached := db
					if way != "" {
						reached = db.Bouncer(t).With("default_query_exec_mode", "cache_describe")
					}
					s := newStress(t, mode, reached, newStore)
					s.run(t, *stressKeys)
					require.Positive(t, stop(), "sessions that were ended")
					s.check(t, db)
				})
			}
		}
	}
}

func newStressDB(t *testing.T) *pgtest.DB {
	t.Helper()
	steps, err := pgstore.Migrations("")
	require.NoError(t, err)
	return pgtest.New(t, append(steps,
		"CREATE TABLE executions (key text NOT NULL, operation_id uuid NOT NULL, attempt integer NOT NULL, id uuid NOT NULL)")...)
}

// withoutLocksForAll is withoutLocks for every session from now on, also those
// that a pooler makes.
func withoutLocksForAll(t *testing.T, db *pgtest.DB) {
	t.Helper()
	withoutLocks(t, db)
	db.Exec(t, `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET search_path = public, shadow, pg_catalog', current_database());
	END $$`)
}

// endSessions ends a session of db every now and then until stop is called,
// which returns how many there were.
func endSessions(t *testing.T, db *pgtest.DB) (stop func() int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		defer conn.Close(context.WithoutCancel(ctx))
		tick := time.NewTicker(stressKill)
		defer tick.Stop()
		total := 0
		for {
			select {
			case <-ctx.Done():
				ended <- total
				return
			case <-tick.C:
			}
			var n int
			err := conn.QueryRow(ctx, `
				SELECT count(pg_terminate_backend(pid)) FROM (
				       SELECT pid FROM pg_stat_activity
				       WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
				       ORDER BY random() LIMIT 1) AS victim`).Scan(&n)
			if err != nil && ctx.Err() == nil {
				t.Errorf("ending a session: %v", err)
			}
			total += n
		}
	}()
	stop = func() int {
		cancel()
		return <-ended
	}
	return stop
}

// stress is a service of some processes, and what its clients were told.
type stress struct {
	mode      string
	processes []http.Handler
	exec      func(ctx context.Context, sql string, args ...any) error

	mu      sync.Mutex
	answers map[string]map[string]int // how often which final answer was given, by key
}

func newStress(t *testing.T, mode string, db *pgtest.DB, newStore func(*testing.T, *pgtest.DB) *pgstore.Store) *stress {
	t.Helper()
	s := &stress{mode: mode, answers: map[string]map[string]int{}}
	elsewhere := db.With("pool_max_conns", "8").Pool(t)
	s.exec = func(ctx context.Context, sql string, args ...any) error {
		if mode == "lease" {
			_, err := elsewhere.Exec(ctx, sql, args...)
			return err
		}
		if tx, err := pgstore.SQLTx(ctx); err == nil {
			_, err := tx.ExecContext(ctx, sql, args...)
			return err
		}
		_, err := pgstore.Tx(ctx).Exec(ctx, sql, args...)
		return err
	}
	for range stressProcesses {
		store := newStore(t, db)
		store.Logger = quiet
		m := &server.Middleware{
			Store:        store,
			Account:      func(*http.Request) (string, error) { return "acme", nil },
			Lease:        time.Second, // after which a claim that the clients and the server lost sight of is taken over
			StoreTimeout: 30 * time.Second,
			Logger:       quiet,
		}
		s.processes = append(s.processes, m.Handler(http.HandlerFunc(s.handle)))
		t.Cleanup(func() { require.NoError(t, m.Drain(context.WithoutCancel(t.Context()))) })
	}
	return s
}

// handle has its effect, and then fails as often as not.
func (s *stress) handle(w http.ResponseWriter, r *http.Request) {
	op, _ := server.OperationFrom(r.Context())
	id := uuid.New()
	const effect = "INSERT INTO executions (key, operation_id, attempt, id) VALUES ($1, $2, $3, $4)"
	if err := s.exec(r.Context(), effect, op.Key, op.ID, op.Attempt, id); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	<-time.After(rand.N(stressPause))
	switch rand.IntN(6) {
	case 0:
		http.Error(w, "failed after the effect", http.StatusInternalServerError)
		return
	case 1:
		panic(http.ErrAbortHandler)
	case 2:
		_ = s.exec(r.Context(), "SELECT 1/0") // and says that all is well
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, id)
}

// run sends all requests, each until it has its final answer.
func (s *stress) run(t *testing.T, keys int) {
	t.Helper()
	var next atomic.Int64
	var clients sync.WaitGroup
	for i := range stressClients {
		clients.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= keys*stressDuplicates || t.Context().Err() != nil {
					return
				}
				key := fmt.Sprintf("key-%d", n/stressDuplicates)
				s.ask(t, s.processes[(n+i)%stressProcesses], key)
			}
		})
	}
	clients.Wait()
}

// ask sends the request of key until it has a final answer.
func (s *stress) ask(t *testing.T, process http.Handler, key string) {
	t.Helper()
	for try := 1; t.Context().Err() == nil; try++ {
		a := postOrAbort(process, key)
		switch a.Code {
		case http.StatusCreated:
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.answers[key] == nil {
				s.answers[key] = map[string]int{}
			}
			s.answers[key][a.Body.String()]++
			return
		case http.StatusAccepted, http.StatusInternalServerError, http.StatusServiceUnavailable:
			<-time.After(time.Duration(min(try, 20)) * 5 * time.Millisecond)
		default:
			t.Errorf("%s got %d: %s", key, a.Code, a.Body)
			return
		}
	}
}

// postOrAbort is post of a client whose connection breaks off when the handler
// panics.
func postOrAbort(h http.Handler, key string) (a *httptest.ResponseRecorder) {
	defer func() {
		if p := recover(); p == http.ErrAbortHandler { //nolint:errorlint // a panic's value
			a = httptest.NewRecorder()
			a.Code = http.StatusInternalServerError
		} else if p != nil {
			panic(p)
		}
	}()
	return post(h, key, `{"amount": 1}`)
}

// check demands that every operation was executed once, as far as the mode can
// tell, and that all its clients were told of that execution.
func (s *stress) check(t *testing.T, db *pgtest.DB) {
	t.Helper()
	require.Len(t, s.answers, *stressKeys)
	told := map[string]string{}
	for key, answers := range s.answers {
		require.Len(t, answers, 1, key)
		for id, n := range answers {
			require.Equal(t, stressDuplicates, n, key)
			told[key] = id
		}
	}
	require.Equal(t, *stressKeys, pgtest.Value[int](t, db, "SELECT count(*) FROM idem_operations WHERE status = 'completed'"))
	if s.mode != "lease" {
		require.Equal(t, told, pgtest.Value[map[string]string](t, db, "SELECT jsonb_object_agg(key, id) FROM executions"))
		require.Equal(t, *stressKeys, pgtest.Value[int](t, db, "SELECT count(*) FROM executions"))
		return
	}
	ids := make([]string, 0, len(told))
	for _, id := range told {
		ids = append(ids, id)
	}
	require.Equal(t, *stressKeys, pgtest.Value[int](t, db, "SELECT count(*) FROM executions WHERE id = ANY($1)", ids))
	require.Equal(t, *stressKeys, pgtest.Value[int](t, db, "SELECT count(DISTINCT operation_id) FROM executions"),
		"what the other side took for different operations")
	require.Zero(t, pgtest.Value[int](t, db, "SELECT count(*) - count(DISTINCT (key, attempt)) FROM executions"),
		"attempts that were executed twice")
}
