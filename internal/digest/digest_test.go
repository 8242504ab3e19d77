package digest_test

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/digest"
)

// The SHA-256 sum of "hello", in base64.
const (
	ofHello = "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="
	zeros   = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
)

func TestOfWritesTheFieldOfTheRFC(t *testing.T) {
	t.Parallel()
	require.Equal(t, "sha-256=:"+ofHello+":", digest.Of([]byte("hello")))
	require.Equal(t, "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:", digest.Of(nil))
	// RFC 9530, appendix B.1
	require.Equal(t, "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:", digest.Of([]byte("{\"hello\": \"world\"}\n")))
}

func TestParse(t *testing.T) {
	t.Parallel()
	bare := strings.TrimRight(ofHello, "=")
	for name, tt := range map[string]struct {
		lines []string
		ok    bool
	}{
		"the field alone":                        {[]string{"sha-256=:" + ofHello + ":"}, true},
		"blanks around it":                       {[]string{" \tsha-256=:" + ofHello + ": "}, true},
		"another algorithm before it":            {[]string{"sha-512=:AAAA:, sha-256=:" + ofHello + ":"}, true},
		"another algorithm behind it":            {[]string{"sha-256=:" + ofHello + ":,x*_-.9=::"}, true},
		"on a line of its own":                   {[]string{"sha-512=:AAAA:", "sha-256=:" + ofHello + ":"}, true},
		"twice, the last counts":                 {[]string{"sha-256=:" + zeros + ":", "sha-256=:" + ofHello + ":"}, true},
		"without padding":                        {[]string{"sha-256=:" + bare + ":"}, true},
		"with pad bits set":                      {[]string{"sha-256=:" + bare[:len(bare)-1] + "R=:"}, true},
		"no line":                                {nil, false},
		"an empty line":                          {[]string{""}, false},
		"an empty member":                        {[]string{"sha-256=:" + ofHello + ":,"}, false},
		"an empty member between":                {[]string{"sha-512=:AAAA:,,sha-256=:" + ofHello + ":"}, false},
		"another algorithm only":                 {[]string{"sha-512=:AAAA:"}, false},
		"a sum of another length":                {[]string{"sha-256=:AAAA:"}, false},
		"the sum of another length counts, last": {[]string{"sha-256=:" + ofHello + ":, sha-256=:AAAA:"}, false},
		"no colons":                              {[]string{"sha-256=" + ofHello}, false},
		"one colon":                              {[]string{"sha-256=:"}, false},
		"the old Digest syntax":                  {[]string{"SHA-256=" + ofHello}, false},
		"an upper-case key":                      {[]string{"SHA-256=:" + ofHello + ":"}, false},
		"an empty key":                           {[]string{"=:" + ofHello + ":"}, false},
		"a key that begins with a digit":         {[]string{"256=:AAAA:, sha-256=:" + ofHello + ":"}, false},
		"a key without value":                    {[]string{"sha-512, sha-256=:" + ofHello + ":"}, false},
		"a value that is no byte sequence":       {[]string{"sha-512=1, sha-256=:" + ofHello + ":"}, false},
		"a blank before the equals sign":         {[]string{"sha-256 =:" + ofHello + ":"}, false},
		"a blank behind the equals sign":         {[]string{"sha-256= :" + ofHello + ":"}, false},
		"a blank in the sum":                     {[]string{"sha-256=: " + ofHello + ":"}, false},
		"a line break in the sum":                {[]string{"sha-256=:\n" + ofHello + ":"}, false},
		"the alphabet of base64url":              {[]string{"sha-256=:" + strings.ReplaceAll(ofHello, "+", "-") + ":"}, false},
		"three equals signs":                     {[]string{"sha-256=:" + ofHello + "==:"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sum, ok := digest.Parse(tt.lines)
			require.Equal(t, tt.ok, ok)
			if !ok {
				require.Zero(t, sum)
				return
			}
			require.Equal(t, ofHello, base64.StdEncoding.EncodeToString(sum[:]))
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("sha-256=:"+ofHello+":", "hello")
	f.Add("sha-512=:AAAA:, sha-256=:"+zeros+":", "")
	f.Add("sha-256=:AAAA", "x")
	f.Add("a=::,*=:::", ":")
	f.Fuzz(func(t *testing.T, line, content string) {
		sum, ok := digest.Parse([]string{digest.Of([]byte(content))})
		require.True(t, ok)
		require.Equal(t, sha256.Sum256([]byte(content)), sum)

		sum, ok = digest.Parse([]string{line})
		if !ok {
			require.Zero(t, sum)
			return
		}
		written := "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
		again, ok := digest.Parse([]string{line, "x=:" + base64.StdEncoding.EncodeToString([]byte(content)) + ":", written})
		require.True(t, ok)
		require.Equal(t, sum, again)
	})
}
