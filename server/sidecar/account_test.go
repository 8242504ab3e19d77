package sidecar_test

import (
	"encoding/base64"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/sidecar"
)

func token(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".signature"
}

// status is what an error asks the middleware to answer with.
func status(err error) int {
	if chosen, ok := err.(interface{ HTTPStatus() int }); ok {
		return chosen.HTTPStatus()
	}
	return 0
}

func TestAccountFromAField(t *testing.T) {
	t.Parallel()
	account := sidecar.AccountFromField("x-account-id")
	tests := map[string]struct {
		lines  []string
		want   string
		err    error
		status int
	}{
		"one field":  {lines: []string{"acme"}, want: "acme"},
		"none":       {err: server.ErrNoAccount},
		"empty":      {lines: []string{""}},
		"two fields": {lines: []string{"acme", "globex"}, status: http.StatusBadRequest},
	}
	for name, tt := range tests {
		got, err := account(&http.Request{Header: http.Header{"X-Account-Id": tt.lines}})
		require.Equal(t, tt.want, got, name)
		require.Equal(t, tt.status, status(err), name)
		if tt.status == 0 {
			require.Equal(t, tt.err, err, name)
		}
	}
}

func TestAccountFromAClaim(t *testing.T) {
	t.Parallel()
	account := sidecar.AccountFromUnverifiedToken("tenant")
	tests := map[string]struct {
		lines  []string
		want   string
		err    error
		status int
	}{
		"a claim":                  {lines: []string{"Bearer " + token(`{"sub":"x","tenant":"acme"}`)}, want: "acme"},
		"a scheme in another case": {lines: []string{"bearer  " + token(`{"tenant":"acme"}`)}, want: "acme"},
		"no claim":                 {lines: []string{"Bearer " + token(`{"sub":"x"}`)}},
		"a claim of another type":  {lines: []string{"Bearer " + token(`{"tenant":["acme"]}`)}},
		"no object":                {lines: []string{"Bearer " + token(`"acme"`)}},
		"no JSON":                  {lines: []string{"Bearer " + token(`{"tenant":"acme"`)}},
		"no base64":                {lines: []string{"Bearer e30.!.signature"}},
		"no token":                 {lines: []string{"Bearer acme"}},
		"another scheme":           {lines: []string{"Basic " + token(`{"tenant":"acme"}`)}, err: server.ErrNoAccount},
		"no field":                 {err: server.ErrNoAccount},
		"two fields":               {lines: []string{"Bearer " + token(`{"tenant":"acme"}`), "Bearer x"}, status: http.StatusBadRequest},
	}
	for name, tt := range tests {
		got, err := account(&http.Request{Header: http.Header{"Authorization": tt.lines}})
		require.Equal(t, tt.want, got, name)
		require.Equal(t, tt.status, status(err), name)
		if tt.status == 0 {
			require.Equal(t, tt.err, err, name)
		}
	}
}
