package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func Example() {
	main()
	// Output:
	// message 1001 to anna@example.com: acknowledged, receipt R-1
	// message 1001 to anna@example.com: acknowledged, it is receipt R-1 already
	// message 1002 to bert@example.com: deliver again, the mail server is down
	// message 1002 to bert@example.com: acknowledged, receipt R-2
	// message 1001 to carl@example.com: to the dead letters, idem: the key was used for something else
	// message 1002 to bert@example.com: acknowledged, it is receipt R-2 already
	// in the mailbox of anna@example.com
	// in the mailbox of bert@example.com
}

func TestEveryMailIsSentOnceHoweverOftenItIsDelivered(t *testing.T) {
	t.Parallel()
	var often []message
	for range 10 {
		often = append(often, deliveries...)
	}
	mail := &mailServer{failures: map[string]int{"anna@example.com": 3, "bert@example.com": 2}}
	var out strings.Builder
	consume(t.Context(), &out, often, mail)
	require.ElementsMatch(t, []string{"anna@example.com", "bert@example.com"}, mail.sent)
	require.Equal(t, 5, strings.Count(out.String(), "the mail server is down"))
}
