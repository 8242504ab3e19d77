package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
)

func TestOrderIsTakenOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	shop, err := newShop(t.Context(), db.Pool(t))
	require.NoError(t, err)
	order := func(key, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("X-Account-Id", "anna")
		w := httptest.NewRecorder()
		shop.ServeHTTP(w, r)
		return w
	}

	first := order("order-1", `{"item":"book","pieces":2}`)
	require.Equal(t, http.StatusCreated, first.Code, first.Body.String())
	again := order("order-1", `{ "pieces": 2, "item": "book" }`)
	require.Equal(t, http.StatusCreated, again.Code)
	require.Equal(t, first.Body.String(), again.Body.String())
	require.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
	require.Equal(t, 8, pgtest.Value[int](t, db, "SELECT pieces FROM stock"))

	for range 2 {
		soldOut := order("order-2", `{"item":"book","pieces":9}`)
		require.Equal(t, http.StatusUnprocessableEntity, soldOut.Code)
		require.Equal(t, "sold out\n", soldOut.Body.String())
	}
	require.Equal(t, 8, pgtest.Value[int](t, db, "SELECT pieces FROM stock"))
	require.Equal(t, 1, pgtest.Value[int](t, db, "SELECT count(*) FROM orders"))
	require.Equal(t, http.StatusConflict, order("order-1", `{"item":"book","pieces":3}`).Code)
	require.Equal(t, http.StatusBadRequest, order("order-3", `{"item":"book"}`).Code)
}
