// Package rfc9110 holds what client and server need of HTTP's own rules
// (RFC 9110) and net/http does not export.
package rfc9110

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// IsSafe reports whether method asks for nothing to be changed (section 9.2.1),
// in any case. The empty method is GET.
func IsSafe(method string) bool {
	switch strings.ToUpper(method) {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// IsIdempotent reports whether repeating a request with method has the effect
// of making it once (section 9.2.2), in any case.
func IsIdempotent(method string) bool {
	switch strings.ToUpper(method) {
	case http.MethodPut, http.MethodDelete:
		return true
	}
	return IsSafe(method)
}

// IsToken reports whether s is a token (section 5.6.2).
func IsToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7F || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// CheckHeader returns an error if a field of h could not be sent. It does not
// repeat values.
func CheckHeader(h http.Header) error {
	for name, values := range h {
		if !IsToken(name) {
			return fmt.Errorf("%q is not a field name", name)
		}
		for _, value := range values {
			if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }) {
				return fmt.Errorf("a value of %s holds a control character such as a newline", name)
			}
		}
	}
	return nil
}

// Lines returns the values of a field in h, however its name is spelled, and
// whether it is there at all.
func Lines(h http.Header, field string) (lines []string, set bool) {
	for name, values := range h {
		if strings.EqualFold(name, field) {
			lines, set = append(lines, values...), true
		}
	}
	return lines, set
}

// Has reports whether h has a field of that name, however it is spelled.
func Has(h http.Header, field string) bool {
	_, set := Lines(h, field)
	return set
}

// Origin returns scheme, host and port of u, the port also where it is the
// scheme's own (section 4.3.1).
func Origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}
