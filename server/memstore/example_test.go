package memstore_test

import (
	"context"
	"fmt"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// A Store needs no constructor. Give it to a [server.Middleware], or to
// [server.Do].
func ExampleStore() {
	store := &memstore.Store{MaxRecords: 10_000}
	message := server.ClaimRequest{ID: server.ID{Account: "acme", Key: "message-1"}}
	for range 2 {
		done, err := server.Do(context.Background(), store, message, func(context.Context) ([]byte, error) {
			return []byte("sent"), nil
		})
		fmt.Println(string(done.Value), done.Replayed, err)
	}
	stats, _ := store.Stats(context.Background())
	fmt.Println(stats.Completed, "record")
	// Output:
	// sent false <nil>
	// sent true <nil>
	// 1 record
}
