module github.com/idemhttp/idem/server/redisstore/goredis

go 1.25.0

replace github.com/idemhttp/idem => ../../..

require (
	github.com/idemhttp/idem v0.0.0
	github.com/redis/go-redis/v9 v9.7.3 // older ones may take the reply to one command for that to another
)

require (
	github.com/google/uuid v1.6.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/redis/rueidis v1.0.71 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.39.0 // indirect
)
