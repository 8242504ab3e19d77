package pgstore

import (
	"bytes"
	"context"
	"math"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

func TestArgumentsAreEncodedAsPgxDoes(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	types := pgtype.NewMap()
	args := []any{
		"", "text", id, []byte("bytes"),
		[]byte{},
		[]byte(nil), nil,
		int16(math.MinInt16), int32(-7), int64(math.MaxInt64), time.Duration(0), 36*time.Hour + 1500*time.Microsecond, -time.Minute,
		[]string{"a", "b"},
		[]int64{1, -1},
		float32(0.5),
	}
	forPgx := map[int]any{
		2:  pgtype.UUID{Bytes: id, Valid: true},
		10: pgtype.Interval{Valid: true},
		11: pgtype.Interval{Microseconds: 36*3600*1e6 + 1500, Valid: true},
		12: pgtype.Interval{Microseconds: -60 * 1e6, Valid: true},
	}
	e := newEncoder(types)
	require.NoError(t, e.encode([]any{"a statement before"}))
	require.NoError(t, e.encode(args))
	require.Len(t, e.values, len(args))
	for i, arg := range args {
		if other, ok := forPgx[i]; ok {
			arg = other
		}
		if arg == nil {
			require.Nil(t, e.values[i])
			require.Zero(t, e.oids[i])
			continue
		}
		want, err := types.Encode(e.oids[i], pgtype.BinaryFormatCode, arg, []byte{})
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, e.values[i]) && (want == nil) == (e.values[i] == nil), "%T: %x, not %x", arg, e.values[i], want)
	}
	require.ErrorContains(t, e.encode([]any{struct{}{}}), "struct {}")
}

func TestARecordThatIsNotWhatItShouldBeIsUnreadable(t *testing.T) {
	t.Parallel()
	const eight = "\x00\x00\x00\x00\x00\x00\x00\x08"
	good := func() [][]byte {
		return [][]byte{
			[]byte(eight), bytes.Repeat([]byte{1}, 16), bytes.Repeat([]byte{2}, 32),
			{0, 1},
			[]byte("processing"),
			{0, 0, 0, 3},
			bytes.Repeat([]byte{4}, 16),
			[]byte("\x00\x00\x00\x00\x00\x00\x00\x0a"), []byte("\x00\x00\x00\x00\x00\x00\x00\x09"),
			{0, 202},
			[]byte("1:a,1:b,"), []byte("body"),
			{0, 0, 0, 1},
		}
	}
	r, err := decodeRecord(good())
	require.NoError(t, err)
	require.Equal(t, &record{
		operation: uuid.UUID(bytes.Repeat([]byte{1}, 16)), token: uuid.UUID(bytes.Repeat([]byte{4}, 16)),
		fingerprint: server.Fingerprint{Version: 1, Sum: [32]byte(bytes.Repeat([]byte{2}, 32))},
		status:      server.Processing, attempt: 3, leaseLeft: 2 * time.Microsecond,
		response: &server.Response{StatusCode: 202, Fields: []server.Field{{Name: "a", Value: "b"}}, Body: []byte("body")},
	}, r)

	values := good()
	values[7], values[8], values[9], values[10], values[11] = nil, []byte(eight), nil, nil, nil
	r, err = decodeRecord(values)
	require.NoError(t, err)
	require.True(t, r.expired, "in the very moment")
	require.Zero(t, r.leaseLeft)
	require.Nil(t, r.response)

	r, err = decodeRecord(make([][]byte, len(good())))
	require.NoError(t, err)
	require.Nil(t, r)

	for column, value := range map[int][]byte{
		0: {1}, 1: {1}, 2: bytes.Repeat([]byte{2}, 31), 3: {1, 0}, 4: []byte("lost"), 5: {1}, 6: {}, 7: {7}, 8: nil, 9: {1}, 10: []byte("1:a,"), 12: {0, 0, 0, 2},
	} {
		values := good()
		values[column] = value
		_, err := decodeRecord(values)
		require.ErrorIs(t, err, errUnreadable, "column %d", column)
	}
}

// serveOutOfStep is a server that answers no statement, and says that it is
// ready for the next.
func serveOutOfStep(listener net.Listener) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	for {
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() != nil {
			return
		}
		for synced := false; !synced; {
			message, err := backend.Receive()
			if err != nil {
				return
			}
			_, synced = message.(*pgproto3.Sync)
		}
	}
}

// What is not answered is not done, even if no error says so.
func TestACommitWithoutAnAnswerIsNoSuccess(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	go serveOutOfStep(listener)
	conn, err := pgx.Connect(t.Context(), "postgres://u@"+listener.Addr().String()+"/d?sslmode=disable&default_query_exec_mode=exec")
	require.NoError(t, err)
	defer conn.Close(context.Background())
	b := &batch{}
	b.begin()
	err = send(t.Context(), conn, b, commit)
	require.ErrorIs(t, err, errOutOfStep)
	require.Equal(t, unknown, outcomeOf(err, false))
	require.True(t, conn.IsClosed())
}
