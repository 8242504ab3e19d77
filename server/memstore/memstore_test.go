package memstore_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/storetest"
)

func TestStoreKeepsTheRules(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) server.Store { return new(memstore.Store) })
}

func request(key string) server.ClaimRequest {
	return server.ClaimRequest{ID: server.ID{Account: "acme", Key: key}, Lease: time.Minute, TTL: time.Hour}
}

// complete claims key and completes it with a body of the given size.
func complete(t *testing.T, s *memstore.Store, key string, size int, ttl time.Duration) {
	t.Helper()
	claim, err := s.Claim(t.Context(), request(key))
	require.NoError(t, err)
	require.NotNil(t, claim.Lease)
	_, err = claim.Lease.Complete(t.Context(), server.Response{StatusCode: 201, Body: make([]byte, size)}, ttl)
	require.NoError(t, err)
}

func TestAFullStoreDropsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &memstore.Store{MaxRecords: 3}
		complete(t, s, "completed", 10, time.Hour)
		complete(t, s, "expires", 10, time.Minute)
		running, err := s.Claim(t.Context(), request("running"))
		require.NoError(t, err)

		_, err = s.Claim(t.Context(), request("new"))
		require.ErrorIs(t, err, memstore.ErrFull)
		for _, key := range []string{"completed", "expires", "running"} {
			claim, err := s.Claim(t.Context(), request(key))
			require.NoError(t, err)
			require.Nil(t, claim.Lease, "the records that are there are still known")
		}
		_, err = running.Lease.Complete(t.Context(), server.Response{StatusCode: 201}, time.Hour)
		require.NoError(t, err)

		time.Sleep(time.Minute)
		claim, err := s.Claim(t.Context(), request("new"))
		require.NoError(t, err, "what has expired makes room")
		require.NotNil(t, claim.Lease)
	})
}

func TestAFullStoreStillTakesAnswers(t *testing.T) {
	t.Parallel()
	s := &memstore.Store{MaxBytes: 10_000}
	running, err := s.Claim(t.Context(), request("running"))
	require.NoError(t, err)
	complete(t, s, "large", 10_000, time.Hour)
	_, err = s.Claim(t.Context(), request("new"))
	require.ErrorIs(t, err, memstore.ErrFull)
	_, err = running.Lease.Complete(t.Context(), server.Response{StatusCode: 201, Body: make([]byte, 10_000)}, time.Hour)
	require.NoError(t, err, "its effect has happened")
	stats, err := s.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Completed)
	require.Greater(t, stats.Bytes, int64(20_000))
}

func TestRunDeletesWhatHasExpired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(memstore.Store)
		for i := range 2500 {
			complete(t, s, strconv.Itoa(i), 100, time.Duration(i%2+1)*time.Minute)
		}
		stop := errors.New("the process stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		for _, want := range []int64{2500, 1250, 0} {
			synctest.Wait()
			stats, err := s.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, stats.Completed)
			require.Equal(t, want == 0, stats.Bytes == 0)
			time.Sleep(time.Minute)
		}
		cancel(stop)
		require.Equal(t, stop, <-ended)
	})
}

func TestStats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(memstore.Store)
		_, err := s.Claim(t.Context(), request("older"))
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		_, err = s.Claim(t.Context(), request("newer"))
		require.NoError(t, err)
		complete(t, s, "expired", 0, time.Second)
		failed, err := s.Claim(t.Context(), request("failed"))
		require.NoError(t, err)
		require.NoError(t, failed.Lease.Release(t.Context(), nil))
		time.Sleep(6 * time.Second)

		stats, err := s.Stats(t.Context())
		require.NoError(t, err)
		require.Positive(t, stats.Bytes)
		stats.Bytes = 0
		require.Equal(t, server.Stats{
			Processing: 2, Completed: 1, Failed: 1, OldestProcessing: 16 * time.Second, CleanupLag: 5 * time.Second,
		}, stats)
	})
}

func TestBadUseIsExplained(t *testing.T) {
	t.Parallel()
	_, err := (&memstore.Store{MaxRecords: -1}).Claim(t.Context(), request("key"))
	require.ErrorContains(t, err, "must not be negative")
	_, err = (&memstore.Store{MaxBytes: -1}).Claim(t.Context(), request("key"))
	require.ErrorContains(t, err, "must not be negative")
	for _, d := range []time.Duration{-1, 0, time.Millisecond - 1} {
		req := request("key")
		req.Lease = d
		_, err = new(memstore.Store).Claim(t.Context(), req)
		require.ErrorContains(t, err, "at least a millisecond")
		req = request("key")
		req.TTL = d
		_, err = new(memstore.Store).Claim(t.Context(), req)
		require.ErrorContains(t, err, "at least a millisecond")
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	s := new(memstore.Store)
	claim, err := s.Claim(t.Context(), request("key"))
	require.NoError(t, err)
	stop := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	_, err = s.Claim(ctx, request("other"))
	require.ErrorIs(t, err, stop)
	_, err = claim.Lease.Complete(ctx, server.Response{}, time.Hour)
	require.ErrorIs(t, err, stop)
	require.ErrorIs(t, claim.Lease.Extend(ctx, time.Hour), stop)
	require.ErrorIs(t, claim.Lease.Release(ctx, nil), stop)
	_, err = claim.Lease.(server.Acceptor).Accept(ctx, server.Response{}, time.Hour)
	require.ErrorIs(t, err, stop)
	_, err = s.Finish(ctx, server.Ticket{}, server.Response{}, time.Hour)
	require.ErrorIs(t, err, stop)
	require.ErrorIs(t, s.Renew(ctx, server.Ticket{}, time.Hour), stop)
	_, err = s.Find(ctx, server.ID{})
	require.ErrorIs(t, err, stop)
	_, err = s.Cleanup(ctx, 10)
	require.ErrorIs(t, err, stop)
}

func BenchmarkClaimAndComplete(b *testing.B) {
	s := new(memstore.Store)
	r := server.Response{StatusCode: 201, Body: []byte("done")}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		claim, err := s.Claim(b.Context(), request(strconv.Itoa(i)))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := claim.Lease.Complete(b.Context(), r, time.Millisecond); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAnInterimAnswerMakesRoomForTheFinalOne(t *testing.T) {
	t.Parallel()
	s := new(memstore.Store)
	size := func() int64 {
		stats, err := s.Stats(t.Context())
		require.NoError(t, err)
		return stats.Bytes
	}
	claim, err := s.Claim(t.Context(), request("key"))
	require.NoError(t, err)
	bare := size()
	lease := claim.Lease.(server.Acceptor)
	_, err = lease.Accept(t.Context(), server.Response{StatusCode: 202, Body: make([]byte, 5000)}, time.Hour)
	require.NoError(t, err)
	require.Greater(t, size(), bare+5000)
	ticket := lease.Ticket()
	require.Equal(t, ticket, lease.Ticket(), "it is the same every time")
	_, err = s.Finish(t.Context(), ticket, server.Response{StatusCode: 201}, time.Millisecond)
	require.NoError(t, err)
	require.Less(t, size(), bare+5000)
	require.Eventually(t, func() bool {
		deleted, err := s.Cleanup(t.Context(), 1)
		return err == nil && deleted == 1
	}, time.Minute, time.Millisecond)
	require.Zero(t, size())
}
