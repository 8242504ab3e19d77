package keyfield_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/keyfield"
)

func TestParseTakesOneLineOfVisibleASCII(t *testing.T) {
	t.Parallel()
	visible := ""
	for c := byte(0x21); c <= 0x7E; c++ {
		visible += string(c)
	}
	for _, tt := range []struct{ name, line, want string }{
		{"a UUID", "8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"},
		{"one byte", "k", "k"},
		{"255 bytes", strings.Repeat("k", 255), strings.Repeat("k", 255)},
		{"every visible character", visible, visible},
		{"blanks around it", " \t8e03\t ", "8e03"},
		{"a comma inside", "a,b", "a,b"},
		{"quotes inside", `a"b"`, `a"b"`},
		{"backslashes without quotes", `a\\b\`, `a\\b\`},
		{"the quoted form", `"8e03"`, "8e03"},
		{"blanks around the quoted form", ` "8e03" `, "8e03"},
		{"255 bytes in quotes", `"` + strings.Repeat("k", 255) + `"`, strings.Repeat("k", 255)},
		{"escapes in quotes", `"\"a\\b\""`, `"a\b"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			key, err := keyfield.Parse([]string{tt.line})
			require.NoError(t, err)
			require.Equal(t, tt.want, key)
		})
	}
}

func TestParseRefusesEverythingElse(t *testing.T) {
	t.Parallel()
	const visibleOnly = "only visible ASCII (0x21-0x7E) is allowed"
	for _, tt := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"no line", nil, "the field must be sent on exactly one line, found 0"},
		{"two lines", []string{"a", "b"}, "the field must be sent on exactly one line, found 2"},
		{"two equal lines", []string{"a", "a"}, "the field must be sent on exactly one line, found 2"},
		{"an empty line", []string{""}, "the key is empty"},
		{"blanks only", []string{" \t "}, "the key is empty"},
		{"nothing in quotes", []string{`""`}, "the key is empty"},
		{"256 bytes", []string{strings.Repeat("k", 256)}, "the key has 256 bytes, at most 255 are allowed"},
		{"6,400 bytes", []string{strings.Repeat("\xa5", 6400)}, "the key has 6400 bytes, at most 255 are allowed"},
		{"256 bytes in quotes", []string{`"` + strings.Repeat("k", 256) + `"`}, "the key has 256 bytes, at most 255 are allowed"},
		{"a blank inside", []string{"a b"}, "byte 2 of the key is 0x20, " + visibleOnly},
		{"a blank in quotes", []string{`" a"`}, "byte 1 of the key is 0x20, " + visibleOnly},
		{"a tab inside", []string{"a\tb"}, "byte 2 of the key is 0x09, " + visibleOnly},
		{"a line break", []string{"a\r\nX: y"}, "byte 2 of the key is 0x0D, " + visibleOnly},
		{"NUL", []string{"a\x00"}, "byte 2 of the key is 0x00, " + visibleOnly},
		{"DEL", []string{"a\x7f"}, "byte 2 of the key is 0x7F, " + visibleOnly},
		{"Cyrillic", []string{"ключ"}, "byte 1 of the key is 0xD0, " + visibleOnly},
		{"0xFF", []string{"k\xff"}, "byte 2 of the key is 0xFF, " + visibleOnly},
		{"Cyrillic in quotes", []string{`"ключ"`}, "byte 1 of the key is 0xD0, " + visibleOnly},
		{"an open quote", []string{`"a`}, "the quoted key has no closing quote"},
		{"a quote alone", []string{`"`}, "the quoted key has no closing quote"},
		{"an escaped closing quote", []string{`"a\"`}, "the quoted key has no closing quote"},
		{"something behind the closing quote", []string{`"a"b`}, "nothing may follow the closing quote of the key"},
		{"parameters", []string{`"a";b=1`}, "nothing may follow the closing quote of the key"},
		{"a list", []string{`"a", "b"`}, "nothing may follow the closing quote of the key"},
		{"an unknown escape", []string{`"a\n"`}, `in a quoted key a backslash must be followed by " or \`},
		{"an escape without end", []string{`"a\`}, `in a quoted key a backslash must be followed by " or \`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := keyfield.Parse(tt.lines)
			require.EqualError(t, err, tt.want)
		})
	}
}

func TestQuoteIsReadBackAsTheSameKey(t *testing.T) {
	t.Parallel()
	require.Equal(t, `"8e03"`, keyfield.Quote("8e03"))
	require.Equal(t, `"\"a\\b\""`, keyfield.Quote(`"a\b"`))
}

func TestShortenShowsTooLittleToUse(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"":                                     "...",
		"k":                                    "...",
		"ab":                                   "a...",
		"12345678":                             "1234...",
		"123456789":                            "12345678...",
		"8e03978e-40d5-43e8-bc93-6894a57f9324": "8e03978e...",
	} {
		require.Equal(t, want, keyfield.Shorten(key))
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "k", ` "k" `, `"a\"b\\"`, `"a`, "a b", "\xff", `"a";b`, strings.Repeat("k", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := keyfield.Parse([]string{line})
		if err == nil {
			require.NoError(t, keyfield.Check(key), "what Parse returns is a key")
			again, err := keyfield.Parse([]string{keyfield.Quote(key)})
			require.NoError(t, err)
			require.Equal(t, key, again, "the quoted form names the same key")
		}
		if keyfield.Check(line) == nil && line[0] != '"' {
			require.NoError(t, err)
			require.Equal(t, line, key, "a bare key stands for itself")
		}
	})
}
