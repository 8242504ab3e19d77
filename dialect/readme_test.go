package dialect_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
)

var update = flag.Bool("update", false, "write the provider table of the README")

const (
	readme = "../README.md"
	begin  = "<!-- providers: written by go test ./dialect -run Readme -update -->\n"
	end    = "<!-- end of providers -->\n"
)

func TestReadmeHasTheProviders(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(readme)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	got, after, found := strings.Cut(rest, end)
	require.True(t, found)
	want := table()
	if *update {
		require.NoError(t, os.WriteFile(readme, []byte(before+begin+want+end+after), 0o644))
		return
	}
	require.Equal(t, want, got, "go test ./dialect -run Readme -update writes it anew")
}

// table renders the dialects for people.
func table() string {
	var b strings.Builder
	b.WriteString("| `dialect.` | key | form | remembered | in progress | known key |\n|---|---|---|---|---|---|\n")
	for _, p := range providers {
		d := p.dialect
		fmt.Fprintf(&b, "| [`%s`](%s) | %s | %s | %s | %s | %s |\n", p.name, d.Source, place(d), form(d), lifetime(d.KeyLifetime),
			matching(d, idem.VerdictInProgress), matching(d, idem.VerdictKeyReused, idem.VerdictExists))
	}
	return b.String()
}

func place(d *idem.Dialect) string {
	switch {
	case d.KeyMember != "":
		return "`" + d.KeyMember + "` in the body"
	case d.KeyParameter != "":
		return "`" + d.KeyParameter + "` in the query"
	case d.KeyField != "":
		return "`" + d.KeyField + "`"
	}
	return "`Idempotency-Key`"
}

func form(d *idem.Dialect) string {
	least, most := d.MinKeyLength, d.MaxKeyLength
	switch {
	case d.UUIDKeys:
		return "UUID"
	case least == 0 && most == 0:
		return "any"
	case most == 0:
		return fmt.Sprintf("%d or more", least)
	case least == 0:
		return fmt.Sprintf("up to %d", most)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

func lifetime(d time.Duration) string {
	switch {
	case d == 0:
		return "unknown"
	case d%(48*time.Hour) == 0 || d > 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}

// matching renders the answers that have one of the verdicts.
func matching(d *idem.Dialect, verdicts ...idem.Verdict) string {
	var cells []string
	for _, r := range d.Rules {
		if !slices.Contains(verdicts, r.Verdict) {
			continue
		}
		what := name(cmp.Or(r.Value, r.FieldValue))
		known := func(cell string) bool { return what != "" && strings.Contains(cell, what) }
		if !slices.ContainsFunc(cells, known) {
			cells = append(cells, condition(r))
		}
	}
	if len(cells) == 0 {
		return "-"
	}
	return strings.Join(cells, ", ")
}

func condition(r idem.Rule) string {
	text := fmt.Sprint(r.Status)
	if r.Status < 10 {
		text += "xx"
	}
	if r.Value != "" {
		text += " `" + name(r.Value) + "`"
	}
	if r.Field != "" {
		text += " `" + r.Field + ": " + r.FieldValue + "`"
	}
	return text
}

// name shortens what an error is called, so that variants of it look the same.
func name(value string) string {
	value = strings.TrimSuffix(value[strings.Index(value, "#")+1:], "Exception")
	if words := strings.Fields(value); len(words) > 2 {
		return strings.Join(words[:2], " ") + " ..."
	}
	return value
}

func TestDocumentSaysWhatIsKnownOfEachProvider(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/providers.md")
	require.NoError(t, err)
	facts := []string{"key", "limits", "lifetime", "replay", "in flight", "reuse", "hints"}
	for _, p := range providers {
		section := ""
		for candidate := range strings.SplitSeq(string(text), "\n## ") {
			if strings.Contains(candidate, "`dialect."+p.name+"`") {
				require.Empty(t, section, "%s has two sections", p.name)
				section = candidate
			}
		}
		require.Contains(t, section, "<"+p.dialect.Source+">", p.name)
		documented := map[string]string{}
		var found []string
		for line := range strings.SplitSeq(section, "\n") {
			cells := strings.Split(line, " | ")
			if len(cells) == 3 && strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| fact") {
				fact, verdict := strings.TrimPrefix(cells[0], "| "), strings.TrimSuffix(cells[2], " |")
				require.Contains(t, []string{"yes", "no", "reading"}, verdict, line)
				documented[fact], found = verdict, append(found, fact)
			}
		}
		require.Equal(t, facts, found, p.name)
		d := p.dialect
		limited := d.MinKeyLength > 0 || d.MaxKeyLength > 0 || d.UUIDKeys || d.KeyAlphabet != ""
		waits := matching(d, idem.VerdictInProgress) != "-"
		require.Equal(t, limited, documented["limits"] != "no", p.name)
		require.Equal(t, d.KeyLifetime > 0, documented["lifetime"] != "no", p.name)
		require.Equal(t, waits, documented["in flight"] != "no", p.name)
	}
}
