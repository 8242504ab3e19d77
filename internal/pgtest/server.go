package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemhttp/idem/internal/childproc"
)

// Options say what kind of server to start.
type Options struct {
	Mode Mode
	// Settings are command line options of postgres, which come after those of
	// the mode.
	Settings string
	// Preload is the path of a shared library that all processes of the server
	// load, "" for none. Everybody must be able to read it.
	Preload string
}

// Server is a PostgreSQL server that nobody else uses.
type Server struct {
	// URL is the connection string of its database postgres.
	URL string

	options Options
	service *childproc.Service
}

// standbyName is what a standby calls itself at its primary.
const standbyName = "standby"

// serverFunctions start a server of its own, or a standby of the one in the
// folder $4. The copy fetches the log instead of streaming it, because the end
// of a stream can take ten seconds to be noticed.
const serverFunctions = `
bin=$1 options=$2 preload=$3 primary=$4
start() { make_data && resume; }
resume() {
	LD_PRELOAD=$preload "$bin/pg_ctl" start -w -t 60 -D "$dir/data" -l "$dir/server.log" \
		-o "-c listen_addresses= -c unix_socket_directories='$dir' -c max_connections=300 -c shared_buffers=64MB -c max_wal_size=4GB -c autovacuum_naptime=5s -c wal_retrieve_retry_interval=100ms $options" ||
	{ tail -n 10 "$dir/server.log"; return 1; }
}
make_data() {
	if [ -z "$primary" ]; then
		"$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8 --locale=C --no-sync
	else
		"$bin/pg_basebackup" -D "$dir/data" -R -X fetch -c fast --no-sync -d "host=$primary user=postgres application_name=` + standbyName + `"
	fi
}
halt() { "$bin/pg_ctl" stop -m immediate -D "$dir/data"; }
promote() { "$bin/pg_ctl" promote -w -t 60 -D "$dir/data"; }
crash() {
	postmaster=$(head -n 1 "$dir/data/postmaster.pid") &&
	kill -9 "$postmaster" $(ps -e -o pid= -o ppid= | awk -v parent="$postmaster" '$2 == parent { print $1 }')
}
stop() { halt; }
`

// Start starts a server. It ends with this process, if not by Stop before.
func Start(o Options) (*Server, error) { return run(o, "") }

// Standby starts a synchronous standby of s, and returns when every COMMIT at s
// waits for it. The mode of s must be CrashSafe.
func (s *Server) Standby() (*Server, error) {
	standby, err := run(s.options, s.service.Folder)
	if err != nil {
		return nil, err
	}
	if err := s.awaitStandby(); err != nil {
		standby.Stop()
		return nil, fmt.Errorf("pgtest: the standby does not become synchronous: %w", err)
	}
	return standby, nil
}

func run(o Options, primary string) (*Server, error) {
	initdb, err := find("initdb", install)
	if err != nil {
		return nil, err
	}
	service, err := supervise(serverFunctions, filepath.Dir(initdb), settings[o.Mode]+" "+o.Settings, o.Preload, primary)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "postgres", Path: "/postgres", RawQuery: url.Values{
		"host": {service.Folder}, "user": {"postgres"}, "sslmode": {"disable"},
	}.Encode()}
	return &Server{URL: u.String(), options: o, service: service}, nil
}

func (s *Server) awaitStandby() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range []string{
		"ALTER SYSTEM SET synchronous_standby_names = " + standbyName,
		"SELECT pg_reload_conf()",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	for synchronous := false; !synchronous && err == nil; {
		err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync'), pg_sleep(0.01)::text").
			Scan(&synchronous, nil)
	}
	return err
}

// DB returns the database of s.URL.
func (s *Server) DB() *DB { return &DB{URL: s.URL, direct: s.URL} }

// Crash kills all processes of the server.
func (s *Server) Crash() error { return s.service.Call("crash") }

// Halt stops the server as a failure of power would, until Resume.
func (s *Server) Halt() error { return s.service.Call("halt") }

// Resume starts a server that has been halted.
func (s *Server) Resume() error { return s.service.Call("resume") }

// Promote makes a standby a primary, and returns when it takes writes.
func (s *Server) Promote() error { return s.service.Call("promote") }

// Stop ends the server and removes all of it.
func (s *Server) Stop() { s.service.Stop() }

// Writable returns the connection string for whichever of the servers takes
// writes.
func Writable(servers ...*Server) string {
	var folders []string
	for _, s := range servers {
		folders = append(folders, s.service.Folder)
	}
	ports := strings.TrimSuffix(strings.Repeat("5432,", len(servers)), ",")
	return fmt.Sprintf("host=%s port=%s dbname=postgres user=postgres sslmode=disable target_session_attrs=read-write",
		strings.Join(folders, ","), ports)
}
