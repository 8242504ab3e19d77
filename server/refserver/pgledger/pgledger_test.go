package pgledger_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
	"github.com/idemhttp/idem/server/refserver"
	"github.com/idemhttp/idem/server/refserver/pgledger"
)

func migrated(t *testing.T) (*pgtest.DB, *pgxpool.Pool) {
	t.Helper()
	db := pgtest.New(t)
	pool := db.Pool(t)
	require.NoError(t, pgstore.Migrate(t.Context(), pool))
	require.NoError(t, pgledger.Migrate(t.Context(), pool))
	return db, pool
}

// start returns the API on a database.
func start(t *testing.T, pool *pgxpool.Pool) *refserver.Server {
	t.Helper()
	api, err := refserver.New(refserver.Config{
		Orders:   &server.Middleware{Store: pgstore.Transactional(pool)},
		Payments: &server.Middleware{Store: pgstore.New(pool)},
		Ledger:   pgledger.New(pool),
		Provider: pgledger.NewProvider(pool),
		Logger:   slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	return api
}

func send(api http.Handler, method, path, key, body, fault string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header = http.Header{"Content-Type": {"application/json"}, "X-Account-Id": {"acme"}, "Idempotency-Key": {key}}
	if fault != "" {
		r.Header.Set(refserver.FaultField, fault)
	}
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	return w
}

func TestEntriesComeBackAsTheyWereBooked(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	api := start(t, pool)
	ordered := send(api, "POST", "/orders", "1", `{"items":[{"sku":"SKU-1","qty":2},{"sku":"b","qty":1}],"amount":9007199254740993,"currency":"RUB"}`, "")
	require.Equal(t, http.StatusCreated, ordered.Code, ordered.Body)
	paid := send(api, "POST", "/payments", "2", `{"amount":5,"currency":"EUR"}`, "")
	require.Equal(t, http.StatusCreated, paid.Code, paid.Body)

	for _, created := range []*httptest.ResponseRecorder{ordered, paid} {
		found := send(api, "GET", created.Header().Get("Location"), "", "", "")
		require.Equal(t, created.Body.String(), found.Body.String())
	}
	var order, payment refserver.Entry
	require.NoError(t, json.Unmarshal(ordered.Body.Bytes(), &order))
	require.NoError(t, json.Unmarshal(paid.Body.Bytes(), &payment))
	require.Equal(t, refserver.Entry{
		OrderID: order.OrderID, AccountID: "acme", Amount: 9007199254740993, Currency: "RUB",
		Items: []refserver.Item{{SKU: "SKU-1", Qty: 2}, {SKU: "b", Qty: 1}}, Status: "created",
	}, order)
	entries, err := api.Ledger(t.Context(), "acme")
	require.NoError(t, err)
	require.Equal(t, []refserver.Entry{order, payment}, entries)

	ledger := pgledger.New(pool)
	others, err := ledger.List(t.Context(), "globex")
	require.NoError(t, err)
	require.Empty(t, others)
	_, found, err := ledger.Find(t.Context(), "globex", order.OrderID)
	require.NoError(t, err)
	require.False(t, found)
}

func TestAFailureAfterTheEffectUndoesAnOrderAndNotACharge(t *testing.T) {
	t.Parallel()
	db, pool := migrated(t)
	api := start(t, pool)
	count := func(table string) int { return pgtest.Value[int](t, db, "SELECT count(*) FROM refserver."+table) }
	left := func() int {
		return pgtest.Value[int](t, db, "SELECT qty FROM refserver.stock WHERE sku = 'SKU-RARE'")
	}
	for i, want := range []int{http.StatusServiceUnavailable, http.StatusCreated, http.StatusCreated} {
		for _, path := range []string{"/orders", "/payments"} {
			got := send(api, "POST", path, path, `{"items":[{"sku":"SKU-RARE","qty":1}],"amount":5,"currency":"EUR"}`, "fail-after")
			require.Equal(t, want, got.Code, got.Body)
		}
		booked := min(i, 1)
		require.Equal(t, booked, count("orders"))
		require.Equal(t, 10-booked, left())
		require.Equal(t, 1, count("payments"))
		require.Equal(t, 1, count("provider_charges"))
	}
	require.Equal(t, 2, pgtest.Value[int](t, db, "SELECT requests FROM refserver.provider_charges"))
}

func TestOfManyWhoWantTheLastPiecesNobodyGetsMoreThanThereIs(t *testing.T) {
	t.Parallel()
	db, pool := migrated(t)
	api := start(t, pool)
	const body = `{"items":[{"sku":"%s","qty":1},{"sku":"%s","qty":2}],"amount":5,"currency":"EUR"}`
	var orders sync.WaitGroup
	var mu sync.Mutex
	statuses := make(map[int]int)
	for i := range 20 {
		a, b := "SKU-1", "SKU-RARE"
		if i%2 == 0 {
			a, b = b, a
		}
		orders.Go(func() {
			for range 2 { // the second is a replay
				got := send(api, "POST", "/orders", fmt.Sprint(i), fmt.Sprintf(body, a, b), "")
				mu.Lock()
				statuses[got.Code]++
				mu.Unlock()
			}
		})
	}
	orders.Wait()
	left := pgtest.Value[int](t, db, "SELECT qty FROM refserver.stock WHERE sku = 'SKU-RARE'")
	booked := pgtest.Value[int](t, db, "SELECT count(*) FROM refserver.orders")
	taken := pgtest.Value[int](t, db, `SELECT sum((item->>'qty')::int) FROM refserver.orders, jsonb_array_elements(items) item
		WHERE item->>'sku' = 'SKU-RARE'`)
	require.Equal(t, 10, left+taken)
	require.LessOrEqual(t, left, 1, "the last pieces are sold")
	require.Equal(t, map[int]int{201: 2 * booked, 422: 40 - 2*booked}, statuses)
	require.Equal(t, 20, api.Counts().Replays)
}

func TestAnOrderNeedsTheTransactionOfItsOperation(t *testing.T) {
	t.Parallel()
	db, pool := migrated(t)
	err := pgledger.New(pool).Add(t.Context(), refserver.Entry{OrderID: "1", AccountID: "acme", Amount: 1, Currency: "RUB"})
	require.ErrorIs(t, err, pgstore.ErrNoTx)
	require.Equal(t, 0, pgtest.Value[int](t, db, "SELECT count(*) FROM refserver.orders"))
}

func TestTheProviderKnowsAChargeByItsKey(t *testing.T) {
	t.Parallel()
	_, pool := migrated(t)
	provider := pgledger.NewProvider(pool)
	ids := make(map[string]bool)
	for _, key := range []string{"a", "b", "a"} {
		id, err := provider.Charge(t.Context(), key, refserver.Entry{Amount: 1, Currency: "RUB"})
		require.NoError(t, err)
		ids[id] = true
	}
	require.Len(t, ids, 2)
}

func TestMigrateIsSafeWhenManyStartAtOnceAndKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := db.Pool(t)
	errs := make(chan error, 10)
	for range cap(errs) {
		go func() { errs <- pgledger.Migrate(t.Context(), pool) }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	db.Exec(t, "UPDATE refserver.stock SET qty = 3")
	require.NoError(t, pgledger.Migrate(t.Context(), pool))
	require.Equal(t, 9, pgtest.Value[int](t, db, "SELECT sum(qty) FROM refserver.stock"))
}
