package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
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
	store.Logger = quiet // it would say that this Redis forgets

	message := server.ClaimRequest{ID: server.ID{Account: "acme", Key: uuid.NewString()}, TTL: time.Minute}
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

	message := server.ClaimRequest{ID: server.ID{Account: "acme", Key: uuid.NewString()}, TTL: time.Minute}
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
