package retryafter_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/retryafter"
)

var now = time.Date(1999, 12, 31, 23, 59, 57, 0, time.UTC)

func TestDelayReadsSecondsAndDates(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"0":                              0,
		"2":                              2 * time.Second,
		" 2\t":                           2 * time.Second,
		"0002":                           2 * time.Second,
		"2147483649":                     2147483649 * time.Second,
		"9223372036":                     9223372036 * time.Second,
		"9223372037":                     math.MaxInt64,
		"99999999999999999999":           math.MaxInt64,
		"Fri, 31 Dec 1999 23:59:59 GMT":  2 * time.Second,
		"Fri, 31 Dec 1999 23:59:59 UTC":  2 * time.Second,
		"Friday, 31-Dec-99 23:59:59 GMT": 2 * time.Second,
		"Fri Dec 31 23:59:59 1999":       2 * time.Second,
		"Fri, 31 Dec 1999 23:59:00 GMT":  0,
		"Sun, 06 Nov 1994 08:49:37 GMT":  0,
		"Fri, 31 Dec 9999 23:59:59 GMT":  math.MaxInt64,
	} {
		d, ok := retryafter.Delay(http.Header{"Retry-After": {value}}, now)
		require.True(t, ok, "%q", value)
		require.Equal(t, want, d, "%q", value)
	}
}

func TestDelayIgnoresWhatIsNeither(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"", " ", "-1", "-2", "+3", "1.5", "1e3", "0x10", "1m0s", "5;", "2, 3", "1 2", "\u0663", "soon", "a couple minutes", "NaN",
		"Fri, 32 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:59 EST", "Fri, 31 Dec 1999 23:59:59 +0000", "Fri, 31 Dec 1999 23:59:59",
		"Friday, 31-Dec-99 23:59:59 PST", "1999-12-31T23:59:59Z", "Fri, 31 Dec 1999 23:59:59 gmt", "GMT", " UTC",
	} {
		_, ok := retryafter.Delay(http.Header{"Retry-After": {value}}, now)
		require.False(t, ok, "%q", value)
	}
	_, ok := retryafter.Delay(nil, now)
	require.False(t, ok)
	_, ok = retryafter.Delay(http.Header{"Retry-After": {}}, now)
	require.False(t, ok)
}

func TestDelayTakesTheLargestOfSeveralLines(t *testing.T) {
	t.Parallel()
	for want, lines := range map[time.Duration][]string{
		9 * time.Second: {"1", "9"}, 8 * time.Second: {"8", "1"}, 3 * time.Second: {"soon", "3", "-7"}, 0: {"0", "x"},
	} {
		d, ok := retryafter.Delay(http.Header{"Retry-After": lines}, now)
		require.True(t, ok)
		require.Equal(t, want, d)
	}
}

func TestDelayMeasuresADateAgainstTheAnswersDate(t *testing.T) {
	t.Parallel()
	h := http.Header{"Retry-After": {"Sun, 06 Nov 1994 08:49:44 GMT"}, "Date": {"Sun, 06 Nov 1994 08:49:37 GMT"}}
	d, ok := retryafter.Delay(h, now)
	require.True(t, ok)
	require.Equal(t, 7*time.Second, d)

	h.Set("Date", "yesterday")
	d, ok = retryafter.Delay(h, now)
	require.True(t, ok)
	require.Zero(t, d, "measured against now, it has passed")
}

func FuzzDelay(f *testing.F) {
	for _, seed := range []string{
		"0", "2", "99999999999999999999", "-1", "1.5", "Fri, 31 Dec 1999 23:59:59 GMT", "Friday, 31-Dec-99 23:59:59 GMT", "Fri Dec 31 23:59:59 1999", "soon",
	} {
		f.Add(seed, "")
		f.Add(seed, "Sun, 06 Nov 1994 08:49:37 GMT")
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		h := http.Header{"Retry-After": {value}, "Date": {date}}
		d, ok := retryafter.Delay(h, now)
		if d < 0 || !ok && d != 0 {
			t.Fatalf("Delay(%q) = %v, %t", value, d, ok)
		}
		h.Add("Retry-After", "1")
		if both, ok := retryafter.Delay(h, now); !ok || both != max(d, time.Second) {
			t.Fatalf("with a second line of 1, Delay(%q) = %v, %t", value, both, ok)
		}
	})
}
