package server_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A problem's type is the address of its explanation in the README.
func TestEveryProblemIsExplainedInTheReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	codes := regexp.MustCompile(`= "([A-Z]+(?:_[A-Z]+)+)"`)
	found := 0
	for _, file := range []string{"refusal.go", filepath.Join("..", "internal", "problem", "problem.go")} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range codes.FindAllStringSubmatch(string(source), -1) {
			anchor := strings.ReplaceAll(strings.ToLower(match[1]), "_", "-")
			require.Contains(t, string(readme), `<a id="`+anchor+`"></a>`+"`"+match[1]+"`")
			found++
		}
	}
	require.GreaterOrEqual(t, found, 14)
}
