package servertest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/idemhttp/idem/server/refserver"
)

// recorder is a test whose failure is recorded.
type recorder struct {
	testing.TB
	fatal string
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

type brokenLedger struct{ refserver.Ledger }

func (brokenLedger) List(context.Context, string) ([]refserver.Entry, error) {
	return nil, errors.New("the ledger is broken")
}
