package main

import (
	"context"
	"database/sql"
)

// What follows is what sqlc (https://sqlc.dev) generates from
//
//	-- name: TakeSeats :execrows
//	UPDATE theatre.house SET seats = seats - $1 WHERE seats >= $1;
//
//	-- name: CreateBooking :one
//	INSERT INTO theatre.bookings (seats) VALUES ($1) RETURNING id;

// DBTX is a database or a transaction.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Queries are the queries on db.
type Queries struct{ db DBTX }

// New returns the queries on db.
func New(db DBTX) *Queries { return &Queries{db: db} }

// WithTx returns the queries in a transaction.
func (*Queries) WithTx(tx *sql.Tx) *Queries { return &Queries{db: tx} }

const takeSeats = `UPDATE theatre.house SET seats = seats - $1 WHERE seats >= $1`

// TakeSeats returns 0 if fewer are left.
func (q *Queries) TakeSeats(ctx context.Context, seats int32) (int64, error) {
	result, err := q.db.ExecContext(ctx, takeSeats, seats)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

const createBooking = `INSERT INTO theatre.bookings (seats) VALUES ($1) RETURNING id`

// CreateBooking returns the number of the booking.
func (q *Queries) CreateBooking(ctx context.Context, seats int32) (int64, error) {
	row := q.db.QueryRowContext(ctx, createBooking, seats)
	var id int64
	err := row.Scan(&id)
	return id, err
}
