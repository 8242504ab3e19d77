package server_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

func TestSmoke(t *testing.T) {
	n := 0
	mw := &server.Middleware{Store: &memstore.Store{}, Account: func(*http.Request) (string, error) { return "a", nil }}
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n++; w.WriteHeader(201); w.Write([]byte("x")) }))
	for range 2 {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/x", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "k")
		h.ServeHTTP(w, r)
		require.Equal(t, 201, w.Code)
		t.Log(w.Header())
	}
	require.Equal(t, 1, n)
}
