-- One row for each idempotency key that is in use. Every change of state is
-- decided by the primary key, a token or a status in the WHERE clause of one
-- statement, and every deadline by the database's own clock.
CREATE TABLE IF NOT EXISTS {table} (
    account_id          text COLLATE "C" NOT NULL,
    idempotency_key     text COLLATE "C" NOT NULL,
    operation_id        uuid NOT NULL,         -- survives a takeover; new after expiry
    fingerprint         bytea NOT NULL,
    fingerprint_version smallint NOT NULL,
    status              text NOT NULL,         -- processing, completed or failed
    attempt             integer NOT NULL,
    claim_token         uuid NOT NULL,         -- random, new with every claim
    lease_until         timestamptz,           -- NULL unless processing
    response_status     smallint,              -- the answer if completed,
    response_headers    bytea,                 -- an interim answer if processing,
    response_body       bytea,                 -- otherwise NULL
    response_flags      integer NOT NULL,      -- bits 0-7: encoding of response_headers; bit 8: not kept
    created_at          timestamptz NOT NULL,
    completed_at        timestamptz,
    expires_at          timestamptz NOT NULL,
    PRIMARY KEY (account_id, idempotency_key)
) WITH (fillfactor = 70);                   -- room beside a claim for its answer: lease mode updates each record once

-- The only index beside the primary key: one on status or lease_until would
-- cost every completion its heap-only update.
CREATE INDEX IF NOT EXISTS {name}_expires_at ON {table} (expires_at);

-- The version of this schema, and a random name for this set of records from
-- which operation ids are derived.
CREATE TABLE IF NOT EXISTS {table}_schema (
    version   integer NOT NULL,
    namespace uuid NOT NULL
);
INSERT INTO {table}_schema (version, namespace)
SELECT 1, gen_random_uuid() WHERE NOT EXISTS (SELECT version FROM {table}_schema);

-- The records in a form that people can read.
CREATE OR REPLACE VIEW {table}_text AS
SELECT account_id, idempotency_key, operation_id, status, attempt, lease_until,
       response_status,
       encode(response_headers, 'escape') AS response_headers,
       encode(response_body, 'escape') AS response_body,
       (response_flags & 256) <> 0 AS not_kept,
       created_at, completed_at, expires_at,
       encode(fingerprint, 'hex') AS fingerprint
FROM {table};
