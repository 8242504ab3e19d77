package sidecar

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/idemhttp/idem/server"
)

// refused is an error for [server.Middleware.Account]: the request can belong to
// no account as it is.
type refused string

func (e refused) Error() string { return "sidecar: " + string(e) }

// HTTPStatus is what the middleware answers with.
func (e refused) HTTPStatus() int { return http.StatusBadRequest }

// AccountFromField takes the account from a field of the request, "X-Account-Id"
// say.
//
// Whoever stands in front has to set that field himself, for the account that he
// has authenticated, and to remove it from what clients send: anybody who can
// choose it can have the stored answers of others replayed.
func AccountFromField(name string) func(*http.Request) (string, error) {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) {
		lines := r.Header[name]
		if len(lines) == 0 {
			return "", server.ErrNoAccount
		}
		if len(lines) > 1 {
			return "", refused("there is more than one " + name + " field: is the client's removed?")
		}
		return lines[0], nil
	}
}

// AccountFromUnverifiedToken takes the account from a claim, "sub" say, of the
// JSON Web Token in the Authorization field. The claim must be a string.
//
// It does NOT verify the token, neither its signature nor its expiry. Whoever
// stands in front must have done so and let nothing else through: anybody can
// write a token that names somebody else, and have his stored answers replayed.
func AccountFromUnverifiedToken(claim string) func(*http.Request) (string, error) {
	return func(r *http.Request) (string, error) {
		lines := r.Header["Authorization"]
		if len(lines) > 1 {
			return "", refused("there is more than one Authorization field")
		}
		if len(lines) == 0 {
			return "", server.ErrNoAccount
		}
		scheme, token, _ := strings.Cut(lines[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", server.ErrNoAccount
		}
		account, _ := claims(strings.TrimSpace(token))[claim].(string)
		return account, nil
	}
}

// claims returns what a token in the compact form claims (RFC 7519), or nil.
func claims(token string) (claims map[string]any) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return nil
	}
	return claims
}
