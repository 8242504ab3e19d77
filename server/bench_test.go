package server_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// discard is a ResponseWriter for nobody.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

func BenchmarkMiddleware(b *testing.B) {
	const body = `{"items":[{"sku":"SKU-1","qty":2}],"amount":1200,"currency":"RUB"}`
	for name, key := range map[string]func(i int) string{
		"execute": strconv.Itoa,
		"replay":  func(int) string { return "key" },
	} {
		b.Run(name, func(b *testing.B) {
			mw := &server.Middleware{Store: new(memstore.Store), Account: account}
			h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write([]byte(body))
			}))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				h.ServeHTTP(discard{http.Header{}}, request("POST", "/orders", key(i), body))
			}
		})
	}
}
