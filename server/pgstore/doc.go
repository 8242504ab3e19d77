// Package pgstore keeps idempotency records in PostgreSQL, in one of two modes
// that share one table.
//
// [New] is for effects elsewhere, such as a payment provider. The claim is
// committed before the handler runs, under a lease that other processes see;
// the answer is committed after it.
//
//	dies at                                | durable             | the next retry
//	before the claim commits               | nothing             | claims and executes
//	claim committed, effect done or not    | processing          | 202 until the lease ends, then takes over
//	answer committed, reply lost           | completed           | replays
//	answer cannot be committed             | processing          | 202, then replays
//	slow owner finishes after a takeover   | the first completion| that answer, for both clients
//	slow owner fails after a takeover      | as without it       | is not affected
//
// [Transactional] is for effects in the same database. The handler works in the
// transaction that [Tx] gives it, and its effects and its answer are one commit.
// [FromDB] is the same for those who work with database/sql, and get theirs from
// [SQLTx].
//
//	dies at                                | durable             | the next retry
//	anywhere before COMMIT is executed     | nothing             | owns at once and executes
//	COMMIT executed, reply lost            | effects and answer  | replays
//	hangs holding the transaction          | nothing             | 202 until the server ends the session
//	failover before replication            | nothing             | executes
//
// How the handler's transaction ends follows from its answer: 2xx and 3xx
// commit; 4xx is stored, but rolls back; 5xx, the statuses that are never stored
// and a panic roll back, and the next retry executes. An answer of 2xx after an
// error of the transaction that the handler ignored is not believed: nothing is
// durable, and the client gets 500. Serialization failures and deadlocks run
// the handler again. Set idle_in_transaction_session_timeout on the server, so
// that a process that hangs does not hold its keys for ever.
//
// An operation that its handler accepts (see [server.Accept]) is a record under
// a lease in either mode. On a transactional route it commits together with what
// else the handler wrote, such as the row of a job: there is never a job without
// the promise, nor a promise without the job. [Store.FinishTx] and
// [Store.FinishSQLTx] do the same for the worker's effects and the final answer.
//
// [Migrate] makes the table, [Migrations] prints how. [Open] makes a pool that
// also works behind pgbouncer in transaction mode; other pools need
// default_query_exec_mode=cache_describe or exec there. Claims and replays go
// to the primary only, with several hosts by target_session_attrs=read-write.
// Synchronous standbys lose nothing in a failover: a COMMIT that waits for them
// is never cancelled, so that it may keep its connection for up to 30 seconds
// longer than its caller waits, and closing the pool as long. Deadlines are set
// and judged by the database's clock alone.
//
// The advisory locks of transactional mode are of the transaction, never of the
// session. Their numbers are 64 bits of a hash over table, account and key, and
// a hash of the fingerprint in the two-integer space. Two keys, or a key and a
// lock of the application's own, that happen to share a number wait for each
// other and are wrong about nothing.
package pgstore
