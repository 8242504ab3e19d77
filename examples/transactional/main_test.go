package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
)

func TestEveryOrderIsBookedOnceOrNotAtAll(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for range 2 {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out, db.URL))
		require.Equal(t, `cups: 2, status: 201, attempts: 1, replayed: false
cups: 2, status: 201, attempts: 1, replayed: true
cups: 9, status: 422, attempts: 1, replayed: false
cups: 9, status: 422, attempts: 1, replayed: true
cups: 1, status: 201, attempts: 2, replayed: false
cups: 1, status: 201, attempts: 1, replayed: true
orders: 2, cups sold: 3, cups left: 2
`, out.String())
	}
}
