package pgstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// batch is statements that travel together, in one round trip. It is what
// [pgx.Batch] is, for the few types that our statements take and give, which
// costs the client a fraction of the time: nothing has to find out how to encode
// a value, and no server has to describe a result that is known.
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
	channel := channelOf(conn)
	if channel.tracer == nil {
		return b.exchange(ctx, conn, channel)
	}
	traced := &pgx.Batch{}
	for _, q := range b.queries {
		traced.Queue(q.sql, q.args...)
	}
	ctx = channel.tracer.TraceBatchStart(ctx, conn, pgx.TraceBatchStartData{Batch: traced})
	err := b.exchange(ctx, conn, channel)
	channel.tracer.TraceBatchEnd(ctx, conn, pgx.TraceBatchEndData{Err: err})
	return err
}

func (b *batch) exchange(ctx context.Context, conn *pgx.Conn, channel *channel) error {
	out, err := b.encode(ctx, conn, channel)
	if err != nil {
		return err
	}
	results := conn.PgConn().ExecBatch(ctx, out)
	for i := 0; i < len(b.queries) && err == nil && results.NextResult(); i++ {
		q := &b.queries[i]
		var tag pgconn.CommandTag
		tag, err = q.read(results.ResultReader(), conn.TypeMap())
		if channel.tracer != nil {
			channel.tracer.TraceBatchQuery(ctx, conn, pgx.TraceBatchQueryData{SQL: q.sql, Args: q.args, CommandTag: tag, Err: err})
		}
	}
	err = cmp.Or(err, results.Close())
	if isStale(err) {
		channel.forget(ctx, conn, b)
	}
	return err
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

// encode writes the messages of the batch.
func (b *batch) encode(ctx context.Context, conn *pgx.Conn, channel *channel) (*pgconn.Batch, error) {
	out, arguments := &pgconn.Batch{}, newEncoder(conn.TypeMap())
	for _, q := range b.queries {
		if err := arguments.encode(q.args); err != nil {
			return nil, err
		}
		if !channel.prepares {
			out.ExecParams(q.sql, arguments.values, arguments.oids, binaryFormat, binaryFormat)
			continue
		}
		statement, err := channel.prepare(ctx, conn, q.sql)
		if err != nil {
			return nil, err
		}
		out.ExecStatement(statement, arguments.values, binaryFormat, binaryFormat)
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
	default:
		return e.appendOther(arg)
	}
	return oid, nil
}

// appendOther adds the value of a type that pgx knows by itself.
func (e *encoder) appendOther(arg any) (oid uint32, err error) {
	t, ok := e.types.TypeForValue(arg)
	if !ok {
		return 0, fmt.Errorf("pgstore: cannot encode an argument of type %T", arg)
	}
	e.buffer, err = e.types.Encode(t.OID, pgtype.BinaryFormatCode, arg, e.buffer)
	return t.OID, err
}

// channel is what is known of a connection on which batches are sent.
type channel struct {
	prepares bool // statements, and finds them again
	prepared map[string]*pgconn.StatementDescription
	tracer   pgx.BatchTracer // nil if there is none
}

// channelKey is where a connection keeps its channel.
const channelKey = "github.com/idemhttp/idem/server/pgstore channel"

func channelOf(conn *pgx.Conn) *channel {
	kept := conn.PgConn().CustomData()
	if c, ok := kept[channelKey].(*channel); ok {
		return c
	}
	config := conn.Config()
	c := &channel{
		prepares: config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement,
		prepared: make(map[string]*pgconn.StatementDescription),
	}
	c.tracer, _ = config.Tracer.(pgx.BatchTracer)
	kept[channelKey] = c
	return c
}

// prepare returns the prepared statement of sql. Where pgx would ask for a
// description of the result again, because there are no columns, it pretends
// that there is one.
func (c *channel) prepare(ctx context.Context, conn *pgx.Conn, sql string) (*pgconn.StatementDescription, error) {
	if statement, ok := c.prepared[sql]; ok {
		return statement, nil
	}
	prepared, err := conn.Prepare(ctx, sql, sql)
	if err != nil {
		return nil, err
	}
	statement := *prepared
	if len(statement.Fields) == 0 {
		statement.Fields = make([]pgconn.FieldDescription, 1)
	}
	c.prepared[sql] = &statement
	return &statement, nil
}

// forget drops the statements of b, which are prepared anew when they are sent
// again.
func (c *channel) forget(ctx context.Context, conn *pgx.Conn, b *batch) {
	for _, q := range b.queries {
		delete(c.prepared, q.sql)
		_ = conn.Deallocate(ctx, q.sql)
	}
}

// isStale reports whether err says that a prepared statement is not there any
// more, because somebody has deallocated it, or that its result has another type
// now, because somebody has changed the table.
func isStale(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "26000" || pgErr.Code == "0A000")
}
