// Package faultnet is a network that misbehaves on purpose, for tests of what
// clients and servers do when it does.
//
// It has three parts:
//
//   - [Listener], [Pipe] and [Handle]: connections in memory. They work inside
//     a testing/synctest bubble, where time is virtual and a socket hangs.
//   - [Server]: speaks HTTP/1.1 byte by byte as an [Action] tells it, and keeps
//     a record of every request: [Reply], [Cut], [Reset], [Hang], [Trickle] and
//     others. [Steps] plays one action per request, [Dice] picks one at random.
//   - [Upstream]: actions that pass the request on to a real server, which
//     turns a Server into a faulty proxy: the request lost on its way, the
//     answer lost, cut or late although the server did its work.
//
// An action is a function over one [Exchange], so a test writes its own where
// none here fits.
package faultnet

// TB is what this package needs of a testing.TB.
type TB interface {
	Helper()
	Cleanup(f func())
	Fatal(args ...any)
}
