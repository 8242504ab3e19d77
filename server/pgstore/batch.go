package pgstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// batch is statements that travel together, in one round trip. It is what
// [pgx.Batch] is, for the few types that our statements take and give, which
// costs the client a fraction of the time: nothing has to find out how to encode
// a value, and the result of a prepared statement is not described each time.
type batch struct{ queries []query }

type query struct {
	sql  string
	args []any
	// At most one of these gets the result: the first row if there is one, whose
	// values are in binary format and gone when row returns; all rows; or the tag.
	row  func(values [][]byte) error
	rows func(rows pgx.Rows) error
	tag  func(tag pgconn.CommandTag) error
}

// begin adds the beginning of a transaction.
func (b *batch) begin() { b.add(transaction.BeginQuery) }

// add adds a statement. What it returns is only to be used before the next.
func (b *batch) add(sql string, args ...any) *query {
	if b.queries == nil {
		b.queries = make([]query, 0, 4)
	}
	b.queries = append(b.queries, query{sql: sql, args: args})
	return &b.queries[len(b.queries)-1]
}

// count notes how many rows the statement touched.
func (q *query) count(rows *int64) {
	q.tag = func(tag pgconn.CommandTag) error {
		*rows = tag.RowsAffected()
		return nil
	}
}

// scan reads the one row that the statement returns.
func (q *query) scan(dest ...any) {
	q.rows = func(rows pgx.Rows) error {
		if !rows.Next() {
			return cmp.Or(rows.Err(), pgx.ErrNoRows)
		}
		return rows.Scan(dest...)
	}
}

// record reads the record that the statement, which selects columns, finds.
func (q *query) record(r **record) {
	*r = nil
	q.row = func(values [][]byte) (err error) {
		*r, err = decodeRecord(values)
		return err
	}
}

// send sends the batch on conn and reads its results, until one is an error.
func (b *batch) send(ctx context.Context, conn *pgx.Conn) error {
	sender := senderOf(conn)
	if sender.tracer == nil {
		return b.exchange(ctx, conn, sender)
	}
	traced := &pgx.Batch{}
	for _, q := range b.queries {
		traced.Queue(q.sql, q.args...)
	}
	ctx = sender.tracer.TraceBatchStart(ctx, conn, pgx.TraceBatchStartData{Batch: traced})
	err := b.exchange(ctx, conn, sender)
	sender.tracer.TraceBatchEnd(ctx, conn, pgx.TraceBatchEndData{Err: err})
	return err
}

// exchange is send without the batch's begin and end being traced. A batch that
// failed because of a stale statement has done nothing if it began outside a
// transaction, and is sent again.
func (b *batch) exchange(ctx context.Context, conn *pgx.Conn, sender *sender) error {
	idle := conn.PgConn().TxStatus() == stateIdle
	err := b.exchangeOnce(ctx, conn, sender)
	if !sender.prepares || !isStale(err) {
		return err
	}
	sender.forget()
	if !idle {
		return err
	}
	abort(ctx, conn)
	return b.exchangeOnce(ctx, conn, sender)
}

// errOutOfStep says that not every statement was answered.
var errOutOfStep = errors.New("pgstore: the database answered fewer statements than it was sent")

func (b *batch) exchangeOnce(ctx context.Context, conn *pgx.Conn, sender *sender) error {
	statements, err := sender.prepare(ctx, conn, b)
	if err != nil {
		return err
	}
	out, err := b.encode(conn.TypeMap(), statements)
	if err != nil {
		return err
	}
	results := conn.PgConn().ExecBatch(ctx, out)
	for i := range b.queries {
		q, began := &b.queries[i], time.Now()
		var tag pgconn.CommandTag
		answered := results.NextResult()
		if answered {
			tag, err = q.read(results.ResultReader(), conn.TypeMap())
		} else if err = results.Close(); err == nil {
			_ = conn.Close(ctx) // what it answers next belongs to nobody knows what
			err = errOutOfStep
		}
		if sender.tracer != nil {
			sender.tracer.TraceBatchQuery(ctx, conn, pgx.TraceBatchQueryData{
				SQL: q.sql, Args: q.args, CommandTag: tag, Err: err, ReadStartTime: began,
			})
		}
		if err != nil {
			break
		}
	}
	return cmp.Or(err, results.Close())
}

