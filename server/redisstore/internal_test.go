package redisstore

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/netstring"
	"github.com/idemhttp/idem/server"
)

func FuzzDecodeResponse(f *testing.F) {
	f.Add("")
	f.Add(encodeResponse(server.Response{}))
	f.Add(encodeResponse(server.Response{StatusCode: 201, NotKept: true}))
	f.Add(encodeResponse(server.Response{StatusCode: 200, Body: []byte("x"), Fields: []server.Field{{Name: "A", Value: "\xff"}, {}}}))
	f.Add(netstring.Join("2", "200", "kept", ""))
	f.Fuzz(func(t *testing.T, s string) {
		r, err := decodeResponse(s)
		if err != nil {
			return
		}
		again, err := decodeResponse(encodeResponse(*r))
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

func FuzzDecodeNote(f *testing.F) {
	f.Add("")
	f.Add(note{state: asking, token: "token"}.encode())
	f.Add(note{
		state: completed, token: "token", fingerprint: server.Fingerprint{Version: 1}, operation: uuid.Max, attempt: 3,
		response: encodeResponse(server.Response{StatusCode: 201}),
	}.encode())
	f.Add(netstring.Join("2", "running", "token", "", "", "1", ""))
	f.Fuzz(func(t *testing.T, s string) {
		n, err := decodeNote(s)
		if err != nil {
			return
		}
		if again, err := decodeNote(n.encode()); n.state != "" && (err != nil || again != n) {
			t.Errorf("%+v became %+v (error %v)", n, again, err)
		}
		if rec, known := n.report(server.Fingerprint{Version: 1}, 0); known && rec.Status == server.Processing && rec.LeaseLeft <= 0 {
			t.Errorf("%+v is reported as lost", n)
		}
	})
}

func TestNotesOfOtherVersionsTellNothing(t *testing.T) {
	t.Parallel()
	good := note{state: running, token: "token", attempt: 1}
	for name, s := range map[string]string{
		"none":        "",
		"newer":       netstring.Join("2", "running", "token", encodeFingerprint(good.fingerprint), uuid.Nil.String(), "1", ""),
		"longer":      good.encode() + netstring.Join("x"),
		"another sum": netstring.Join("1", "running", "token", "sum", uuid.Nil.String(), "1", ""),
		"no attempt":  netstring.Join("1", "running", "token", encodeFingerprint(good.fingerprint), uuid.Nil.String(), "one", ""),
		"no id":       netstring.Join("1", "running", "token", encodeFingerprint(good.fingerprint), "1", "1", ""),
	} {
		_, err := decodeNote(s)
		require.Error(t, err, name)
	}
	_, known := note{state: "paused"}.report(server.Fingerprint{}, 0)
	require.False(t, known)
	_, known = note{state: completed, response: netstring.Join("2", "200", "kept", "")}.report(server.Fingerprint{}, 0)
	require.False(t, known)
}
