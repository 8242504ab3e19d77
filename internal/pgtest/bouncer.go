package pgtest

import (
	"net/url"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const bouncerFunctions = `
bouncer=$1 host=$2 port=$3 user=$4 password=$5 database=$6
start() {
	printf '"%s" "%s"\n' "$user" "$password" >users
	cat >pgbouncer.ini <<-END
	[databases]
	$database = host=$host port=$port user=$user ${password:+password='$password'}
	[pgbouncer]
	pool_mode = transaction
	listen_addr =
	listen_port = 6432
	unix_socket_dir = $dir
	auth_type = trust
	auth_file = $dir/users
	default_pool_size = 8
	max_client_conn = 500
	END
	"$bouncer" pgbouncer.ini >server.log 2>&1 &
	pid=$!
	for try in $(seq 100); do
		[ -S "$dir/.s.PGSQL.6432" ] && return
		kill -0 $pid 2>/dev/null || break
		sleep 0.05
	done
	cat server.log
	return 1
}
stop() { kill $pid && wait $pid; }
`

// Bouncer returns the same database through a pgbouncer in transaction mode
// with 8 sessions at the server.
func (db *DB) Bouncer(tb testing.TB) *DB {
	tb.Helper()
	program, err := find("pgbouncer", "apt-get install -y pgbouncer (Debian), dnf install pgbouncer (Red Hat) or brew install pgbouncer (macOS)")
	require.NoError(tb, err)
	config, err := pgx.ParseConfig(db.URL)
	require.NoError(tb, err)
	s, err := supervise(bouncerFunctions, program, config.Host, strconv.Itoa(int(config.Port)), config.User, config.Password, config.Database)
	require.NoError(tb, err)
	tb.Cleanup(s.Stop)
	through := url.URL{Scheme: "postgres", Path: "/" + config.Database, RawQuery: url.Values{
		"host": {s.Folder}, "port": {"6432"}, "user": {config.User}, "sslmode": {"disable"},
	}.Encode()}
	return &DB{URL: through.String(), direct: db.direct}
}
