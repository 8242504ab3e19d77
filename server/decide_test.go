package server

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	answer := &Response{StatusCode: 201}
	for name, c := range map[string]struct {
		rec      Record
		takeover Takeover
		want     Result
	}{
		"completed":                      {Record{Status: Completed, Response: answer}, Rerun, ResultReplayed},
		"completed for another request":  {Record{Status: Completed, Reused: true, Response: answer}, Rerun, ResultReused},
		"completed, not kept":            {Record{Status: Completed, Response: &Response{NotKept: true}}, Rerun, ResultNotKept},
		"completed without an answer":    {Record{Status: Completed}, Rerun, ResultStoreError},
		"processing":                     {Record{Status: Processing, LeaseLeft: 1}, Rerun, ResultInFlight},
		"processing, refusing":           {Record{Status: Processing, LeaseLeft: 1}, Refuse, ResultInFlight},
		"processing for another request": {Record{Status: Processing, LeaseLeft: 1, Reused: true}, Rerun, ResultReused},
		"owner lost a moment ago":        {Record{Status: Processing}, Rerun, ResultInFlight},
		"owner lost, refusing":           {Record{Status: Processing}, Refuse, ResultIndeterminate},
		"owner lost, another request":    {Record{Status: Processing, Reused: true}, Refuse, ResultReused},
		"accepted":                       {Record{Status: Processing, LeaseLeft: 1, Response: answer}, Refuse, ResultAccepted},
		"accepted for another request":   {Record{Status: Processing, LeaseLeft: 1, Response: answer, Reused: true}, Rerun, ResultReused},
		"worker lost a moment ago":       {Record{Status: Processing, Response: answer}, Rerun, ResultInFlight},
		"worker lost, refusing":          {Record{Status: Processing, Response: answer}, Refuse, ResultIndeterminate},
		"failed a moment ago":            {Record{Status: Failed}, Refuse, ResultInFlight},
		"failed, another request":        {Record{Status: Failed, Reused: true}, Rerun, ResultReused},
		"no record at all":               {Record{}, Rerun, ResultStoreError},
	} {
		require.Equal(t, c.want, decide(c.rec, c.takeover), name)
	}
}

func TestStatusNames(t *testing.T) {
	t.Parallel()
	for status, name := range map[Status]string{
		0: "none", Processing: "processing", Completed: "completed", Failed: "failed", 4: "none",
	} {
		require.Equal(t, name, status.String())
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		usual, left time.Duration
		want        int
	}{
		{0, time.Minute, 1},
		{time.Millisecond, time.Minute, 1},
		{time.Second, time.Minute, 1},
		{time.Second + 1, time.Minute, 2},
		{10 * time.Second, time.Minute, 10},
		{10 * time.Second, 3999 * time.Millisecond, 3},
		{time.Millisecond, time.Second, 1},
		{time.Millisecond, time.Second - 1, 0},
		{time.Millisecond, 0, 0},
		{time.Millisecond, -time.Hour, 0},
	} {
		require.Equal(t, c.want, retryAfter(c.usual, c.left), "%v of %v", c.usual, c.left)
	}
}

func TestAverageFollowsSlowly(t *testing.T) {
	t.Parallel()
	var a average
	require.Zero(t, a.value())
	a.add(800 * time.Millisecond)
	require.Equal(t, 800*time.Millisecond, a.value())
	a.add(1600 * time.Millisecond)
	require.Equal(t, 900*time.Millisecond, a.value())
}

func TestEveryRefusalHasAProblemOfItsOwn(t *testing.T) {
	t.Parallel()
	statuses := map[Result]int{
		ResultInFlight:      http.StatusAccepted,
		ResultMissing:       http.StatusBadRequest,
		ResultInvalid:       http.StatusBadRequest,
		ResultNoAccount:     http.StatusUnauthorized,
		ResultRefused:       http.StatusForbidden,
		ResultAccountError:  http.StatusServiceUnavailable,
		ResultTooLarge:      http.StatusRequestEntityTooLarge,
		ResultIncomplete:    http.StatusBadRequest,
		ResultReused:        http.StatusConflict,
		ResultNotKept:       http.StatusConflict,
		ResultIndeterminate: http.StatusConflict,
		ResultStoreError:    http.StatusServiceUnavailable,
		ResultFailed:        http.StatusInternalServerError,
		ResultMisconfigured: http.StatusInternalServerError,
	}
	codes := map[string]bool{}
	for result, status := range statuses {
		p := result.refusal()
		require.Equal(t, status, p.Status, result)
		require.NotEmpty(t, p.Title, result)
		require.False(t, codes[p.Code], result)
		codes[p.Code] = true
	}
	for _, result := range []Result{ResultExecuted, ResultReplayed, ResultAccepted, ResultUnkeyed, ResultRecorded} {
		require.Zero(t, result.refusal(), result)
	}
}

func TestARefusalTellsNothingOfAnotherRequest(t *testing.T) {
	t.Parallel()
	rec := Record{Status: Completed, Operation: uuid.New(), Response: &Response{StatusCode: 201, NotKept: true}}
	refused := explain(verdict{result: ResultNotKept, record: rec})
	require.Equal(t, rec.Operation, refused.Operation)
	require.Equal(t, 201, refused.OriginalStatus)
	rec.Reused = true
	refused = explain(verdict{result: ResultReused, record: rec})
	require.Zero(t, refused.Operation)
	require.Zero(t, refused.OriginalStatus)
}
