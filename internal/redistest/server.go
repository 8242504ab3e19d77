package redistest

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/childproc"
)

// install is how to get redis-server.
const install = "apt-get install -y redis-server (Debian), apk add redis (Alpine), dnf install redis (Red Hat) or brew install redis (macOS)"

// script runs a server with the configuration $2, which it may rewrite.
const script = `
program=$1 config=$2 mode=$3
start() {
	[ -f redis.conf ] || printf '%s\n' "$config" >redis.conf
	: >server.log # of an earlier run, which said that it was ready
	"$program" redis.conf $mode >>server.log 2>&1 &
	pid=$!
	for try in $(seq 400); do
		grep -qiE 'ready to accept connections|sentinel ID is' server.log && return
		kill -0 $pid || break
		sleep 0.05
	done
	cat server.log
	return 1
}
crash() { kill -9 $pid && { wait $pid || true; }; }
freeze() { kill -STOP $pid; }
thaw() { kill -CONT $pid; }
stop() { crash; }
`

// Server is a Redis server that belongs to one test.
type Server struct {
	// Address is "host:port", or the path of a socket.
	Address string

	service *childproc.Service
}

// Start starts a server that listens on a socket, for one test. The settings
// are lines of its configuration file, such as "appendonly yes". It persists
// nothing unless they say so.
func Start(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s, err := start("", append(settings, "port 0", "unixsocket redis.sock"))
	require.NoError(tb, err)
	tb.Cleanup(s.service.Stop)
	s.Address = filepath.Join(s.service.Folder, "redis.sock")
	return s
}

// startOnPort is Start with a random port of the loopback interface in place
// of the socket. Nodes of a cluster also use the port 10,000 above it.
func startOnPort(tb testing.TB, mode string, settings ...string) *Server {
	tb.Helper()
	for try := 1; ; try++ {
		port := strconv.Itoa(20_000 + rand.N(10_000))
		s, err := start(mode, append(settings, "bind 127.0.0.1", "port "+port))
		if err != nil && try < 10 { // the port is in use, probably
			continue
		}
		require.NoError(tb, err)
		tb.Cleanup(s.service.Stop)
		s.Address = net.JoinHostPort("127.0.0.1", port)
		return s
	}
}

func start(mode string, settings []string) (*Server, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redistest: redis-server is not installed; install it with: %s", install)
	}
	config := strings.Join(append([]string{`save ""`}, settings...), "\n")
	if mode == "--sentinel" {
		config = strings.Join(settings, "\n") // it knows no other settings than its own
	}
	service, err := childproc.Start(childproc.Command{Script: script, Args: []string{program, config, mode}})
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	return &Server{service: service}, nil
}

// Crash ends the server as kill -9 does.
func (s *Server) Crash(tb testing.TB) { tb.Helper(); s.call(tb, "crash") }

// Restart starts the server again after a Crash, with what it persisted.
func (s *Server) Restart(tb testing.TB) { tb.Helper(); s.call(tb, "start") }

// Freeze makes the server hang: connections stay open, and new ones are
// accepted, but nothing is answered.
func (s *Server) Freeze(tb testing.TB) { tb.Helper(); s.call(tb, "freeze") }

// Thaw lets the server go on after a Freeze.
func (s *Server) Thaw(tb testing.TB) { tb.Helper(); s.call(tb, "thaw") }

func (s *Server) call(tb testing.TB, function string) {
	tb.Helper()
	require.NoError(tb, s.service.Call(function))
}

// Option returns how to connect to the server.
func (s *Server) Option() rueidis.ClientOption {
	option := rueidis.ClientOption{InitAddress: []string{s.Address}, ForceSingleClient: true}
	if filepath.IsAbs(s.Address) {
		option.DialCtxFn = dialSocket
	}
	return option
}

func dialSocket(ctx context.Context, path string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
	return dialer.DialContext(ctx, "unix", path)
}

// Client returns a new client of the server, closed when the test ends.
func (s *Server) Client(tb testing.TB) rueidis.Client {
	tb.Helper()
	return Connect(tb, s.Option())
}

// Connect returns a new client, closed when the test ends.
func Connect(tb testing.TB, option rueidis.ClientOption) rueidis.Client {
	tb.Helper()
	client, err := rueidis.NewClient(option)
	require.NoError(tb, err)
	tb.Cleanup(client.Close)
	return client
}

// Do runs a command given as words, and returns its result.
func Do(tb testing.TB, client rueidis.Client, words ...string) rueidis.RedisMessage {
	tb.Helper()
	message, err := client.Do(tb.Context(), client.B().Arbitrary(words...).Build()).ToMessage()
	require.NoError(tb, err, "%q", words)
	return message
}
