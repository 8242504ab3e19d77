package memstore_test

import (
	"testing"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/storetest"
)

func TestStoreKeepsTheRules(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) server.Store { return new(memstore.Store) })
}
