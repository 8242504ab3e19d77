// Package childproc runs the daemons that tests need, each in a temporary
// folder, and leaves nothing behind: however the test process ends, by return,
// panic, os.Exit or kill -9, they are stopped and their folders removed.
package childproc

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Command says what a Service runs.
type Command struct {
	// Script defines shell functions. start brings the daemon up in the
	// background, with its input and output elsewhere; stop ends it; others are
	// for Call. They run in the service's folder, $dir, one at a time, and what
	// they print is what their errors say.
	Script string
	// Args are the script's $1, $2 and so on, as it is read.
	Args []string
	// Credential is the user to run as, nil for the present one.
	Credential *syscall.Credential
}

// Service is a daemon in a temporary folder. It is safe for concurrent use.
type Service struct {
	// Folder is the service's own, readable to its user alone.
	Folder string

	mu     sync.Mutex
	stdin  io.WriteCloser
	stdout *bufio.Reader
	exited chan struct{}
}

// frame runs around every service. It makes the folder, has start bring the
// service up, and calls the functions that it reads from its standard input,
// whose end comes when this process closes the pipe or ends in whatever way,
// because nobody else holds the other side. Then it stops the service and
// removes the folder.
const frame = `
trap '' HUP INT TERM
dir=$(mktemp -d "${TMPDIR:-/tmp}/idem.XXXXXX") || exit 1
cd "$dir"
call() {
	if "$1" >"$dir/call" 2>&1 </dev/null; then echo "$dir"; else echo "failed: $(tail -n 20 "$dir/call" | tr '\n' ' ')"; fi
}
call start
while read -r function; do call "$function"; done
exec 1>&-
stop >"$dir/call" 2>&1
cd / && rm -rf "$dir"
`

// Start starts the service and returns when its function start has.
func Start(c Command) (*Service, error) {
	cmd := exec.Command("/bin/sh", append([]string{"-c", c.Script + frame, "sh"}, c.Args...)...) //nolint:gosec,noctx // our own script, which ends with this process
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir(), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: c.Credential}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &Service{stdin: stdin, stdout: bufio.NewReader(stdout), exited: make(chan struct{})}
	s.Folder, err = s.answer()
	go func() {
		defer close(s.exited)
		_ = cmd.Wait()
	}()
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Call runs a function of the script, and returns an error if that fails.
func (s *Service) Call(function string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := io.WriteString(s.stdin, function+"\n"); err != nil {
		return fmt.Errorf("childproc: %s: %w", function, err)
	}
	_, err := s.answer()
	if err != nil {
		return fmt.Errorf("%w (%s)", err, function)
	}
	return nil
}

// answer reads what the frame says when a function has returned.
func (s *Service) answer() (folder string, err error) {
	line, err := s.stdout.ReadString('\n')
	line = strings.TrimSpace(line)
	if err != nil || !filepath.IsAbs(line) {
		return "", errors.New("childproc: " + cmp.Or(line, "the service has ended"))
	}
	return line, nil
}

// Stop ends the service, and returns when nothing of it is left.
func (s *Service) Stop() {
	s.stdin.Close()
	<-s.exited
}
