// Package digest reads and writes the Content-Digest field (RFC 9530) with the
// algorithm sha-256, by which a client tells a cut answer from a complete one.
package digest

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// Name is the name of the field, in canonical form.
const Name = "Content-Digest"

const algorithm = "sha-256"

// Of returns the field value for content: the bytes as they are sent, after
// content coding and before transfer coding.
func Of(content []byte) string {
	sum := sha256.Sum256(content)
	return algorithm + "=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// Parse returns the SHA-256 sum that the lines of a Content-Digest field
// carry. It reports false if they carry none, or if they are not what
// section 2 of the RFC allows, a dictionary whose values are byte sequences:
// such a field is to be ignored, as if it were absent. Sums by other
// algorithms are skipped; of several by this one the last counts (RFC 9651,
// section 4.2.2).
func Parse(lines []string) (sum [sha256.Size]byte, ok bool) {
	for member := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		key, value, found := strings.Cut(strings.Trim(member, " \t"), "=")
		decoded, valid := parseBytes(value)
		if !found || !validKey(key) || !valid {
			return [sha256.Size]byte{}, false
		}
		if key != algorithm {
			continue
		}
		if len(decoded) != sha256.Size {
			return [sha256.Size]byte{}, false
		}
		sum, ok = [sha256.Size]byte(decoded), true
	}
	return sum, ok
}

// parseBytes decodes a byte sequence (RFC 9651, section 3.3.5). As the RFC
// asks of parsers, padding may be missing and its bits may be set.
func parseBytes(s string) ([]byte, bool) {
	if len(s) < 2 || s[0] != ':' || s[len(s)-1] != ':' {
		return nil, false
	}
	s = s[1 : len(s)-1]
	if strings.ContainsAny(s, "\r\n") { // which package base64 skips
		return nil, false
	}
	s = strings.TrimSuffix(strings.TrimSuffix(s, "="), "=")
	decoded, err := base64.RawStdEncoding.DecodeString(s)
	return decoded, err == nil
}

// validKey reports whether s is a dictionary key (RFC 9651, section 3.1.2).
func validKey(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', c == '*':
		case i > 0 && ('0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return s != ""
}
