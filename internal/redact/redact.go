// Package redact takes secrets out of errors.
package redact

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const (
	mark = "REDACTED"
	// tooShort is the length below which a string is neither a secret nor found
	// in a text by more than chance.
	tooShort = 4
)

// URL returns scheme, host and path of u: what may be printed of it.
func URL(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }

// Secrets returns what must not be printed of a request to u with fields h: the
// credentials, the query, the fragment, and the values of the fields for which
// secret says so; those of u both as they read and as they are spelled there.
func Secrets(u *url.URL, h http.Header, secret func(name string) bool) []string {
	secrets := []string{u.RawQuery, u.Fragment, u.EscapedFragment()}
	if u.User != nil {
		secrets = append(secrets, u.User.String())
	}
	if password, ok := u.User.Password(); ok {
		secrets = append(secrets, password, url.UserPassword("", password).String()[1:])
	}
	for _, values := range u.Query() {
		secrets = append(secrets, values...)
	}
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		_, value, _ := strings.Cut(pair, "=")
		secrets = append(secrets, value)
	}
	for name, values := range h {
		if !secret(name) {
			continue
		}
		for _, value := range values {
			secrets = append(secrets, value)
			secrets = append(secrets, strings.Fields(value)...)
		}
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < tooShort })
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) }) // a part must not hide the whole
	return secrets
}

// Error returns err, or an error in its place, so that neither its text nor
// that of an error it wraps holds a secret or a URL other than safeURL.
func Error(err error, secrets []string, safeURL string) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*url.Error); ok { //nolint:errorlint // this node of the chain, not the first of its type
		return &url.Error{Op: e.Op, URL: safeURL, Err: Error(e.Err, secrets, safeURL)}
	}
	text := err.Error()
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, mark)
	}
	if text == err.Error() {
		return err
	}
	return &redacted{text: text, err: err, wrapped: Error(errors.Unwrap(err), secrets, safeURL)}
}

// redacted stands for an error whose text holds a secret.
type redacted struct {
	text    string
	err     error
	wrapped error
}

func (e *redacted) Error() string        { return e.text }
func (e *redacted) Unwrap() error        { return e.wrapped }
func (e *redacted) Is(target error) bool { return errors.Is(e.err, target) }

// Timeout implements the interface of net.Error.
func (e *redacted) Timeout() bool {
	var timeout interface{ Timeout() bool }
	return errors.As(e.err, &timeout) && timeout.Timeout()
}
