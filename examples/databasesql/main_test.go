package main

import (
	"bytes"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server/pgstore"
)

func TestEveryBookingIsMadeOnceOrNotAtAll(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for range 2 {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out, db.URL))
		require.Equal(t, `sqlc, seats: 2, status: 201, attempts: 1, replayed: false
sqlc, seats: 2, status: 201, attempts: 1, replayed: true
sqlc, seats: 20, status: 422, attempts: 1, replayed: false
sqlc, seats: 20, status: 422, attempts: 1, replayed: true
sqlc, seats: 1, status: 201, attempts: 2, replayed: false
sqlc, seats: 1, status: 201, attempts: 1, replayed: true
gorm, seats: 2, status: 201, attempts: 1, replayed: false
gorm, seats: 2, status: 201, attempts: 1, replayed: true
gorm, seats: 20, status: 422, attempts: 1, replayed: false
gorm, seats: 20, status: 422, attempts: 1, replayed: true
gorm, seats: 1, status: 201, attempts: 2, replayed: false
gorm, seats: 1, status: 201, attempts: 1, replayed: true
bookings: 4, seats left: 4
`, out.String())
	}
}

func TestBookingAndAnswerCommitOrRollBackTogether(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"sqlc", "gorm"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, schema)
			opened, err := sql.Open("pgx", db.URL)
			require.NoError(t, err)
			defer opened.Close()
			store := pgstore.FromDB(opened)
			require.NoError(t, store.Migrate(t.Context()))
			theatre, err := newTheatre(opened)
			require.NoError(t, err)
			h := theatre.handler(store)
			durable := func() [3]int {
				return [3]int{
					pgtest.Value[int](t, db, "SELECT count(*) FROM theatre.bookings"),
					10 - pgtest.Value[int](t, db, "SELECT seats FROM theatre.house"),
					pgtest.Value[int](t, db, "SELECT count(*) FROM idem_operations WHERE status = 'completed'"),
				}
			}

			require.Equal(t, http.StatusServiceUnavailable, post(h, "/"+way+"/bookings"))
			require.Equal(t, [3]int{0, 0, 0}, durable(), "bookings, seats, answers")
			for range 2 {
				require.Equal(t, http.StatusCreated, post(h, "/"+way+"/bookings"))
				require.Equal(t, [3]int{1, 3, 1}, durable(), "bookings, seats, answers")
			}
		})
	}
}

// post books three seats in a box, which takes two attempts.
func post(h http.Handler, target string) int {
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(`{"seats":3,"box":true}`))
	r.Header.Set("X-Account-Id", "anna")
	r.Header.Set("Idempotency-Key", "key")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}
