package redisstore_test

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/redisstore"
)

// redis is where the examples' Redis is. Yours is
// rueidis.ClientOption{InitAddress: []string{"redis.example.com:6379"}}.
func redis() rueidis.ClientOption {
	option, err := redistest.Shared()
	if err != nil {
		panic(err)
	}
	return option
}

// Redis alone: quick, and forgetful in a disaster.
func ExampleNew() {
	client, err := rueidis.NewClient(redis())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	store := redisstore.New(client)
	store.Prefix = "example-of-new:"

	message := server.ClaimRequest{ID: server.ID{Account: "acme", Key: "message-1"}}
	for range 2 {
		done, err := server.Do(context.Background(), store, message, func(context.Context) ([]byte, error) {
			return []byte("sent"), nil
		})
		fmt.Println(string(done.Value), done.Replayed, err)
	}
	// Output:
	// sent false <nil>
	// sent true <nil>
}

// Redis in front of a store that remembers. That is a pgstore in production.
func ExampleLock() {
	client, err := rueidis.NewClient(redis())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	store := redisstore.Lock(client, &memstore.Store{})
	store.Prefix = "example-of-lock:"

	message := server.ClaimRequest{ID: server.ID{Account: "acme", Key: "message-1"}}
	for range 2 {
		done, err := server.Do(context.Background(), store, message, func(context.Context) ([]byte, error) {
			return []byte("sent"), nil
		})
		fmt.Println(string(done.Value), done.Replayed, err)
	}
	// Output:
	// sent false <nil>
	// sent true <nil>
}
