package idem_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClientImportsLittle(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	for pkg := range strings.FieldsSeq(string(out)) {
		own := pkg == "github.com/idemhttp/idem" || strings.HasPrefix(pkg, "github.com/idemhttp/idem/internal/")
		allowed := pkg == "github.com/google/uuid" || pkg == "github.com/cenkalti/backoff/v4"
		require.True(t, own || allowed, "the client must not import %s", pkg)
	}
}
