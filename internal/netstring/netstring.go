// Package netstring writes sequences of strings so that every byte of them can
// be read again, by a program and, mostly, by a person:
// "12:Content-Type,10:text/plain,".
package netstring

import (
	"strconv"
	"strings"
)

// Join returns parts as netstrings, one after the other.
func Join(parts ...string) string {
	size := 0
	for _, part := range parts {
		size += len(part) + len("1048576:,")
	}
	b := make([]byte, 0, size)
	for _, part := range parts {
		b = strconv.AppendInt(b, int64(len(part)), 10)
		b = append(b, ':')
		b = append(b, part...)
		b = append(b, ',')
	}
	return string(b)
}

// Split is the inverse of Join. It reports false if Join never returns s.
func Split(s string) (parts []string, ok bool) {
	for s != "" {
		digits, rest, _ := strings.Cut(s, ":")
		n, err := strconv.Atoi(digits)
		if err != nil || n < 0 || n >= len(rest) || rest[n] != ',' || strconv.Itoa(n) != digits {
			return nil, false
		}
		parts = append(parts, rest[:n])
		s = rest[n+1:]
	}
	return parts, true
}
