package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

var working = server.Response{
	StatusCode: http.StatusAccepted, Fields: []server.Field{{Name: "Retry-After", Value: "1"}}, Body: []byte("working"),
}

// accepted ends claim with an acceptance and returns its ticket.
func accepted(t *testing.T, claim server.Claim, lease time.Duration) server.Ticket {
	t.Helper()
	acceptor := claim.Lease.(server.Acceptor)
	rec, err := acceptor.Accept(t.Context(), working, lease)
	require.NoError(t, err)
	require.Equal(t, server.Record{
		Status: server.Processing, Operation: claim.Operation.ID, Attempt: claim.Operation.Attempt, LeaseLeft: lease, Response: &working,
	}, rec)
	return acceptor.Ticket()
}

// accept does what a server does with a request whose handler leaves a job.
func accept(ctx context.Context, store server.Store, req server.ClaimRequest) (server.Record, error) {
	for range 4 {
		claim, err := store.Claim(ctx, req)
		if err != nil || claim.Lease == nil {
			return claim.Record, err
		}
		if err := inTransaction(claim.Lease.Context(ctx), claim.Operation); err != nil {
			if errors.Is(claim.Lease.Release(ctx, err), server.ErrRestart) {
				continue
			}
			return server.Record{}, err
		}
		rec, err := claim.Lease.(server.Acceptor).Accept(ctx, working, time.Minute)
		if !errors.Is(err, server.ErrRestart) {
			return rec, err
		}
	}
	return server.Record{}, server.ErrRestart
}

func TestJobAndAcceptanceCommitTogether(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	require.Empty(t, recorded(t, db, "key"))
	ticket := accepted(t, claim, time.Minute)
	require.Equal(t, 1, effects(t, db, "key"))
	require.Equal(t, "processing", recorded(t, db, "key"))

	for _, newStore := range modes {
		rec := found(t, open(t, newStore, db), request("key"))
		require.Equal(t, server.Processing, rec.Status)
		require.Equal(t, &working, rec.Response)
		require.Equal(t, ticket.ID, rec.Operation)
	}
	_, err := open(t, pgstore.New, db).Finish(t.Context(), ticket, answer(201, "done"), time.Hour)
	require.NoError(t, err)
	require.Equal(t, "done", string(found(t, store, request("key")).Response.Body))
	require.Equal(t, 1, effects(t, db, "key"))
}

func TestAnAcceptanceAfterAnIgnoredErrorIsNotBelieved(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	failing(ctx, pgstore.Tx(ctx))
	_, err := claim.Lease.(server.Acceptor).Accept(t.Context(), working, time.Minute)
	require.ErrorIs(t, err, server.ErrRolledBack)
	require.Equal(t, 0, effects(t, db, "key"))
	require.Empty(t, recorded(t, db, "key"))
}

func TestAnAcceptanceCostsNoRoundTripMoreThanATransaction(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w := newWire(t, db)
	store := open(t, pgstore.Transactional, w.With("pool_max_conns", "2"))
	_, err := accept(t.Context(), store, request("warm-up"))
	require.NoError(t, err)
	before := w.reset()
	_, err = accept(t.Context(), store, request("key"))
	require.NoError(t, err)
	require.Equal(t, 3, w.Flights()-before, "BEGIN, the handler's own statement, COMMIT")
	require.Equal(t, []string{
		"BEGIN ISOLATION", "SELECT CASE",
		"INSERT INTO",
		"INSERT INTO", "COMMIT",
	}, w.seen())
}

// Whatever is lost on the way, there is a job if and only if the operation has
// been accepted.
func TestConnectionLostAtAnyStatementOfAnAcceptance(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	w, clean := newWire(t, db), open(t, pgstore.Transactional, db)
	store := open(t, pgstore.Transactional, w.With("pool_max_conns", "2"))
	_, err := accept(t.Context(), store, request("warm-up"))
	require.NoError(t, err)
	statements := 0
	for n, struck := 1, true; struck; n++ {
		for _, f := range []fault{
			{"cut before it", func(pgtest.Statement) pgtest.Verdict { return pgtest.Cut }},
			{"cut after its flight", func(pgtest.Statement) pgtest.Verdict { return pgtest.CutReply }},
			{"session ended before it", func(s pgtest.Statement) pgtest.Verdict {
				terminate(t, db, s)
				return pgtest.Pass
			}},
		} {
			req := request(fmt.Sprintf("%d/%s", n, f.name))
			w.reset()
			end := interrupt(w, n, f)
			said, err := accept(t.Context(), store, req)
			struck = end()
			if err == nil && said.Response != nil {
				require.Equal(t, 1, effects(t, db, req.ID.Key), "what was said is so")
			}
			rec, err := accept(t.Context(), clean, req)
			for err == nil && rec.Response == nil { // a session that is lost still holds the key
				require.NoError(t, t.Context().Err())
				rec, err = accept(t.Context(), clean, req)
			}
			require.NoError(t, err)
			require.Equal(t, server.Processing, rec.Status)
			require.Equal(t, &working, rec.Response)
			require.Equal(t, 1, effects(t, db, req.ID.Key), "%s", req.ID.Key)
		}
		if struck {
			statements = n
		}
	}
	require.Equal(t, 5, statements, "statements that were struck")
}

