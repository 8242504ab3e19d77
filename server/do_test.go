package server_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
)

// message is a claim for a message of a queue.
func message(text string) server.ClaimRequest {
	return server.ClaimRequest{
		ID:          server.ID{Account: "mailer", Key: "message-1"},
		Fingerprint: server.Fingerprint{Version: 1, Sum: sha256.Sum256([]byte(text))},
	}
}

func TestDoRunsOnce(t *testing.T) {
	t.Parallel()
	store := newFaultStore()
	runs := 0
	send := func(ctx context.Context) ([]byte, error) {
		runs++
		op, ok := server.OperationFrom(ctx)
		require.True(t, ok)
		require.Equal(t, "mailer", op.Account)
		require.Equal(t, "message-1", op.Key)
		require.Equal(t, 1, op.Attempt)
		return []byte("sent"), nil
	}
	done, err := server.Do(t.Context(), store, message("hello"), send)
	require.NoError(t, err)
	require.Equal(t, server.Done{Value: []byte("sent")}, done)
	for range 3 {
		done, err = server.Do(t.Context(), store, message("hello"), send)
		require.NoError(t, err)
		require.Equal(t, server.Done{Value: []byte("sent"), Replayed: true}, done)
	}
	_, err = server.Do(t.Context(), store, message("another text"), send)
	require.ErrorIs(t, err, server.ErrReused)
	require.Equal(t, 1, runs)
}

func TestDoRunsAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	store := newFaultStore()
	errMail := errors.New("the mail server is down")
	attempts := []int{}
	send := func(ctx context.Context) ([]byte, error) {
		op, _ := server.OperationFrom(ctx)
		attempts = append(attempts, op.Attempt)
		if op.Attempt == 1 {
			return nil, errMail
		}
		return nil, nil
	}
	_, err := server.Do(t.Context(), store, message(""), send)
	require.Equal(t, errMail, err)
	_, err = server.Do(t.Context(), store, message(""), send)
	require.NoError(t, err)
	done, err := server.Do(t.Context(), store, message(""), send)
	require.NoError(t, err)
	require.True(t, done.Replayed)
	require.Equal(t, []int{1, 2}, attempts)
}

func TestDoLetsAPanicGo(t *testing.T) {
	t.Parallel()
	store := newFaultStore()
	require.PanicsWithValue(t, "boom", func() {
		_, _ = server.Do(t.Context(), store, message(""), func(context.Context) ([]byte, error) { panic("boom") })
	})
	done, err := server.Do(t.Context(), store, message(""), func(context.Context) ([]byte, error) { return []byte("ok"), nil })
	require.NoError(t, err)
	require.Equal(t, server.Done{Value: []byte("ok")}, done)
}

func TestDoDoesNotWaitForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaultStore()
		slow := func(context.Context) ([]byte, error) {
			time.Sleep(55 * time.Second)
			return []byte("slow"), nil
		}
		first := make(chan server.Done)
		go func() {
			done, err := server.Do(t.Context(), store, message(""), slow)
			assert.NoError(t, err)
			first <- done
		}()
		synctest.Wait()
		time.Sleep(45 * time.Second)
		_, err := server.Do(t.Context(), store, message(""), slow)
		var inFlight *server.InFlightError
		require.ErrorAs(t, err, &inFlight)
		require.Equal(t, 25*time.Second, inFlight.LeaseLeft, "the lease was extended after 40 s")
		require.NotZero(t, inFlight.Operation)
		require.ErrorContains(t, err, "25s")
		require.Equal(t, server.Done{Value: []byte("slow")}, <-first)
		require.Equal(t, 5, store.called("extend"), "every 10 s")
	})
}

func TestDoRefusesALostOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaultStore()
		req := message("")
		req.Lease, req.TTL = time.Second, time.Hour
		_, err := store.Claim(t.Context(), req)
		require.NoError(t, err)
		time.Sleep(time.Second)
		req.Takeover = server.Refuse
		never := func(context.Context) ([]byte, error) { panic("not called") }
		_, err = server.Do(t.Context(), store, req, never)
		require.ErrorIs(t, err, server.ErrIndeterminate)
	})
}

func TestDoRecordsWhatIsDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaultStore()
		store.fail("complete", errOutage)
		time.AfterFunc(time.Minute, func() { store.on("complete", nil) })
		work := func(context.Context) ([]byte, error) { return []byte("ok"), nil }
		start := time.Now()
		done, err := server.Do(t.Context(), store, message(""), work)
		require.NoError(t, err)
		require.Equal(t, server.Done{Value: []byte("ok")}, done)
		require.InDelta(t, 60, time.Since(start).Seconds(), 8, "as soon as the store is back")

		store = newFaultStore()
		store.fail("complete", errOutage)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start = time.Now()
		done, err = server.Do(ctx, store, message(""), work)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "done, but not recorded")
		require.Equal(t, server.Done{Value: []byte("ok")}, done)
		require.Equal(t, 10*time.Second, time.Since(start))
	})
}

func TestDoUnderAnAtomicLease(t *testing.T) {
	t.Parallel()
	store := newFaultStore()
	store.atomic = true
	var runs atomic.Int64
	work := func(context.Context) ([]byte, error) {
		runs.Add(1)
		return []byte("ok"), nil
	}
	store.on("complete", func() error {
		if runs.Load() < 3 {
			store.forget()
			return server.ErrRestart
		}
		return nil
	})
	_, err := server.Do(t.Context(), store, message(""), work)
	require.NoError(t, err)
	require.EqualValues(t, 3, runs.Load())

	store.forget()
	store.fail("complete", errOutage)
	done, err := server.Do(t.Context(), store, message(""), work)
	require.ErrorIs(t, err, errOutage)
	require.Equal(t, 1, store.called("complete")-3, "it is not tried again")
	require.Zero(t, done)

	store.forget()
	store.on("complete", nil)
	store.rewrite = func(rec *server.Record) { rec.Reused = true }
	_, err = server.Do(t.Context(), store, message(""), work)
	require.ErrorIs(t, err, server.ErrReused)

	store.on("complete", func() error {
		store.forget()
		return server.ErrRestart
	})
	store.forget()
	runs.Store(0)
	_, err = server.Do(t.Context(), store, message(""), work)
	require.ErrorIs(t, err, server.ErrRestart)
	require.EqualValues(t, 4, runs.Load())
}

func TestDoExplainsBadUse(t *testing.T) {
	t.Parallel()
	work := func(context.Context) ([]byte, error) { panic("not called") }
	change := func(f func(*server.ClaimRequest)) server.ClaimRequest {
		req := message("")
		f(&req)
		return req
	}
	for want, c := range map[string]struct {
		store server.Store
		req   server.ClaimRequest
		fn    func(context.Context) ([]byte, error)
	}{
		"needs a store":     {nil, message(""), work},
		"needs a function":  {newFaultStore(), message(""), nil},
		"the key is empty":  {newFaultStore(), change(func(r *server.ClaimRequest) { r.ID.Key = "" }), work},
		"visible ASCII":     {newFaultStore(), change(func(r *server.ClaimRequest) { r.ID.Key = "a b" }), work},
		"the account":       {newFaultStore(), change(func(r *server.ClaimRequest) { r.ID.Account = "" }), work},
		"255 bytes":         {newFaultStore(), change(func(r *server.ClaimRequest) { r.ID.Account = strings.Repeat("a", 256) }), work},
		"must be at least":  {newFaultStore(), change(func(r *server.ClaimRequest) { r.Lease = -1 }), work},
		"at least 1ms":      {newFaultStore(), change(func(r *server.ClaimRequest) { r.TTL = time.Microsecond }), work},
		"the store failed":  {failing("claim"), message(""), work},
		"the store is down": {failing("claim"), message(""), work},
	} {
		_, err := server.Do(t.Context(), c.store, c.req, c.fn)
		require.ErrorContains(t, err, want)
	}
}

func failing(call string) *faultStore {
	store := newFaultStore()
	store.fail(call, errOutage)
	return store
}
