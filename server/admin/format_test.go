package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFormatting(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                                     "0s",
		1234567 * time.Nanosecond:             "1ms",
		1290 * time.Millisecond:               "1.2s",
		59*time.Second + 999*time.Millisecond: "59s",
		61 * time.Second:                      "1m 1s",
		47*time.Hour + 59*time.Minute:         "47h 59m",
		50 * time.Hour:                        "2d 2h",
	} {
		require.Equal(t, want, formatDuration(d))
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 43 << 20: "43.0 MiB", 1 << 62: "4096.0 PiB"} {
		require.Equal(t, want, formatBytes(n))
	}
}
