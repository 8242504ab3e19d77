package admin

import (
	"fmt"
	"time"
)

func formatBytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for ; value >= unit && prefix < 4; prefix++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[prefix])
}

// formatDuration keeps three digits at most of what people care about.
func formatDuration(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd %dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= 10*time.Second:
		return d.Truncate(time.Second).String()
	case d >= time.Second:
		return d.Truncate(100 * time.Millisecond).String()
	default:
		return d.Truncate(time.Millisecond).String()
	}
}

func formatInstant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
