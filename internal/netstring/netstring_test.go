package netstring_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/netstring"
)

func TestJoin(t *testing.T) {
	t.Parallel()
	for want, parts := range map[string][]string{
		"":                               nil,
		"0:,":                            {""},
		"12:Content-Type,10:text/plain,": {"Content-Type", "text/plain"},
		"4:\x00,:\xff,0:,2:ab,":          {"\x00,:\xff", "", "ab"},
	} {
		require.Equal(t, want, netstring.Join(parts...))
		split, ok := netstring.Split(want)
		require.True(t, ok)
		require.Equal(t, parts, split)
	}
}

func TestSplitRefusesWhatJoinNeverReturns(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		":", ",", "1", "1:", "1:a", "2:a,", "1:a;", "01:a,", "+1:a,", "-1:,", "a:b,", "1:a,1:b", "99999999999999999999:a,", "1:a,\n",
	} {
		_, ok := netstring.Split(s)
		require.False(t, ok, "%q", s)
	}
}

func FuzzSplit(f *testing.F) {
	for _, seed := range []string{"", "0:,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if parts, ok := netstring.Split(s); ok && netstring.Join(parts...) != s {
			t.Errorf("%q was split into %q", s, parts)
		}
	})
}
