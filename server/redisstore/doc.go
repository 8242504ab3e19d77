// Package redisstore keeps idempotency records in Redis, or puts Redis as a
// quick door in front of a store that keeps them better. Both work with a
// single node, a set watched by Sentinel and a Cluster, of Redis 6 or newer and
// of Valkey.
//
// The client is rueidis, which sends concurrent commands together. Package
// goredis, a module of its own, is for those who have go-redis, and [Client] is
// what any other has to do.
//
// # Redis as a door: Lock
//
//	store := redisstore.Lock(client, pgstore.New(pool))
//
// A [Locked] store gives the guarantees of the durable store behind it. Nobody
// executes anything unless that store has given him the lease, and an answer is
// put in Redis only when that store has it. What Redis adds is speed: most
// duplicates are told that they are in flight, that their key was used for
// something else, or what the answer was, in one round trip to Redis and
// without the database. It may lose everything at any moment, by a restart, an
// eviction, a failover or FLUSHALL: claims are then decided by the durable
// store, which is slower. Any maxmemory-policy will do, and nothing needs to
// be persisted. What becomes of
//
//	Redis loses a key                  | the next duplicate asks the durable store
//	Redis is down or hangs             | so does everybody; one call a second waits for Redis, for Timeout at most
//	Redis comes back with an old value | duplicates may be told that they are in flight, at most for a lease
//	the owner is lost                  | duplicates are in flight until its lease ends
//
// The last line is how it is without Redis too, except in front of a
// transactional store, from which the key of a lost owner could be had at once.
//
// An operation that was accepted for a worker is the durable store's alone.
//
// # Redis alone: New
//
//	store := redisstore.New(client)
//
// A [Store] follows every rule of [server.Store], under leases, by the clock of
// the Redis server, for as long as Redis remembers. Redis alone forgets: at
// most once is lost on data loss. When a record is lost, the next request with
// its key is executed as if it was the first.
//
//	what happens                           | what is lost
//	restart without appendonly             | everything
//	restart with appendfsync everysec      | the last second
//	failover of asynchronous replication   | what the replica had not got yet
//	FLUSHALL, FLUSHDB                      | everything
//	memory full, any policy but noeviction | whatever Redis picks
//	memory full, noeviction                | nothing; claims fail, and are answered with 503
//	a clock that jumps ahead               | what then seems to have expired
//
// An owner that lives puts its record back whenever it extends its lease, and
// when it completes or accepts: what was lost while it worked is then known
// again. A worker with a [server.Ticket] does not, since the ticket has no
// fingerprint. [Store.Check] warns of settings that forget.
//
// Use it where that is good enough: for effects that the other side
// deduplicates by [server.Operation.DownstreamKey], or that may happen twice in
// a disaster. Where they must not, put Redis in front of a store that remembers.
//
// # What is in Redis
//
// Every key is written together with its expiry, in one script or command, and
// has one at all times. Its name is prefix{length:account:key}, the length
// being that of the account. Requests are not stored, but answers are, as the
// handler gave them: who can read Redis can read them.
package redisstore
