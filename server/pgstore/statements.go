package pgstore

import (
	"fmt"
	"regexp"
	"strings"
)

// DefaultTable is the table of a Store that names none.
const DefaultTable = "idem_operations"

// The statements. {table} stands for the name of the table. Durations are added
// to the database's clock. So that the same statements run on distributed
// engines, those on records all name account_id, none has a function in ON
// CONFLICT, and none needs ctid or the state of a session.
const (
	// columns are what decodeRecord reads of a record, live or dead. The first
	// tells the time by which it is judged.
	columns = `clock_timestamp(), operation_id, fingerprint, fingerprint_version, status, attempt, claim_token,
       lease_until, expires_at, response_status, response_headers, response_body, response_flags`

	// selectRecord finds a record.
	selectRecord = `
SELECT ` + columns + `
FROM {table}
WHERE account_id = $1 AND idempotency_key = $2`

	selectRecordLocked = selectRecord + `
FOR UPDATE`

	// insertClaim claims a key that has no record, for $7 with expiry in $8.
	insertClaim = `
INSERT INTO {table} (account_id, idempotency_key, operation_id, fingerprint, fingerprint_version,
                     status, attempt, claim_token, lease_until, response_flags, created_at, expires_at)
VALUES ($1, $2, $3::uuid, $4::bytea, $5::smallint,
        'processing', 1, $6::uuid, clock_timestamp() + $7::interval, 0,
        clock_timestamp(), clock_timestamp() + $8::interval)
ON CONFLICT DO NOTHING`

	// dead is true of records that may be claimed again. Whoever read one
	// repeats the condition when changing it.
	dead = `(status = 'failed' OR expires_at <= clock_timestamp()
     OR (status = 'processing' AND lease_until <= clock_timestamp()))`

	// takeOver claims the dead record whose last claim had the token $10.
	takeOver = `
UPDATE {table}
SET operation_id = $3::uuid, fingerprint = $4::bytea, fingerprint_version = $5::smallint,
    status = 'processing', attempt = $9::integer, claim_token = $6::uuid,
    lease_until = clock_timestamp() + $7::interval,
    response_status = NULL, response_headers = NULL, response_body = NULL, response_flags = 0,
    created_at = CASE WHEN operation_id = $3::uuid THEN created_at ELSE clock_timestamp() END,
    completed_at = NULL, expires_at = clock_timestamp() + $8::interval
WHERE account_id = $1 AND idempotency_key = $2 AND claim_token = $10::uuid AND ` + dead

	// keptExpiry is the end of a record that lives for $4 from now. An
	// expiry that is later by at most a hundredth is left as it is, so that
	// the update does not have to touch the index.
	keptExpiry = `
    CASE WHEN expires_at BETWEEN clock_timestamp() + $4::interval
                             AND clock_timestamp() + $4::interval * 1.01::double precision
         THEN expires_at ELSE clock_timestamp() + $4::interval END`

	// complete ends the operation $3, whoever owns it now.
	complete = `
UPDATE {table}
SET status = 'completed', lease_until = NULL, completed_at = clock_timestamp(),
    response_status = $5::smallint, response_headers = $6::bytea, response_body = $7::bytea, response_flags = $8::integer,
    expires_at = ` + keptExpiry + `
WHERE account_id = $1 AND idempotency_key = $2 AND operation_id = $3::uuid AND status <> 'completed'`

	// release gives up the claim with the token $3.
	release = `
UPDATE {table}
SET status = 'failed', lease_until = NULL,
    response_status = NULL, response_headers = NULL, response_body = NULL, response_flags = 0,
    expires_at = ` + keptExpiry + `
WHERE account_id = $1 AND idempotency_key = $2 AND claim_token = $3::uuid AND status = 'processing'`

	// extend moves the end of the lease with the token $3.
	extend = `
UPDATE {table}
SET lease_until = clock_timestamp() + $4::interval,
    expires_at = clock_timestamp() + $5::interval
WHERE account_id = $1 AND idempotency_key = $2 AND claim_token = $3::uuid AND status = 'processing'`

	// accept gives the record with the token $3 an interim answer, and the
	// worker's lease if that ends later.
	accept = `
UPDATE {table}
SET response_status = $6::smallint, response_headers = $7::bytea, response_body = $8::bytea, response_flags = $9::integer,
    lease_until = greatest(lease_until, clock_timestamp() + $4::interval),
    expires_at = greatest(expires_at, clock_timestamp() + $5::interval)
WHERE account_id = $1 AND idempotency_key = $2 AND claim_token = $3::uuid AND status = 'processing'`

	// insertEnded stores an operation whose attempt ends with the transaction
	// that executed it, or right after it. One that was accepted has a lease
	// of $13, which is NULL for others.
	insertEnded = `
INSERT INTO {table} (account_id, idempotency_key, operation_id, fingerprint, fingerprint_version,
                     status, attempt, claim_token,
                     response_status, response_headers, response_body, response_flags,
                     lease_until, created_at, completed_at, expires_at)
VALUES ($1, $2, $3::uuid, $4::bytea, $5::smallint,
        $6, $7::integer, $8::uuid,
        $9::smallint, $10::bytea, $11::bytea, $12::integer,
        clock_timestamp() + $13::interval,
        now(), CASE WHEN $6 = 'completed' THEN clock_timestamp() END,
        clock_timestamp() + $14::interval)`

	// insertEndedOnce is insertEnded that leaves a record alone.
	insertEndedOnce = insertEnded + `
ON CONFLICT DO NOTHING`

	// deleteDead makes room for insertEnded where the claim found a dead
	// record whose last claim had the token $3.
	deleteDead = `
DELETE FROM {table}
WHERE account_id = $1 AND idempotency_key = $2 AND claim_token = $3::uuid AND ` + dead

	// selectInFlight finds those of some ids that an attempt runs for and that
	// have not been accepted.
	selectInFlight = `
SELECT account_id, idempotency_key
FROM {table}
WHERE (account_id, idempotency_key) IN (SELECT * FROM unnest($1::text[], $2::text[]))
  AND status = 'processing' AND lease_until > clock_timestamp() AND response_status IS NULL`

	// expired is true of records that cleanup deletes. They are judged by the
	// time at which the transaction began, which a clock that jumps after it
	// was checked does not change, and for which the index can be used. The
	// planner is not to know that time: to estimate how many records have expired
	// it would look for the first in the index each time, past all that have been
	// deleted since the table was vacuumed.
	expired = `expires_at <= (SELECT now()) AND NOT (status = 'processing' AND lease_until > now())`

	// deleteExpired deletes up to $1 records that nobody else is deleting, of
	// those that expired at $2 or later. The condition is repeated such that it
	// cannot be used to find the records, or all that have expired would be read
	// each time to delete a few.
	deleteExpired = `
DELETE FROM {table}
WHERE (account_id, idempotency_key) IN (
      SELECT account_id, idempotency_key FROM {table}
      WHERE expires_at >= (SELECT $2::timestamptz) AND ` + expired + `
      ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)
  AND (` + expired + `) IS TRUE
RETURNING expires_at`

	// selectClock tells the database's time, and for how long the record that
	// expired first has been so, of those that expire at $1 or later.
	selectClock = `
SELECT clock_timestamp(),
       coalesce(floor(extract(epoch FROM clock_timestamp() - (SELECT min(expires_at) FROM {table}
                WHERE expires_at >= (SELECT $1::timestamptz) AND expires_at <= (SELECT clock_timestamp()))) * 1000000)::bigint, 0)`

	// selectSize tells the size of the table, and about how many records it has.
	selectSize = `
SELECT pg_total_relation_size('{table}'),
       (SELECT reltuples::double precision FROM pg_class WHERE oid = '{table}'::regclass)`

	// selectStats counts the records, or, as selectSampledStats, those on $1
	// percent of the pages.
	selectStats = `
SELECT count(CASE WHEN status = 'processing' THEN 1 END),
       count(CASE WHEN status = 'completed' THEN 1 END),
       count(CASE WHEN status = 'failed' THEN 1 END),
       coalesce(floor(extract(epoch FROM clock_timestamp() -
                min(CASE WHEN status = 'processing' THEN created_at END)) * 1000000)::bigint, 0)
FROM {table}`

	selectSampledStats = selectStats + ` TABLESAMPLE SYSTEM ($1::real)`

	selectSchema = `SELECT version, namespace FROM {table}_schema`
)

