-- What the reference server books, in a schema of its own.
CREATE SCHEMA IF NOT EXISTS refserver;

CREATE TABLE IF NOT EXISTS refserver.stock (
    sku text COLLATE "C" PRIMARY KEY,
    qty bigint NOT NULL CHECK (qty >= 0)
);

-- Nothing here keeps an order from being booked twice. That every operation
-- happens once is the promise of the transaction that books it, and this table
-- would show it broken.
CREATE TABLE IF NOT EXISTS refserver.orders (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id text COLLATE "C" NOT NULL,
    order_id   text COLLATE "C" NOT NULL,
    amount     bigint NOT NULL, -- in minor units
    currency   text NOT NULL,
    items      jsonb NOT NULL,
    status     text NOT NULL,
    booked_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS orders_order_id ON refserver.orders (account_id, order_id);

CREATE TABLE IF NOT EXISTS refserver.payments (
    account_id text COLLATE "C" NOT NULL,
    payment_id text COLLATE "C" NOT NULL,
    amount     bigint NOT NULL, -- in minor units
    currency   text NOT NULL,
    items      jsonb NOT NULL,
    status     text NOT NULL,
    booked_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (account_id, payment_id)
);

-- The book of the payment provider: not ours, and written in no transaction of
-- ours.
CREATE TABLE IF NOT EXISTS refserver.provider_charges (
    charge_key text COLLATE "C" PRIMARY KEY, -- the downstream key
    payment_id text NOT NULL,
    amount     bigint NOT NULL,
    currency   text NOT NULL,
    requests   bigint NOT NULL DEFAULT 1 -- how often the charge was asked for
);

-- Orders and payments together.
CREATE OR REPLACE VIEW refserver.ledger AS
SELECT order_id AS id, order_id, '' AS payment_id, account_id, amount, currency, items, status, booked_at
FROM refserver.orders
UNION ALL
SELECT payment_id AS id, '' AS order_id, payment_id, account_id, amount, currency, items, status, booked_at
FROM refserver.payments;
