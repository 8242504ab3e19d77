package pgstore_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server/pgstore"
)

// acrossAccounts are the statements on records that are not about one key.
// None of them decides what becomes of an operation.
var acrossAccounts = []string{
	"selectInFlight", "deleteExpired", "selectClock", "selectSize", "selectStats", "selectSampledStats",
	"selectEntries", "selectUnfinished", "selectLost",
}

// The statements run on distributed engines too as long as they keep to rules.
func TestStatementsKeepToTheRulesOfDistributedEngines(t *testing.T) {
	t.Parallel()
	statements := statementsInSource(t)
	require.Greater(t, len(statements), 30)
	for name, sql := range statements {
		require.NotRegexp(t, `(?i)\bctid\b|\blisten\b|\bnotify\b|\bjsonb?\b|\btemp\b|\bprepare\b|\bdeclare\b|\bnextval\b`, sql, name)
		require.NotRegexp(t, `pg_(try_)?advisory_(lock|unlock)`, sql, "%s: a lock of the session", name)
		require.NotRegexp(t, `^SET [^L]`, sql, "%s: state of the session", name)
		require.NotRegexp(t, `(?is)on conflict[^(]*\(?[^()]*\w\(`, sql, "%s: a function in ON CONFLICT", name)
	}
	for _, name := range acrossAccounts {
		require.Contains(t, statements, name)
		delete(statements, name)
	}
	onRecords := regexp.MustCompile(`(FROM|INTO|UPDATE|JOIN) \{table\}\s`)
	oneKey := regexp.MustCompile(`(WHERE|ON) account_id = \$1 AND idempotency_key = \$2|` +
		`INSERT INTO \{table\} \(account_id, idempotency_key, [^)]*\)\s+VALUES \(\$1, \$2, `)
	for name, sql := range statements {
		if onRecords.MatchString(sql + "\n") {
			require.Regexp(t, oneKey, sql, name)
		}
	}
	steps, err := pgstore.Migrations("")
	require.NoError(t, err)
	require.Contains(t, steps[0], "PRIMARY KEY (account_id, idempotency_key)")
	require.NotRegexp(t, `(?i)\bunique\b|partition by|\bserial\b`, steps[0])
}

// What is sent about records is what the rules were checked on.
func TestStatementsThatAreSentAreInTheSource(t *testing.T) {
	t.Parallel()
	inSource := make(map[string]bool)
	for _, sql := range statementsInSource(t) {
		inSource[strings.ReplaceAll(sql, "{table}", pgstore.DefaultTable)] = true
	}
	sent := statementsOf(t)
	require.GreaterOrEqual(t, len(sent), 13, "%q", sent)
	for _, sql := range sent {
		require.True(t, inSource[strings.TrimSpace(sql)], sql)
	}
}

var beginsStatement = regexp.MustCompile(`^(SELECT|INSERT|UPDATE|DELETE|WITH|SET)\s`)

// statementsInSource returns the constants of the package that are statements.
func statementsInSource(t *testing.T) map[string]string {
	t.Helper()
	values := make(map[string]ast.Expr)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == len(spec.Values) {
				for i, constant := range spec.Names {
					values[constant.Name] = spec.Values[i]
				}
			}
			return true
		})
	}
	statements := make(map[string]string)
	for name, value := range values {
		if text := strings.TrimSpace(textOf(values, value)); beginsStatement.MatchString(text) {
			statements[name] = text
		}
	}
	return statements
}

// textOf returns the text of a constant expression, as far as it is one.
func textOf(values map[string]ast.Expr, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return textOf(values, e.X) + textOf(values, e.Y)
	case *ast.Ident:
		if value, ok := values[e.Name]; ok {
			return textOf(values, value)
		}
	}
	return ""
}