func (q *query) read(result *pgconn.ResultReader, types *pgtype.Map) (pgconn.CommandTag, error) {
	var err error
	switch {
	case q.rows != nil:
		rows := pgx.RowsFromResultReader(types, result)
		err = q.rows(rows)
		rows.Close()
		err = cmp.Or(err, rows.Err())
	case q.row != nil && result.NextRow():
		err = q.row(result.Values())
	}
	tag, failed := result.Close()
	if err = cmp.Or(failed, err); err == nil && q.tag != nil {
		err = q.tag(tag)
	}
	return tag, err
}

// encode writes the messages of the batch. Its statements are prepared unless
// statements is nil.
func (b *batch) encode(types *pgtype.Map, statements []*pgconn.StatementDescription) (*pgconn.Batch, error) {
	out, arguments := &pgconn.Batch{}, newEncoder(types)
	for i, q := range b.queries {
		if err := arguments.encode(q.args); err != nil {
			return nil, err
		}
		if statements == nil {
			out.ExecParams(q.sql, arguments.values, arguments.oids, binaryFormat, binaryFormat)
		} else {
			out.ExecStatement(statements[i], arguments.values, binaryFormat, binaryFormat)
		}
	}
	return out, nil
}

// binaryFormat is the format of all arguments, and of all columns.
var binaryFormat = []int16{pgtype.BinaryFormatCode}

// encoder writes the arguments of one statement after the other.
type encoder struct {
	types  *pgtype.Map
	buffer []byte // has values, and those of statements before
	values [][]byte
	oids   []uint32
}

// newEncoder returns one with room for what most statements need.
func newEncoder(types *pgtype.Map) *encoder {
	return &encoder{types: types, buffer: make([]byte, 0, 256), values: make([][]byte, 0, 14), oids: make([]uint32, 0, 14)}
}

func (e *encoder) encode(args []any) error {
	e.values, e.oids = e.values[:0], e.oids[:0]
	for _, arg := range args {
		from := len(e.buffer)
		oid, err := e.append(arg)
		if err != nil {
			return err
		}
		value := e.buffer[from:len(e.buffer):len(e.buffer)]
		switch v := arg.(type) {
		case nil:
			value = nil
		case []byte:
			value = v // NULL if nil
		}
		e.values, e.oids = append(e.values, value), append(e.oids, oid)
	}
	return nil
}

// append adds the value of arg to the buffer, unless that is a []byte or NULL,
// and returns its type.
func (e *encoder) append(arg any) (oid uint32, err error) {
	switch v := arg.(type) {
	case nil:
		return 0, nil // which the server infers
	case []byte:
		return pgtype.ByteaOID, nil
	case string:
		e.buffer, oid = append(e.buffer, v...), pgtype.TextOID
	case uuid.UUID:
		e.buffer, oid = append(e.buffer, v[:]...), pgtype.UUIDOID
	case int16:
		e.buffer, oid = binary.BigEndian.AppendUint16(e.buffer, uint16(v)), pgtype.Int2OID
	case int32:
		e.buffer, oid = binary.BigEndian.AppendUint32(e.buffer, uint32(v)), pgtype.Int4OID
	case int64:
		e.buffer, oid = binary.BigEndian.AppendUint64(e.buffer, uint64(v)), pgtype.Int8OID
	case time.Duration: // the rest of an interval are days and months
		e.buffer = binary.BigEndian.AppendUint64(e.buffer, uint64(v.Microseconds()))
		e.buffer, oid = binary.BigEndian.AppendUint64(e.buffer, 0), pgtype.IntervalOID
	case []string:
		return e.appendOther(pgtype.TextArrayOID, arg)
	case []int64:
		return e.appendOther(pgtype.Int8ArrayOID, arg)
	case float32:
		return e.appendOther(pgtype.Float4OID, arg)
	case time.Time:
		return e.appendOther(pgtype.TimestamptzOID, arg)
	default:
		return 0, fmt.Errorf("pgstore: cannot encode an argument of type %T", arg)
	}
	return oid, nil
}

