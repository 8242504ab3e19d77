package pgstore

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// migrations holds the files 1.sql, 2.sql and so on. Each brings the schema
// from the version before to its own, and does nothing if it is run again.
//
//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the SQL that makes the schema of table ("" means
// [DefaultTable]), for people who run their own migrations: element i brings it
// from version i to version i+1. Elements never change once released; new
// versions are appended.
func Migrations(table string) ([]string, error) {
	if table == "" {
		table = DefaultTable
	}
	if err := checkTable(table); err != nil {
		return nil, err
	}
	var all []string
	for {
		text, err := migrations.ReadFile(fmt.Sprintf("migrations/%d.sql", len(all)+1))
		if err != nil {
			return all, nil //nolint:nilerr // there is no further one
		}
		all = append(all, on(table, string(text)))
	}
}

// Migrate brings the schema of [DefaultTable] up to date, or makes it. Any
// number of processes may do so at the same time. If there is nothing to do it
// only reads. A schema newer than this version knows is an error.
//
// A table that it makes in a database with the Citus extension is distributed
// by account_id.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error { return New(pool).Migrate(ctx) }

// Migrate is [Migrate] for the table of s.
func (s *Store) Migrate(ctx context.Context) error {
	steps, err := Migrations(s.table())
	if err != nil {
		return err
	}
	return retry(ctx, func() error {
		conn, err := s.pool.acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		if schema, err := s.schema(ctx, conn.Conn()); err == nil && schema.version == len(steps) {
			return nil
		}
		err = pgx.BeginTxFunc(ctx, conn.Conn(), transaction, func(tx pgx.Tx) error { return s.migrate(ctx, tx, steps) })
		if isConcurrentDDL(err) {
			return fmt.Errorf("%w: %w", errRetry, err)
		}
		return err
	})
}

// migrate runs the steps that are missing. The lock makes processes that start
// at once do it one after another.
func (s *Store) migrate(ctx context.Context, tx pgx.Tx, steps []string) error {
	lock := keyOf("migrate", s.table())
	if _, err := tx.Exec(ctx, waitLock, lock); err != nil {
		return err
	}
	var schema schema
	err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) (err error) {
		schema, err = s.schema(ctx, savepoint)
		return err
	})
	if err != nil && !isMissing(err) {
		return err
	}
	if schema.version > len(steps) {
		return errNewerSchema(schema.version, len(steps))
	}
	for _, step := range steps[schema.version:] {
		if _, err := tx.Exec(ctx, step); err != nil {
			return err
		}
	}
	if schema.version == 0 {
		return s.distribute(ctx, tx)
	}
	return nil
}

// distribute spreads the records over the nodes of a Citus cluster, if this is
// one. All records of an account are on one node.
func (s *Store) distribute(ctx context.Context, tx pgx.Tx) error {
	var citus bool
	if err := tx.QueryRow(ctx, selectCitus).Scan(&citus); err != nil || !citus {
		return err
	}
	_, err := tx.Exec(ctx, s.sql(distributeTables))
	return err
}

const (
	selectCitus = `SELECT count(*) > 0 FROM pg_extension WHERE extname = 'citus'`

	distributeTables = `SELECT create_distributed_table('{table}', 'account_id'), create_reference_table('{table}_schema')`
)

// schema is the row of the schema's table.
type schema struct {
	version   int
	namespace uuid.UUID
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (s *Store) schema(ctx context.Context, db querier) (found schema, err error) {
	err = db.QueryRow(ctx, s.sql(selectSchema)).Scan(&found.version, &found.namespace)
	return found, err
}

func errNewerSchema(found, known int) error {
	return fmt.Errorf("pgstore: the schema has version %d, this program knows versions up to %d; run a newer one", found, known)
}

// isMissing reports whether err says that there is no such table, or no row.
func isMissing(err error) bool {
	var pgErr *pgconn.PgError
	return errors.Is(err, pgx.ErrNoRows) || errors.As(err, &pgErr) && pgErr.Code == "42P01"
}

// isConcurrentDDL reports whether err comes from somebody else making the same
// objects, which the lock prevents where advisory locks are real.
func isConcurrentDDL(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "23505", "42P07", "42710", "XX000": // XX000: tuple concurrently updated
		return true
	default:
		return false
	}
}
