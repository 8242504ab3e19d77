package main

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tablesOf runs the command and returns the lines of its tables, cell by cell,
// by the title above them.
func tablesOf(t *testing.T, args ...string) map[string][][]string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), args, &out), out.String())
	tables, title := map[string][][]string{}, ""
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSpace(line)
		if head, ok := strings.CutPrefix(line, "### "); ok {
			title, _, _ = strings.Cut(head, ":")
		}
		if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "| ---") {
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			tables[title] = append(tables[title], cells)
		}
	}
	return tables
}

func number(t *testing.T, cell string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat(regexp.MustCompile(`^-?[0-9.]+`).FindString(cell), 64)
	require.NoError(t, err, cell)
	return x
}

// None of these is parallel: they measure.

func TestEveryKindOfWorkIsComparedInEveryRegime(t *testing.T) { //nolint:paralleltest // see above
	tables := tablesOf(t, "-regimes", "commit,roundtrip,cpu,unprepared", "-workers", "1,8", "-rounds", "1", "-round", "30ms", "-records", "200", "-wal=false")
	require.Len(t, tables, len(regimes))
	for _, r := range regimes {
		title, _, _ := strings.Cut(r.title, ":")
		lines := tables[title][1:] // the first is the head
		require.Len(t, lines, 2*7, title)
		missed := map[string]int{}
		for _, line := range lines {
			require.Len(t, line, 9)
			require.Positive(t, number(t, line[2]), line)
			require.LessOrEqual(t, number(t, line[3]), number(t, line[4]), line)
			number(t, line[6])
			if line[8] != "" {
				missed[line[0]]++
			}
		}
		require.Zero(t, missed["1"], "no target is set for one worker")
		require.Equal(t, len(r.targets) > 0, missed["8"] > 0, title)
	}
}

// What an operation writes does not depend on how fast the machine is.
func TestWALOfAnOperation(t *testing.T) { //nolint:paralleltest // see above
	for title, lines := range tablesOf(t, "-regimes", "none", "-records", "10000") {
		require.Regexp(t, `^WAL of an operation whose answer takes 5\d\d B$`, title)
		require.Len(t, lines, 4)
		for _, line := range lines[2:] {
			require.InDelta(t, 370, number(t, line[2]), 60, line)
		}
	}
}

func TestGrowth(t *testing.T) { //nolint:paralleltest // see above
	tables := tablesOf(t, "-regimes", "none", "-wal=false", "-rounds", "1", "-round", "30ms",
		"-growth", "20000", "-settle", "500", "-cleanup", "2000")
	require.Len(t, tables, 3)
	require.Len(t, tables["Growth"], 1+2*3, "two sizes, three kinds")
	require.Len(t, tables["Settling"], 1+5)
	for i, step := range tables["Settling"][1:] {
		require.Equal(t, strconv.Itoa(100*(i+1)), step[0])
		require.Positive(t, number(t, step[5]), step)
	}
	for title, lines := range tables {
		if strings.HasPrefix(title, "Cleanup") {
			require.Equal(t, "0", lines[len(lines)-1][5], "left")
		}
	}
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) { //nolint:paralleltest // see above
	for _, args := range [][]string{
		{"-regimes", "moon"}, {"-workers", "0"}, {"-workers", "x"}, {"-rounds", "0"}, {"-round", "0s"}, {"-records", "1"}, {"-work", "("},
	} {
		var out bytes.Buffer
		require.Error(t, run(t.Context(), args, &out), "%v", args)
		require.NotContains(t, out.String(), "###")
	}
}
