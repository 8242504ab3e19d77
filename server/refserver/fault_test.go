package refserver_test

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server/refserver"
)

func TestFaultsThatARequestAsksFor(t *testing.T) {
	t.Parallel()
	tests := []struct {
		fault      string
		statuses   []int // of the attempts; 0 is no whole answer
		executions int
	}{
		{"fail", []int{503, 201, 201}, 2},
		{"fail=500, times=2", []int{500, 500, 201, 201}, 3},
		{"fail-after", []int{503, 201}, 2},
		{"fail=422", []int{422, 422}, 1}, // final, so it is replayed
		{"panic", []int{0, 201}, 2},
		{"drop", []int{0, 201, 201}, 1},
		{"truncate", []int{0, 201}, 1},
		{"truncate=1000", []int{201, 201}, 1}, // longer than the body
		{"fail, drop", []int{0, 0, 201}, 2},
		{"delay=1ms", []int{201, 201}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.fault, func(t *testing.T) {
			t.Parallel()
			api := start(t, refserver.Config{})
			var statuses []int
			for range tt.statuses {
				got, err := api.try("POST", "/payments", seed, "X-Fault: "+tt.fault)
				if err != nil {
					got.status = 0
				}
				statuses = append(statuses, got.status)
			}
			require.Equal(t, tt.statuses, statuses)
			require.Equal(t, tt.executions, api.Counts().Executions)
			if tt.fault != "fail=422" {
				require.Len(t, api.ledger("acme"), 1)
			}
		})
	}
}

func TestTruncateCutsTheBody(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{})
	got, err := api.try("POST", "/payments", seed, "X-Fault: truncate=10")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, http.StatusCreated, got.status)
	require.Equal(t, `{"payment_`, got.body)
}

func TestAFaultThatNobodyKnowsIsRefusedBeforeTheKeyIsUsed(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "explode", "fail=99", "fail=600", "fail=x", "delay", "delay=-1s", "truncate=0", "times=0", "fail,,drop"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			api := start(t, refserver.Config{})
			got := api.post("/payments", seed, "X-Fault: "+fault)
			require.Equal(t, http.StatusBadRequest, got.status)
			require.Equal(t, "INVALID_FAULT", got.code())
			require.Equal(t, 0, api.Counts().Executions)
		})
	}
}

func TestFaultNextIsConsumedInTurn(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{})
	api.FaultNext(refserver.Fault{Fail: 500}, refserver.Fault{Drop: true})
	api.FaultNext(refserver.Fault{Drop: true})
	require.Equal(t, 500, api.post("/payments", seed).status)
	for range 2 { // also the replay is dropped
		_, err := api.try("POST", "/payments", seed)
		require.Error(t, err)
	}
	require.Equal(t, 201, api.post("/payments", seed).status)
	require.Equal(t, refserver.Counts{Requests: 4, Executions: 2, Replays: 2}, api.Counts())
}

func TestChancesRepeatWithTheirSeed(t *testing.T) {
	t.Parallel()
	chances := refserver.Chances{Fail: 0.1, FailAfter: 0.1, Panic: 0.1, Drop: 0.2, Truncate: 0.1, Delay: 0.5, DelayFor: 1}
	run := func(dice uint64) (statuses []int) {
		chances := chances
		chances.Seed = dice
		api := start(t, refserver.Config{Chances: chances})
		for range 60 {
			got, err := api.try("POST", "/payments", seed)
			if err != nil {
				got.status = 0
			}
			statuses = append(statuses, got.status)
		}
		require.Len(t, api.ledger("acme"), 1)
		return statuses
	}
	first := run(1)
	require.Equal(t, first, run(1))
	require.NotEqual(t, first, run(2))
	require.Contains(t, first, 0)
	require.Contains(t, first, 201)
}

func TestChancesAreSwitchedOff(t *testing.T) {
	t.Parallel()
	api := start(t, refserver.Config{Chances: refserver.Chances{Fail: 1}})
	require.Equal(t, 503, api.post("/payments", seed).status)
	api.SetChances(refserver.Chances{})
	require.Equal(t, 201, api.post("/payments", seed).status)
}

func TestDelayHoldsUpTheEffect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := startInMemory(t, refserver.Config{})
		begin := time.Now()
		require.Equal(t, 201, api.post("/payments", seed, "X-Fault: delay=800ms").status)
		require.Equal(t, 800*time.Millisecond, time.Since(begin))
		require.Equal(t, 201, api.post("/payments", seed, "X-Fault: delay=800ms").status) // a replay
		require.Equal(t, 800*time.Millisecond, time.Since(begin))
	})
}

func TestADelayBeyondTheHandlersTimeFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := startInMemory(t, refserver.Config{})
		begin := time.Now()
		require.Equal(t, 503, api.post("/payments", seed, "X-Fault: delay=1h").status)
		require.Equal(t, 2*time.Minute, time.Since(begin))
		require.Empty(t, api.ledger("acme"))
	})
}

func TestCloseEndsADelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := startInMemory(t, refserver.Config{})
		begin := time.Now()
		time.AfterFunc(time.Second, func() { api.Close() })
		require.Equal(t, 503, api.post("/payments", seed, "X-Fault: delay=1m").status)
		require.Equal(t, time.Second, time.Since(begin))
		require.NoError(t, api.Close())
	})
}
