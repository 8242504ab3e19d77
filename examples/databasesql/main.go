// Command databasesql is a theatre that works with database/sql. A booking, the
// seats that it takes, and the answer that says so are one transaction of one
// database, whether the queries are those of sqlc or of GORM:
//
//	go run . postgres://user@host/database
//
// [theatre.withQueries] and [theatre.withGORM] are what to copy. The tables are
// in a schema called theatre, made anew with every run.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: databasesql DATABASE-URL")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "databasesql:", err)
		os.Exit(1)
	}
}

const schema = `
DROP SCHEMA IF EXISTS theatre CASCADE;
CREATE SCHEMA theatre;
CREATE TABLE theatre.bookings (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, seats int NOT NULL);
CREATE TABLE theatre.house (seats int NOT NULL);
INSERT INTO theatre.house VALUES (10)`

// run opens a theatre on the database, and books there.
func run(ctx context.Context, out io.Writer, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	store := pgstore.FromDB(db)
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return err
	}
	t, err := newTheatre(db)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: t.handler(store), ReadHeaderTimeout: time.Second}
	go func() { _ = web.Serve(listener) }() // until Close
	defer web.Close()
	return book(ctx, out, "http://"+listener.Addr().String(), db)
}

type theatre struct {
	queries *Queries
	gorm    *gorm.DB
	asked   atomic.Bool
}

func newTheatre(db *sql.DB) (*theatre, error) {
	g, err := gorm.Open(postgres.New(postgres.Config{Conn: db}))
	return &theatre{queries: New(db), gorm: g}, err
}

func (t *theatre) handler(store *pgstore.Store) http.Handler {
	guard := &server.Middleware{
		Store: store,
		Account: func(r *http.Request) (string, error) {
			return r.Header.Get("X-Account-Id"), nil // a real theatre asks its authentication
		},
	}
	mux := http.NewServeMux()
	mux.Handle("POST /sqlc/bookings", guard.Handler(t.sell(t.withQueries)))
	mux.Handle("POST /gorm/bookings", guard.Handler(t.sell(t.withGORM)))
	return mux
}

// Booking is what the theatre takes and returns.
type Booking struct {
	ID    int64 `json:"id,omitempty"`
	Seats int32 `json:"seats"`
	Box   bool  `gorm:"-" json:"box,omitempty"`
}

// TableName is for GORM.
func (Booking) TableName() string { return "theatre.bookings" }

var errSoldOut = errors.New("so many seats are not left")

// withQueries books by the queries of sqlc.
func (t *theatre) withQueries(ctx context.Context, tx *sql.Tx, b *Booking) error {
	q := t.queries.WithTx(tx)
	taken, err := q.TakeSeats(ctx, b.Seats)
	if err != nil {
		return err
	}
	if taken == 0 {
		return errSoldOut
	}
	b.ID, err = q.CreateBooking(ctx, b.Seats)
	return err
}

// withGORM books by GORM. Transaction makes a savepoint here.
func (t *theatre) withGORM(ctx context.Context, tx *sql.Tx, b *Booking) error {
	return on(ctx, t.gorm, tx).Transaction(func(db *gorm.DB) error {
		house := db.Table("theatre.house").Where("seats >= ?", b.Seats).Update("seats", gorm.Expr("seats - ?", b.Seats))
		if house.Error != nil {
			return house.Error
		}
		if house.RowsAffected == 0 {
			return errSoldOut
		}
		return db.Create(b).Error
	})
}

// on returns db in the transaction tx.
func on(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	db = db.Session(&gorm.Session{NewDB: true, Context: ctx})
	db.Statement.ConnPool = tx
	return db
}

// sell returns a handler. Nobody has to undo anything here: what is done in tx
// is durable if the answer is 201, and never was if it is anything else.
func (t *theatre) sell(book func(context.Context, *sql.Tx, *Booking) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b Booking
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil || b.Seats < 1 {
			http.Error(w, "say how many seats", http.StatusBadRequest)
			return
		}
		tx, err := pgstore.SQLTx(r.Context())
		if err == nil {
			err = book(r.Context(), tx, &b)
		}
		switch {
		case errors.Is(err, errSoldOut): // kept and replayed, like 201
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		case err != nil || b.Box && !t.askForBox(): // not kept: the client's retry runs again
			http.Error(w, "try again", http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(b) // the client asks again for what it did not get
		}
	}
}

// askForBox fails every other time.
func (t *theatre) askForBox() bool {
	asked := t.asked.Load()
	t.asked.Store(!asked)
	return asked
}

// book sends some bookings, each of them twice, and then looks into the books.
func book(ctx context.Context, out io.Writer, url string, db *sql.DB) error {
	client := &idem.Client{BaseURL: url, Header: http.Header{"X-Account-Id": {"anna"}}}
	for _, way := range []string{"sqlc", "gorm"} {
		for _, b := range []Booking{{Seats: 2}, {Seats: 20}, {Seats: 1, Box: true}} {
			op, err := idem.NewOperation("POST", "/"+way+"/bookings", b)
			if err != nil {
				return err
			}
			for range 2 {
				res, err := idem.Send[Booking](ctx, client, op)
				if err != nil && idem.OutcomeOf(err) != idem.Rejected {
					return err
				}
				fmt.Fprintf(out, "%s, seats: %d, status: %d, attempts: %d, replayed: %t\n", way, b.Seats, res.StatusCode, res.Attempts, res.Replayed)
			}
		}
	}
	var bookings, left int
	err := db.QueryRowContext(ctx, `SELECT count(*), (SELECT seats FROM theatre.house) FROM theatre.bookings`).Scan(&bookings, &left)
	fmt.Fprintf(out, "bookings: %d, seats left: %d\n", bookings, left)
	return err
}
