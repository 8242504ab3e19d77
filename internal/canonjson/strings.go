package canonjson

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	escapes = `"\/bfnrt`        // what may follow a backslash, apart from u
	escaped = "\"\\/\b\f\n\r\t" // what it means there
)

// unescape appends a string, as it stands between its quotes, to dst. It
// reports false if a backslash begins no escape, or half of a surrogate pair.
func unescape(dst, raw []byte) ([]byte, bool) {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...), true
		}
		r, n := decodeEscape(raw[i:])
		if n == 0 {
			return dst, false
		}
		dst = utf8.AppendRune(append(dst, raw[:i]...), r)
		raw = raw[i+n:]
	}
}

// decodeEscape returns the character that the escape at the beginning of s
// stands for, and the length of the escape, which is 0 if there is none. The
// scanner has seen to it that the backslash is not the last byte.
func decodeEscape(s []byte) (rune, int) {
	if i := strings.IndexByte(escapes, s[1]); i >= 0 {
		return rune(escaped[i]), 2
	}
	r, ok := decodeUnit(s)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	low, _ := decodeUnit(s[6:])
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// decodeUnit returns the UTF-16 code unit that a \u escape at the beginning of
// s stands for.
func decodeUnit(s []byte) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(s[2:6]), 16, 16)
	return rune(unit), err == nil
}

// appendQuoted appends s as a string with as few escapes as there can be.
func appendQuoted(dst, s []byte) []byte {
	dst = append(dst, '"')
	for _, c := range s {
		switch i := strings.IndexByte(escaped, c); {
		case c == '/' || c >= ' ' && i < 0:
			dst = append(dst, c)
		case i >= 0:
			dst = append(dst, '\\', escapes[i])
		default:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		}
	}
	return append(dst, '"')
}

// compareUTF16 compares strings by their UTF-16 code units, as RFC 8785 sorts
// them.
func compareUTF16(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return cmp.Compare(rank(a[i]), rank(b[i]))
		}
	}
	return cmp.Compare(len(a), len(b))
}

// rank orders bytes of UTF-8 as UTF-16 orders the characters they begin: those
// above U+FFFF (0xF0 to 0xF4) are surrogate pairs there and come before U+E000
// to U+FFFF (0xEE and 0xEF).
func rank(c byte) byte {
	switch {
	case c >= 0xF0:
		return c - 2
	case c >= 0xEE:
		return c + 5
	}
	return c
}
