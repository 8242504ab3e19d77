package rfc9110_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/rfc9110"
)

func TestMethodsAreSafeIdempotentOrNeither(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"", "GET", "get", "HEAD", "OPTIONS", "TRACE"} {
		require.True(t, rfc9110.IsSafe(method), method)
		require.True(t, rfc9110.IsIdempotent(method), method)
	}
	for _, method := range []string{"PUT", "DELETE", "delete"} {
		require.False(t, rfc9110.IsSafe(method), method)
		require.True(t, rfc9110.IsIdempotent(method), method)
	}
	for _, method := range []string{"POST", "PATCH", "CONNECT", "post", "CHARGE"} {
		require.False(t, rfc9110.IsSafe(method), method)
		require.False(t, rfc9110.IsIdempotent(method), method)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"POST", "X-Note", "!#$%&'*+-.^_`|~09az"} {
		require.True(t, rfc9110.IsToken(s), s)
	}
	for _, s := range []string{"", " ", "PO ST", "POST\n", "a:b", "a(b", "ключ", "\x7f"} {
		require.False(t, rfc9110.IsToken(s), s)
	}
}

func TestHeaderThatCannotBeSentIsFoundWithoutRepeatingIt(t *testing.T) {
	t.Parallel()
	require.NoError(t, rfc9110.CheckHeader(http.Header{"X-Note": {"", "a\tb", "naïve"}}))
	require.EqualError(t, rfc9110.CheckHeader(http.Header{"X Note": nil}), `"X Note" is not a field name`)
	for _, value := range []string{"a\nb", "a\rb", "\x00", "\x7f"} {
		require.EqualError(t, rfc9110.CheckHeader(http.Header{"X-Note": {"fine", value}}),
			"a value of X-Note holds a control character such as a newline")
	}
}

func TestFieldIsFoundHoweverItIsSpelled(t *testing.T) {
	t.Parallel()
	for _, h := range []http.Header{{"X-Key": {"k"}}, {"x-key": {"k"}}, {"X-KEY": {"k"}}} {
		lines, set := rfc9110.Lines(h, "X-Key")
		require.True(t, set)
		require.Equal(t, []string{"k"}, lines)
		require.True(t, rfc9110.Has(h, "x-key"))
	}
	lines, set := rfc9110.Lines(http.Header{"X-Key": nil}, "X-Key")
	require.True(t, set, "a field without a value is there")
	require.Empty(t, lines)
	require.False(t, rfc9110.Has(http.Header{"X-Keys": {"k"}}, "X-Key"))
}

func TestOriginsAreTheSameWithAndWithoutTheSchemesOwnPort(t *testing.T) {
	t.Parallel()
	origin := func(s string) string {
		u, err := url.Parse(s)
		require.NoError(t, err)
		return rfc9110.Origin(u)
	}
	for _, pair := range [][2]string{
		{"http://a/x", "http://A:80/y?z"}, {"https://a", "https://user:pw@a:443/"}, {"http://[::1]", "http://[::1]:80/"},
	} {
		require.Equal(t, origin(pair[0]), origin(pair[1]))
	}
	for _, pair := range [][2]string{
		{"http://a", "https://a"}, {"http://a", "http://a:8080"}, {"http://a", "http://b"}, {"http://a", "http://a.b"}, {"https://a", "https://a:80"},
	} {
		require.NotEqual(t, origin(pair[0]), origin(pair[1]))
	}
}
