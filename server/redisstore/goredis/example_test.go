package goredis_test

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/idemhttp/idem/internal/redistest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/redisstore/goredis"
)

// options is where the examples' Redis is. Yours is
// &redis.Options{Addr: "redis.example.com:6379"}.
func options() *redis.Options {
	shared, err := redistest.Shared()
	if err != nil {
		panic(err)
	}
	return &redis.Options{
		Addr: shared.InitAddress[0], Username: shared.Username, Password: shared.Password, DB: shared.SelectDB, TLSConfig: shared.TLSConfig,
	}
}

// Redis alone: quick, and forgetful in a disaster.
func ExampleNew() {
	client := redis.NewClient(options())
	defer client.Close()
	store := goredis.New(client)
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
	client := redis.NewClient(options())
	defer client.Close()
	store := goredis.Lock(client, &memstore.Store{})

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
