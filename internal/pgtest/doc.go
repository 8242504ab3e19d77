// Package pgtest gives every test a PostgreSQL database of its own.
//
// The databases live in a private cluster, one for each test process, that is
// started on first use in a temporary folder and listens on a socket there.
// However the process ends, by return, panic, os.Exit or kill -9, the cluster
// is stopped and its folder removed. If TEST_DATABASE_URL is set, the
// databases are created on that server instead.
//
// A test that needs a program which is not installed fails and names the
// command that installs it.
package pgtest
