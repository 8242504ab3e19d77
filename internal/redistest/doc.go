// Package redistest gives tests Redis servers: one that all tests of a process
// share, and private ones that can be crashed, restarted and frozen, alone, as
// a cluster, or watched by a sentinel.
//
// They run from the redis-server on the PATH, in temporary folders and on the
// loopback interface, and end with the test process however that ends. If
// TEST_REDIS_URL is set, the shared one is that server.
//
// A test that needs a program which is not installed fails and names the
// command that installs it.
package redistest