// A worker that was taken for lost, but renews before the next attempt commits,
// keeps its operation. The attempt is rolled back.
func TestAWorkerThatComesBackInTime(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	store := open(t, pgstore.Transactional, db)
	claim, ctx := begun(t, store, request("key"))
	done(t, ctx, "key")
	ticket := accepted(t, claim, time.Millisecond)
	<-time.After(5 * time.Millisecond)

	next, ctx := begun(t, store, request("key"))
	require.True(t, next.TakenOver)
	require.Equal(t, 2, next.Operation.Attempt)
	done(t, ctx, "key")
	require.NoError(t, store.Renew(t.Context(), ticket, time.Minute))
	_, err := next.Lease.(server.Acceptor).Accept(t.Context(), working, time.Minute)
	require.ErrorIs(t, err, server.ErrRestart)
	require.Equal(t, 1, effects(t, db, "key"))
	rec := found(t, store, request("key"))
	require.Equal(t, 1, rec.Attempt)
	require.Equal(t, &working, rec.Response)
}

func TestWorkAndItsAnswerCommitTogether(t *testing.T) {
	t.Parallel()
	for mode, newStore := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			pool, store := db.Pool(t), open(t, newStore, db)
			ticket := accepted(t, owned(t, store, request("key")), time.Minute)
			failed := errors.New("the work failed")
			work := func(after error) error {
				return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					if _, err := tx.Exec(t.Context(), insertEffect, ticket.Key, ticket.ID, ticket.Attempt); err != nil {
						return err
					}
					return errors.Join(store.FinishTx(t.Context(), tx, ticket, answer(201, "done"), time.Hour), after)
				})
			}
			require.ErrorIs(t, work(failed), failed)
			require.Equal(t, 0, effects(t, db, "key"))
			require.Equal(t, &working, found(t, store, request("key")).Response)

			require.NoError(t, work(nil))
			require.ErrorIs(t, work(nil), server.ErrLeaseLost, "the job is delivered once more")
			require.Equal(t, 1, effects(t, db, "key"))
			require.Equal(t, "done", string(found(t, store, request("key")).Response.Body))
		})
	}
}

func TestALongOperationAcrossProcesses(t *testing.T) {
	t.Parallel()
	for mode, newStore := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			tickets := make(chan server.Ticket, 1)
			handler := func(w http.ResponseWriter, r *http.Request) {
				ticket, err := server.Accept(r.Context(), time.Minute)
				if err == nil && mode == "transactional" {
					err = inTransaction(r.Context(), ticket.Operation)
				}
				if err != nil {
					http.Error(w, err.Error(), http.StatusInternalServerError)
					return
				}
				w.Header().Set("Location", "/operations/"+ticket.StatusID())
				tickets <- ticket
			}
			one, other, worker := open(t, newStore, db), open(t, newStore, db), open(t, newStore, db)
			first := post(guarded(one, handler), "key", "{}")
			second := post(guarded(other, http.NotFound), "key", "{}")
			status := (&server.Middleware{
				Store: other, Account: func(*http.Request) (string, error) { return "acme", nil },
			}).StatusHandler()
			look := func() *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				status.ServeHTTP(w, httptest.NewRequest(http.MethodGet, first.Header().Get("Location"), nil))
				return w
			}
			for _, w := range []*httptest.ResponseRecorder{first, second, look()} {
				require.Equal(t, http.StatusAccepted, w.Code)
				require.Equal(t, first.Body.String(), w.Body.String())
				require.Equal(t, "1", w.Header().Get("Retry-After"))
				require.Empty(t, w.Header().Get("Idempotent-Replayed"))
			}

			require.NoError(t, server.Work(t.Context(), worker, <-tickets, func(context.Context) (server.Response, error) {
				return answer(http.StatusCreated, "done"), nil
			}))
			for _, w := range []*httptest.ResponseRecorder{post(guarded(other, http.NotFound), "key", "{}"), look()} {
				require.Equal(t, http.StatusCreated, w.Code)
				require.Equal(t, "done", w.Body.String())
				require.Equal(t, "true", w.Header().Get("Idempotent-Replayed"))
			}
		})
	}
}

func TestTicketsAreOfNoUseWithoutTheSchema(t *testing.T) {
	t.Parallel()
	store := pgstore.New(pgtest.New(t).Pool(t))
	_, err := store.Finish(t.Context(), server.Ticket{}, answer(201, "done"), time.Hour)
	require.ErrorContains(t, err, "pgstore.Migrate")
	require.ErrorContains(t, store.Renew(t.Context(), server.Ticket{}, time.Hour), "pgstore.Migrate")
	_, err = store.Find(t.Context(), server.ID{})
	require.ErrorContains(t, err, "pgstore.Migrate")
}