// appendOther adds a value that pgx encodes, which is not NULL.
func (e *encoder) appendOther(oid uint32, arg any) (uint32, error) {
	buffer, err := e.types.Encode(oid, pgtype.BinaryFormatCode, arg, e.buffer)
	if buffer == nil && err == nil {
		err = fmt.Errorf("pgstore: NULL as an argument of type %T", arg)
	}
	if err == nil {
		e.buffer = buffer
	}
	return oid, err
}

// sender is what is known of a connection on which batches are sent.
type sender struct {
	prepares bool                                    // else statements are parsed each time
	prepared map[string]*pgconn.StatementDescription // by their text
	forgot   int                                     // how often it had to forget them
	tracer   pgx.BatchTracer                         // nil if there is none
}

// senderKey is where a connection keeps its sender.
const senderKey = "github.com/idemhttp/idem/server/pgstore sender"

func senderOf(conn *pgx.Conn) *sender {
	kept := conn.PgConn().CustomData()
	if s, ok := kept[senderKey].(*sender); ok {
		return s
	}
	config := conn.Config()
	s := &sender{
		prepares: config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement,
		prepared: make(map[string]*pgconn.StatementDescription),
	}
	s.tracer, _ = config.Tracer.(pgx.BatchTracer)
	kept[senderKey] = s
	return s
}

// prepare returns the prepared statements of b, nil if this connection has none.
// Those that are new to it take one round trip together. Their names are known
// to nobody else: pgx would use a statement that it knows for whatever has the
// same text, and not notice that it is stale.
func (s *sender) prepare(ctx context.Context, conn *pgx.Conn, b *batch) ([]*pgconn.StatementDescription, error) {
	if !s.prepares {
		return nil, nil
	}
	statements := make([]*pgconn.StatementDescription, len(b.queries))
	var missing []string
	for i, q := range b.queries {
		if statements[i] = s.prepared[q.sql]; statements[i] == nil && !slices.Contains(missing, q.sql) {
			missing = append(missing, q.sql)
		}
	}
	if len(missing) == 0 {
		return statements, nil
	}
	if err := s.prepareAnew(ctx, conn, missing); err != nil {
		return nil, err
	}
	for i, q := range b.queries {
		statements[i] = s.prepared[q.sql]
	}
	return statements, nil
}

func (s *sender) prepareAnew(ctx context.Context, conn *pgx.Conn, texts []string) (err error) {
	pipeline := conn.PgConn().StartPipeline(ctx)
	defer func() { err = cmp.Or(err, pipeline.Close()) }()
	for _, sql := range texts {
		pipeline.SendPrepare(s.nameOf(sql), sql, nil)
	}
	if err := pipeline.Sync(); err != nil {
		return err
	}
	for _, sql := range texts {
		result, err := pipeline.GetResults()
		if err != nil {
			return err
		}
		statement, ok := result.(*pgconn.StatementDescription)
		if !ok {
			return errOutOfStep
		}
		statement.Name, statement.SQL = s.nameOf(sql), sql // the server tells neither
		if len(statement.Fields) == 0 {                    // pgconn would ask again, in case that there are columns after all
			statement.Fields = make([]pgconn.FieldDescription, 1)
		}
		s.prepared[sql] = statement
	}
	return nil
}

func (s *sender) nameOf(sql string) string {
	sum := sha256.Sum256([]byte(sql))
	return fmt.Sprintf("idem_%x_%d", sum[:12], s.forgot)
}

// forget has all statements prepared anew, under other names because some of the
// old ones may be there yet.
func (s *sender) forget() {
	clear(s.prepared)
	s.forgot++
}

// isStale reports whether err says that a prepared statement is not there any
// more, because somebody has deallocated it, or that its result has another type
// now, because somebody has changed the table.
func isStale(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) &&
		(pgErr.Code == "26000" || pgErr.Code == "0A000" && pgErr.Routine == "RevalidateCachedQuery")
}
