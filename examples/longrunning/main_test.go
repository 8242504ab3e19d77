package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
)

func TestAReportIsPrintedOnceHoweverOftenItIsAskedFor(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for range 2 {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out, db.URL))
		require.Equal(t, `outcome: pending, printed: 0
outcome: pending, printed: 0
status: 201, The year in figures, printed as number 1
status: 201, The year in figures, printed as number 1
`, out.String())
	}
	require.Equal(t, 2, pgtest.Value[int](t, db, "SELECT count(*) FROM river_job WHERE state = 'completed'"))
}

// start starts the service on a new database.
func start(t *testing.T) (*service, *pgtest.DB) {
	t.Helper()
	db := pgtest.New(t)
	pool := db.Pool(t)
	require.NoError(t, migrate(t.Context(), pool))
	s, err := newService(t.Context(), pool)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.jobs.StopAndCancel(context.WithoutCancel(t.Context())) })
	return s, db
}

func serve(h http.Handler, method, target, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set("X-Account-Id", "anna")
	r.Header.Set("Idempotency-Key", "key")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const year = `{"title":"The year in figures"}`

func TestTheStatusOfAReport(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	h := s.handler()
	accepted := serve(h, "POST", "/reports", year)
	require.Equal(t, http.StatusAccepted, accepted.Code, accepted.Body)
	status := accepted.Header().Get("Location")
	require.Equal(t, http.StatusAccepted, serve(h, "GET", status, "").Code)
	close(s.paper)
	require.Eventually(t, func() bool { return serve(h, "GET", status, "").Code == http.StatusCreated }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, "The year in figures, printed as number 1", serve(h, "GET", status, "").Body.String())
	require.Equal(t, serve(h, "POST", "/reports", year).Body, serve(h, "GET", status, "").Body)
}

// Neither is there without the other.
func TestTheJobAndThePromiseAreOneCommit(t *testing.T) {
	t.Parallel()
	s, db := start(t)
	h := s.handler()
	db.Exec(t, "ALTER TABLE idem_operations ADD CONSTRAINT no_promises CHECK (status <> 'processing')")
	require.Equal(t, http.StatusInternalServerError, serve(h, "POST", "/reports", year).Code)
	require.Equal(t, 0, pgtest.Value[int](t, db, "SELECT count(*) FROM river_job"))
	db.Exec(t, "ALTER TABLE idem_operations DROP CONSTRAINT no_promises")
	require.Equal(t, http.StatusAccepted, serve(h, "POST", "/reports", year).Code)
	require.Equal(t, http.StatusAccepted, serve(h, "POST", "/reports", year).Code)
	require.Equal(t, 1, pgtest.Value[int](t, db, "SELECT count(*) FROM river_job"))
}

func TestAReportWithoutATitleIsRefused(t *testing.T) {
	t.Parallel()
	s, db := start(t)
	for range 2 {
		require.Equal(t, http.StatusUnprocessableEntity, serve(s.handler(), "POST", "/reports", "{}").Code)
	}
	require.Equal(t, 0, pgtest.Value[int](t, db, "SELECT count(*) FROM river_job"))
}
