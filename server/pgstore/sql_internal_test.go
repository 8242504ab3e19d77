package pgstore

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
)

// A sql.DB gets the place of a connection back for which nobody answers any more.
func TestConnectionThatIsTakenOutOfASQLDBLeavesItsPlace(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", pgtest.New(t).URL)
	require.NoError(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	conn, err := sqlPool{db}.acquire(t.Context())
	require.NoError(t, err)
	used := make(chan error, 1)
	go func() {
		_, err := conn.Conn().Exec(t.Context(), "SELECT pg_sleep(60)")
		used <- err
	}()
	closeConn := conn.Hijack()
	require.Error(t, <-used)
	closeConn()
	require.NoError(t, db.PingContext(t.Context()))
	require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, 10*time.Second, time.Millisecond)
}
