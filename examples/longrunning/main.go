// Command longrunning prints reports, which takes longer than a request may. A
// report that is asked for becomes a job of River (https://riverqueue.com), and
// the row of that job and the promise to the client are one commit:
//
//	go run . postgres://user@host/database
//
// [service.create] and [service.Work] are all that a service has to write.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: longrunning DATABASE-URL")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "longrunning:", err)
		os.Exit(1)
	}
}

// report is the job. Its ticket is what the worker finishes the operation with.
type report struct {
	Ticket server.Ticket `json:"ticket"`
	Title  string        `json:"title"`
}

func (report) Kind() string { return "report" }

// service prints reports.
type service struct {
	river.WorkerDefaults[report]

	store   *pgstore.Store
	jobs    *river.Client[pgx.Tx]
	paper   chan struct{} // closed when there is some
	printed atomic.Int64
}

// create leaves the report to a worker, who may go five minutes without a sign
// of life.
func (s *service) create(w http.ResponseWriter, r *http.Request) {
	var job report
	if err := json.NewDecoder(r.Body).Decode(&job); err != nil || job.Title == "" {
		http.Error(w, "a report has a title", http.StatusUnprocessableEntity)
		return
	}
	var err error
	job.Ticket, err = server.Accept(r.Context(), 5*time.Minute)
	if err == nil {
		_, err = s.jobs.InsertTx(r.Context(), pgstore.Tx(r.Context()), job, nil)
	}
	if err != nil { // the transaction is rolled back, and a retry tries again
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Location", "/operations/"+job.Ticket.StatusID())
	w.WriteHeader(http.StatusAccepted) // for the time being
}

// Work prints a report. An error lets River try again, with the same ticket.
func (s *service) Work(ctx context.Context, job *river.Job[report]) error {
	err := server.Work(ctx, s.store, job.Args.Ticket, func(ctx context.Context) (server.Response, error) {
		select {
		case <-s.paper:
		case <-ctx.Done():
			return server.Response{}, context.Cause(ctx)
		}
		n := s.printed.Add(1)
		body := fmt.Sprintf("%s, printed as number %d", job.Args.Title, n)
		return server.Response{StatusCode: http.StatusCreated, Body: []byte(body)}, nil
	})
	if errors.Is(err, server.ErrLeaseLost) {
		return nil // somebody else has printed it, or is about to
	}
	return err
}

// newService returns a service on the database whose worker runs until ctx is
// done.
func newService(ctx context.Context, pool *pgxpool.Pool) (*service, error) {
	s := &service{store: pgstore.Transactional(pool), paper: make(chan struct{})}
	workers := river.NewWorkers()
	river.AddWorker(workers, s)
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers: workers,
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	s.jobs = jobs
	return s, jobs.Start(ctx)
}

func (s *service) handler() http.Handler {
	guard := &server.Middleware{
		Store: s.store,
		Account: func(r *http.Request) (string, error) {
			return r.Header.Get("X-Account-Id"), nil // a real service asks its authentication
		},
	}
	mux := http.NewServeMux()
	mux.Handle("POST /reports", guard.Handler(http.HandlerFunc(s.create)))
	mux.Handle("GET /operations/{operation}", guard.StatusHandler())
	return mux
}

// run starts a service on the database and has a report printed.
func run(ctx context.Context, out io.Writer, url string) error {
	pool, err := pgstore.Open(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate(ctx, pool); err != nil {
		return err
	}
	s, err := newService(ctx, pool)
	if err != nil {
		return err
	}
	defer func() { _ = s.jobs.Stop(context.WithoutCancel(ctx)) }()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Second}
	go func() { _ = web.Serve(listener) }() // until Close
	defer web.Close()
	return s.order(ctx, out, "http://"+listener.Addr().String())
}

func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if err := pgstore.Migrate(ctx, pool); err != nil {
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// order asks for one report several times.
func (s *service) order(ctx context.Context, out io.Writer, url string) error {
	header := http.Header{"X-Account-Id": {"anna"}}
	impatient := &idem.Client{BaseURL: url, Header: header, Retry: idem.RetryPolicy{MaxWait: time.Nanosecond}}
	op, err := idem.NewOperation("POST", "/reports", map[string]string{"title": "The year in figures"})
	if err != nil {
		return err
	}
	for range 2 {
		_, err = idem.Send[string](ctx, impatient, op)
		fmt.Fprintf(out, "outcome: %v, printed: %d\n", idem.OutcomeOf(err), s.printed.Load())
	}
	close(s.paper)

	client := &idem.Client{BaseURL: url, Header: header}
	for range 2 {
		res, err := idem.Send[string](ctx, client, op)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "status: %d, %s\n", res.StatusCode, res.Value)
	}
	return nil
}
