package metrics_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
	"github.com/idemhttp/idem/server/metrics"
)

const docs = "../../docs/operations.md"

func TestTheDocsListEveryMetric(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(idem_\\w+)` \\| (\\w+) \\| ([^|]*)\\| [A-Z]").FindAllStringSubmatch(read(t, docs), -1) {
		listed = append(listed, strings.TrimSpace(row[1]+" "+row[2]+" "+strings.TrimSpace(row[3])))
	}
	slices.Sort(listed)
	var shown []string
	for _, family := range gather(t, full(t)) {
		var labels []string
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		shown = append(shown, strings.TrimSpace(family.GetName()+" "+strings.ToLower(family.GetType().String())+" "+strings.Join(labels, ", ")))
	}
	require.Equal(t, listed, shown)

	list := submatches("(?s)`server.Result`: ([^.]+)\\.", read(t, docs))
	require.Len(t, list, 1)
	inDocs := strings.Fields(strings.ReplaceAll(list[0], ",", ""))
	require.Equal(t, inDocs, results(t))
}

// results returns the results of requests, as package server lists them.
func results(t *testing.T) []string {
	t.Helper()
	_, list, _ := strings.Cut(read(t, "../event.go"), "\nconst (\n")
	list, _, _ = strings.Cut(list, "\n\n")
	names := submatches(`Result\w+ +Result = "(\w+)"`, list)
	require.Contains(t, names, "executed")
	return names
}

// full returns a collector that shows every metric there is.
func full(t *testing.T) *metrics.Collector {
	t.Helper()
	m := metrics.New(metrics.Config{Store: new(memstore.Store)})
	m.Watch(new(server.Middleware))
	m.Observe(t.Context(), server.Event{Result: server.ResultExecuted, Method: "POST"})
	return m
}

func TestEveryAlertIsExplainedAndTested(t *testing.T) {
	t.Parallel()
	rules, text := read(t, "alerts.yml"), read(t, docs)
	alerts := submatches(`- alert: (\w+)`, rules)
	require.NotEmpty(t, alerts)
	require.Equal(t, alerts, submatches(`(?m)^### (Idem\w+)$`, text), "the docs explain them in the same order")
	var anchors []string
	for _, alert := range alerts {
		anchors = append(anchors, strings.ToLower(alert))
	}
	require.Equal(t, anchors, submatches(`docs/operations\.md#(\w+)`, rules))

	fires, quiet := make(map[string]bool), make(map[string]bool)
	for _, check := range strings.Split(read(t, "alerts_test.yml"), "alertname: ")[1:] {
		alert, rest, _ := strings.Cut(check, "\n")
		fires[alert] = fires[alert] || strings.Contains(rest, "exp_labels:")
		quiet[alert] = quiet[alert] || strings.Contains(rest, "exp_alerts: []")
	}
	for _, alert := range alerts {
		require.True(t, fires[alert], "%s is not shown to fire", alert)
		require.True(t, quiet[alert], "%s is not shown to be quiet", alert)
	}
}

// Everything that asks for metrics asks for some that exist, by labels and
// values that exist.
func TestQueriesNameWhatExists(t *testing.T) {
	t.Parallel()
	m := full(t)
	names, values := sampleNames(t, m), labelValues(t, m)
	for _, label := range []string{"job", "instance", "le"} { // Prometheus adds these
		values[label] = nil
	}
	queries := map[string]string{
		"alerts":      read(t, "alerts.yml"),
		"alert tests": read(t, "alerts_test.yml"),
		"dashboard":   strings.Join(expressions(t), "\n") + read(t, "dashboard.json"),
		"docs":        regexp.MustCompile(`idem_operations(_text|\b)`).ReplaceAllString(read(t, docs), ""), // a table
	}
	for where, text := range queries {
		for _, name := range submatches(`\b(idem_\w+)`, text) {
			require.Contains(t, names, name, where)
		}
		for _, labels := range submatches(`by \(([\w, ]+)\)|on \(([\w, ]+)\)`, text) {
			for label := range strings.SplitSeq(labels, ", ") {
				require.Contains(t, values, label, where)
			}
		}
		for _, match := range regexp.MustCompile(`\b(result|reason|status)[!=]?[=~]\\?"([\w|]+)\\?"`).FindAllStringSubmatch(text, -1) {
			for value := range strings.SplitSeq(match[2], "|") {
				require.Contains(t, values[match[1]], value, where)
			}
		}
	}
}

func TestEveryMetricIsOnTheDashboard(t *testing.T) {
	t.Parallel()
	all := strings.Join(expressions(t), "\n")
	for _, family := range gather(t, full(t)) {
		require.Contains(t, all, family.GetName())
	}
}

func TestPanelsOfTheDashboardDoNotOverlap(t *testing.T) {
	t.Parallel()
	ids, cells := make(map[int]string), make(map[[2]int]string)
	for _, p := range dashboard(t).Panels {
		require.Empty(t, ids[p.ID], p.Title)
		ids[p.ID] = p.Title
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, cells[[2]int{x, y}], p.Title)
				cells[[2]int{x, y}] = p.Title
			}
		}
	}
}

func TestAlertsFireWhenTheyShould(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "alerts.yml")
	promtool(t, "test", "rules", "alerts_test.yml")
}

func TestQueriesOfTheDashboardAreWellFormed(t *testing.T) {
	t.Parallel()
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	type group struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	}
	panels := group{Name: "panels"}
	for i, expr := range expressions(t) {
		expr = strings.ReplaceAll(expr, "$__rate_interval", "5m")
		panels.Rules = append(panels.Rules, rule{"panel:" + strings.Repeat("x", i+1), expr})
	}
	require.NotEmpty(t, panels.Rules)
	rules, err := json.Marshal(map[string][]group{"groups": {panels}}) // JSON is YAML
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(file, rules, 0o600))
	promtool(t, "check", "rules", file)
}

// promtool runs Prometheus' own tool, which must succeed.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	require.NoError(t, err, "promtool is missing; install it with: apt-get install --no-install-recommends prometheus")
	output, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, "%s", output)
}

// board is what the tests read of a dashboard.
type board struct {
	Panels []struct {
		ID      int    `json:"id"`
		Title   string `json:"title"`
		GridPos struct {
			X int `json:"x"`
			Y int `json:"y"`
			W int `json:"w"`
			H int `json:"h"`
		} `json:"gridPos"`
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
}

func dashboard(t *testing.T) (b board) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(read(t, "dashboard.json")), &b))
	require.NotEmpty(t, b.Panels)
	return b
}

// expressions returns the queries of the dashboard's panels.
func expressions(t *testing.T) (exprs []string) {
	t.Helper()
	for _, p := range dashboard(t).Panels {
		for _, target := range p.Targets {
			require.Contains(t, target.Expr, "idem_", p.Title)
			exprs = append(exprs, target.Expr)
		}
	}
	return exprs
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// submatches returns what the groups of re match in text.
func submatches(re, text string) (matches []string) {
	for _, match := range regexp.MustCompile(re).FindAllStringSubmatch(text, -1) {
		matches = append(matches, strings.Join(match[1:], ""))
	}
	return matches
}
