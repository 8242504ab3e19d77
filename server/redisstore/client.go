package redisstore

import "context"

// Client is what a store asks of a client of Redis, on a single node, in a set
// watched by Sentinel or in a Cluster. [New] and [Lock] have one for
// rueidis.Client, package goredis has one for go-redis; with others in place of
// them, use [NewWith] and [LockWith].
//
// It is safe for concurrent use.
type Client interface {
	// Run runs a script on the master that has the key, by EVALSHA, or by EVAL if
	// that replies NOSCRIPT, with the key as the only one and args as they are.
	//
	// The reply is an array. Run returns its integers as int64, its strings as
	// string, and nil for what is null. It returns an error for any other reply,
	// and if there is none.
	//
	// A call whose reply was lost may be repeated while ctx lasts: no script does
	// anything twice. Run should end with ctx. If it does not, the stores go on
	// without it.
	Run(ctx context.Context, script Script, key string, args []string) ([]any, error)
	// Info returns the reply to INFO of every node, by an address that tells an
	// operator which one that is. It returns an error if a node cannot be asked,
	// together with the replies of the others.
	Info(ctx context.Context) (map[string]string, error)
}
