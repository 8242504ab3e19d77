// Package retryafter reads the Retry-After field (RFC 9110, section 10.2.3).
package retryafter

import (
	"math"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// Delay returns how long h asks to wait, never less than zero, and whether it
// asks at all. A value that is neither digits nor a date is ignored; of several
// lines the largest valid one counts. A date is measured against the answer's
// own Date, so that the two clocks need not agree, or against now if there is
// none. Times beyond the range of a Duration saturate.
func Delay(h http.Header, now time.Time) (time.Duration, bool) {
	lines := h["Retry-After"]
	if len(lines) == 0 {
		return 0, false
	}
	if date, ok := parseDate(h.Get("Date")); ok {
		now = date
	}
	longest, found := time.Duration(0), false
	for _, line := range lines {
		if d, ok := parse(textproto.TrimString(line), now); ok {
			longest, found = max(longest, d), true
		}
	}
	return longest, found
}

func parse(value string, now time.Time) (time.Duration, bool) {
	if isDigits(value) {
		seconds, err := strconv.ParseUint(value, 10, 64)
		if err != nil || seconds > uint64(math.MaxInt64/time.Second) {
			return math.MaxInt64, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	date, ok := parseDate(value)
	if !ok {
		return 0, false
	}
	return max(0, date.Sub(now)), true
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// parseDate reads the three forms of an HTTP date (RFC 9110, section 5.6.7).
// All of them are in GMT; UTC, which some servers write, is taken for it.
// http.ParseTime alone would read any zone's name in the second form, with an
// offset of zero.
func parseDate(value string) (time.Time, bool) {
	if rest, ok := strings.CutSuffix(value, " UTC"); ok {
		value = rest + " GMT"
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return time.Time{}, false
	}
	zoned := strings.Contains(value, ",")
	return date, !zoned || strings.HasSuffix(value, " GMT")
}
