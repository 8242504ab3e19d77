package refserver

import (
	"net/http"
	"strings"

	"github.com/idemhttp/idem/server"
)

// demoTokens are for demonstrations: everybody knows them.
var demoTokens = map[string]string{
	"demo-acme":   "acme",
	"demo-globex": "globex",
}

// DemoAccount names the account of a request for demonstrations and tests. It
// knows two bearer tokens, "demo-acme" of the account acme and "demo-globex" of
// globex; without a token it believes what the X-Account-Id field says. A real
// service does neither: it takes the account from a token that it has verified.
func DemoAccount(r *http.Request) (string, error) {
	authorization := r.Header.Get("Authorization")
	if authorization == "" {
		return r.Header.Get("X-Account-Id"), nil
	}
	scheme, token, _ := strings.Cut(authorization, " ")
	account, known := demoTokens[strings.TrimSpace(token)]
	if !known || !strings.EqualFold(scheme, "Bearer") {
		return "", server.ErrNoAccount
	}
	return account, nil
}
