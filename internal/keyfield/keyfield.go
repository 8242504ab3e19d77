// Package keyfield holds what client and server agree on about the
// Idempotency-Key field: its name, its syntax and how a key is shortened for
// logs.
package keyfield

import (
	"fmt"
	"net/textproto"
	"strings"
)

// Names of the fields of the contract, in canonical form.
const (
	Name     = "Idempotency-Key"
	Replayed = "Idempotent-Replayed"
)

// MaxLength is the longest key in bytes.
const MaxLength = 255

// Check returns nil if key is 1 to 255 bytes of visible ASCII (0x21-0x7E), and
// otherwise an error that says what is wrong without repeating the key.
func Check(key string) error {
	if key == "" {
		return fmt.Errorf("the key is empty")
	}
	if len(key) > MaxLength {
		return fmt.Errorf("the key has %d bytes, at most %d are allowed", len(key), MaxLength)
	}
	for i := range len(key) {
		if key[i] < 0x21 || key[i] > 0x7E {
			return fmt.Errorf("byte %d of the key is 0x%02X, only visible ASCII (0x21-0x7E) is allowed", i+1, key[i])
		}
	}
	return nil
}

// Parse returns the key that the lines of an Idempotency-Key field carry. The
// quoted form of the IETF draft, a structured-field string (RFC 9651, section
// 3.3.3), names the same key as the bare form. Several lines are an error even
// if they are equal.
func Parse(lines []string) (string, error) {
	if len(lines) != 1 {
		return "", fmt.Errorf("the field must be sent on exactly one line, found %d", len(lines))
	}
	key := textproto.TrimString(lines[0])
	if strings.HasPrefix(key, `"`) {
		unquoted, err := unquote(key)
		if err != nil {
			return "", err
		}
		key = unquoted
	}
	return key, Check(key)
}

// Quote writes key as a structured-field string.
func Quote(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			if i != len(s)-1 {
				return "", fmt.Errorf("nothing may follow the closing quote of the key")
			}
			return b.String(), nil
		case '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", fmt.Errorf(`in a quoted key a backslash must be followed by " or \`)
			}
		}
		b.WriteByte(s[i])
	}
	return "", fmt.Errorf("the quoted key has no closing quote")
}

// Shorten returns enough of key to find it in a log, and too little to use it.
func Shorten(key string) string {
	const shown = 8
	if len(key) <= shown {
		return key[:len(key)/2] + "..."
	}
	return key[:shown] + "..."
}
