package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

func TestTheLoadIsWhatIsGoingOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(nil, takes(500*time.Millisecond))
		require.Equal(t, server.Load{}, s.mw.Load())
		first := begin(s, post("{}"))
		second := begin(s, post("{}"))
		third := begin(s, post("{}"))
		other := begin(s, request("POST", "/payments", "other", "{}"))
		require.Equal(t, server.Load{Executing: 2, Waiting: 2}, s.mw.Load())
		<-first
		<-second
		<-third
		<-other
		require.Equal(t, server.Load{}, s.mw.Load())

		s.store.fail("complete", errOutage)
		<-begin(s, request("POST", "/payments", "late", "{}"))
		require.Equal(t, server.Load{Executing: 1, Pending: 1}, s.mw.Load())
		s.store.on("complete", nil)
		require.NoError(t, s.mw.Drain(t.Context()))
		synctest.Wait()
		require.Equal(t, server.Load{}, s.mw.Load())
	})
}
