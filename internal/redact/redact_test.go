package redact_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/redact"
)

const safeURL = "https://api.example.com/p%2Fq"

func parse(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	require.NoError(t, err)
	return u
}

func isAuthorization(name string) bool { return name == "Authorization" }

func TestURLIsPrintedWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	require.Equal(t, safeURL, redact.URL(parse(t, "https://user:hunter2@api.example.com/p%2Fq?token=tok_live_9#frag")))
}

// Whoever writes an error may print a secret as it reads or as it stands in
// the URL.
func TestNothingSecretOfARequestIsPrinted(t *testing.T) {
	t.Parallel()
	u := parse(t, "https://user:p%40ss%2Fword@api.example.com/p%2Fq?token=a%2Fb+c%3D&x=1#fr%20ag")
	secrets := redact.Secrets(u, http.Header{"Authorization": {"Bearer sk_7"}, "Accept": {"text/plain"}}, isAuthorization)
	for _, text := range []string{
		u.String(), u.User.String(), "p@ss/word", "p%40ss%2Fword",
		u.RawQuery, "a/b c=", "a%2Fb+c%3D",
		"fr ag", "fr%20ag",
		"Bearer sk_7", "sk_7",
	} {
		printed := redact.Error(fmt.Errorf("no answer (%s)", text), secrets, safeURL).Error()
		for _, secret := range []string{"p@ss", "p%40ss", "a/b", "a%2Fb", "fr ag", "fr%20ag", "sk_7"} {
			require.NotContains(t, printed, secret)
		}
		require.Contains(t, printed, "no answer (")
		require.Contains(t, printed, "REDACTED")
	}
}

func TestUserNameAloneIsACredential(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"https://sk_live_9@api.example.com/", "https://sk_live_9:@api.example.com/"} {
		u := parse(t, s)
		err := redact.Error(errors.New("cannot reach "+s), redact.Secrets(u, nil, isAuthorization), safeURL)
		require.NotContains(t, err.Error(), "sk_live_9")
		require.Contains(t, err.Error(), "@api.example.com/")
	}
}

func TestWhatIsNotSecretStays(t *testing.T) {
	t.Parallel()
	u := parse(t, "https://acme:pw@acme.example.com/users?id=7")
	plain := errors.New("lookup acme.example.com for 7 users: no such host")
	require.Equal(t, plain, redact.Error(plain, redact.Secrets(u, http.Header{"Accept": {"lookup"}}, isAuthorization), safeURL),
		"the same error, and nothing so short that it is found by chance")
	require.NoError(t, redact.Error(nil, nil, safeURL))
}

func TestRedactedErrorIsStillTheError(t *testing.T) {
	t.Parallel()
	cause := &url.Error{Op: "Post", URL: "https://api.example.com/?token=tok_live_9", Err: timeoutError{io.EOF}}
	err := redact.Error(fmt.Errorf("tok_live_9: %w", cause), []string{"tok_live_9"}, safeURL)
	require.EqualError(t, err, `REDACTED: Post "https://api.example.com/?token=REDACTED": EOF`)
	require.ErrorIs(t, err, io.EOF)
	var inner *url.Error
	require.ErrorAs(t, err, &inner)
	require.Equal(t, &url.Error{Op: "Post", URL: safeURL, Err: timeoutError{io.EOF}}, inner)
	var timeout interface{ Timeout() bool }
	require.True(t, errors.As(err, &timeout) && timeout.Timeout())
	for e := err; e != nil; e = errors.Unwrap(e) {
		require.NotContains(t, e.Error(), "tok_live_9", "%T", e)
	}
}

type timeoutError struct{ error }

func (e timeoutError) Unwrap() error { return e.error }
func (timeoutError) Timeout() bool   { return true }