// Statements about advisory locks. The lock of a key is a bigint; the lock that
// tells its fingerprint is a pair of integers held beside it.
const (
	// tryLock finds a record, and takes both locks if it can, but neither if
	// the record decides: whoever only looks at that one must not seem to be
	// its owner. It returns a row also if there is no record. One that is
	// committed after this statement began, but before it got the lock, it does
	// not see; the insert at the end of the attempt finds it.
	tryLock = `
SELECT CASE WHEN expires_at > clock_timestamp()
              AND (status = 'completed' OR (status = 'processing' AND lease_until > clock_timestamp())
                   OR (fingerprint_version = $6::smallint AND fingerprint <> $7::bytea))
            THEN false
            WHEN pg_try_advisory_xact_lock($3::bigint)
            THEN pg_try_advisory_xact_lock_shared($4::integer, $5::integer) IS NOT NULL
            ELSE false END,
       ` + columns + `
FROM (VALUES (1)) AS claim LEFT JOIN {table} ON account_id = $1 AND idempotency_key = $2`

	waitLock = `SELECT pg_advisory_xact_lock($1::bigint)`

	tryOnlyLock = `SELECT pg_try_advisory_xact_lock($1::bigint)`

	// advisoryLocks are the locks of this database, seen at one moment.
	advisoryLocks = `
WITH held AS MATERIALIZED (
     SELECT pid, objsubid, classid::bigint AS class, objid::bigint AS object FROM pg_locks
     WHERE locktype = 'advisory' AND granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

	// selectEvidence is true if the session that holds the key's lock also
	// holds the lock of another fingerprint.
	selectEvidence = advisoryLocks + `
SELECT EXISTS (
       SELECT 1 FROM held k JOIN held f ON f.pid = k.pid
       WHERE k.objsubid = 1 AND (k.class << 32 | k.object) = $1::bigint
         AND f.objsubid = 2 AND f.class = $2::bigint AND f.object <> $3::bigint)`

	selectLocked = advisoryLocks + `
SELECT class << 32 | object FROM held WHERE objsubid = 1 AND (class << 32 | object) = ANY($1::bigint[])`
)

// tableName is what a table may be called: lower case, so that it means the
// same with and without quotes, and perhaps with a schema.
var tableName = regexp.MustCompile(`^(?:[a-z_][a-z0-9_]{0,47}\.)?[a-z_][a-z0-9_]{0,47}$`)

func checkTable(table string) error {
	if !tableName.MatchString(table) {
		return fmt.Errorf("pgstore: the table name %q is not [schema.]name in lower case letters, digits and _", table)
	}
	return nil
}

// on returns statement for the given table.
func on(table, statement string) string {
	name := table[strings.LastIndexByte(table, '.')+1:]
	return strings.NewReplacer("{table}", table, "{name}", name).Replace(statement)
}
