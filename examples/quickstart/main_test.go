package main

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/faultnet"
	"github.com/idemhttp/idem/server/refserver"
)

func TestTheStoriesAreTrueOverSockets(t *testing.T) {
	t.Parallel()
	require.NoError(t, run(t.Context(), io.Discard))
}

func TestTheStoriesAreToldInLessThanFiveSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s, _ := inMemory(t, &out)
		begin := time.Now()
		require.NoError(t, s.tell(t.Context()))
		require.Less(t, time.Since(begin), 5*time.Second)
		require.Equal(t, strings.TrimLeft(wholeOutput, "\n"), constant(out.String()))
	})
}

func TestClaimsThatDoNotHoldAreAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s, api := inMemory(t, &out)
		s.counts = func() refserver.Counts { // as if every request were executed
			return refserver.Counts{Executions: api.Counts().Requests}
		}
		require.EqualError(t, s.tell(t.Context()), "4 of 12 claims do not hold")
		require.Equal(t, 3, strings.Count(out.String(), "✗ the server executed it once\n"))
		require.Equal(t, 1, strings.Count(out.String(), "✗ the server executed nothing\n"))
		require.NotContains(t, out.String(), "claims hold")
	})
}

func inMemory(t *testing.T, w io.Writer) (*stories, *refserver.Server) {
	t.Helper()
	api, err := newAPI()
	require.NoError(t, err)
	return &stories{
		timeline: timeline{w: w}, url: "http://api.example.com", transport: faultnet.Handle(t, api), counts: api.Counts,
	}, api
}

// constant replaces what is different every time.
func constant(s string) string {
	s = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).ReplaceAllString(s, "<id>")
	s = regexp.MustCompile(`(?m)^ +[0-9]+ ms`).ReplaceAllString(s, " <t>")
	return regexp.MustCompile(`wait [0-9]+ ms`).ReplaceAllString(s, "wait <d>")
}

const wholeOutput = `
The reference server is on http://api.example.com and keeps its keys in memory.

1. 12.00 are paid, but the connection breaks before the answer arrives.

 <t>  POST under the key <id>
 <t>  attempt 1: no answer: EOF
 <t>  wait <d>
 <t>  attempt 2: 201 Created, a replay
            ✓ the second attempt got the answer of the first
            ✓ the server executed it once

2. 25.00 meet a server that fails twice before it works.

 <t>  POST under the key <id>
 <t>  attempt 1: 503 Service Unavailable
 <t>  wait <d>
 <t>  attempt 2: 503 Service Unavailable
 <t>  wait <d>
 <t>  attempt 3: 201 Created
            ✓ the third attempt made it
            ✓ it is no replay: failures are not kept

3. 40.00 are sent by 20 clients at the same moment, under one key.

 <t>  20 answers, 19 of them replays
            ✓ all of them have the same payment
            ✓ the server executed it once

4. 8.00 take the server longer than an attempt may take.

 <t>  POST under the key <id>
 <t>  attempt 1: no answer: idem: no complete answer within the attempt timeout of 300ms
 <t>  wait <d>
 <t>  attempt 2: 202 Accepted, try again after 1 s
 <t>  wait <d>
 <t>  attempt 3: 201 Created, a replay
            ✓ the client waited as it was told and got the answer
            ✓ the server executed it once

5. A bug sends 99.00 under the key of the first payment.

 <t>  POST under the key <id>
 <t>  attempt 1: 409 Conflict
            ✓ the error is an *idem.ConflictError, code IDEMPOTENCY_KEY_REUSE
            ✓ its outcome is "rejected": nothing was done, and nothing will be
            ✓ the server executed nothing

6. In the end this is what the server has in its ledger.

 <t>  attempt 1: 200 OK
 <t>   12.00 RUB  payment <id>
 <t>   25.00 RUB  payment <id>
 <t>   40.00 RUB  payment <id>
 <t>    8.00 RUB  payment <id>
            ✓ four payments, each of them once

All 12 claims hold.
`
