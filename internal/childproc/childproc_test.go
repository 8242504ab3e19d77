package childproc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/childproc"
)

// sleeper is a daemon that has to be killed to end.
const sleeper = `
greeting=$1
start() { sleep 1000 >/dev/null & pid=$!; }
greet() { echo "$greeting" >greeting; }
refuse() { echo "there is a reason"; return 1; }
stop() { kill -9 $pid; wait $pid; }
`

func TestFunctionsRunInTheFolder(t *testing.T) {
	t.Parallel()
	s, err := childproc.Start(childproc.Command{Script: sleeper, Args: []string{"hello"}})
	require.NoError(t, err)
	defer s.Stop()
	require.NoError(t, s.Call("greet"))
	greeting, err := os.ReadFile(filepath.Join(s.Folder, "greeting"))
	require.NoError(t, err)
	require.Equal(t, "hello\n", string(greeting))
}

func TestErrorsSayWhatTheFunctionPrinted(t *testing.T) {
	t.Parallel()
	s, err := childproc.Start(childproc.Command{Script: sleeper})
	require.NoError(t, err)
	require.EqualError(t, s.Call("refuse"), "childproc: failed: there is a reason (refuse)")
	require.NoError(t, s.Call("greet"), "a failure does not end the service")
	s.Stop()
	require.Error(t, s.Call("greet"))
	require.NoDirExists(t, s.Folder)

	_, err = childproc.Start(childproc.Command{Script: "start() { echo no; return 1; }; stop() { :; }"})
	require.EqualError(t, err, "childproc: failed: no")
}

// TestNothingIsLeftHoweverTheProcessDies runs itself in processes that end in
// different ways.
func TestNothingIsLeftHoweverTheProcessDies(t *testing.T) {
	t.Parallel()
	if end := os.Getenv("CHILDPROC_END"); end != "" {
		die(t, end)
		return
	}
	for _, end := range []string{"panic", "exit", "kill"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNothingIsLeftHoweverTheProcessDies$")
			cmd.Env = append(os.Environ(), "CHILDPROC_END="+end, "TMPDIR="+folder)
			said, err := cmd.CombinedOutput()
			require.Error(t, err)
			_, pid, found := strings.Cut(string(said), "the daemon is process ")
			require.True(t, found, string(said))
			pid, _, _ = strings.Cut(pid, "\n")
			require.Eventually(t, func() bool {
				entries, err := os.ReadDir(folder)
				return err == nil && len(entries) == 0
			}, 20*time.Second, 20*time.Millisecond)
			require.Error(t, exec.CommandContext(t.Context(), "kill", "-0", pid).Run(), "the daemon lives")
		})
	}
}

func die(t *testing.T, end string) {
	t.Helper()
	s, err := childproc.Start(childproc.Command{Script: sleeper + `note() { echo "$pid" >pid; }`})
	require.NoError(t, err)
	require.NoError(t, s.Call("note"))
	pid, err := os.ReadFile(filepath.Join(s.Folder, "pid"))
	require.NoError(t, err)
	_, _ = os.Stdout.WriteString("the daemon is process " + string(pid))
	switch end {
	case "panic":
		panic("as told")
	case "exit":
		os.Exit(3)
	case "kill":
		self, err := os.FindProcess(os.Getpid())
		require.NoError(t, err)
		require.NoError(t, self.Kill())
		select {}
	}
}
