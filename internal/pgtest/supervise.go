package pgtest

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// service is a daemon in a temporary folder that outlives this process by
// moments only.
type service struct {
	folder string
	stdin  io.Closer
	exited chan struct{}
}

// frame is run by sh around every service. It makes the folder, has start
// bring the service up, and waits for the end of its standard input. That
// comes when this process closes the pipe or ends in whatever way, because
// nobody else holds the other side. Then it stops the service and removes the
// folder.
const frame = `
trap '' HUP INT TERM
dir=$(mktemp -d "${TMPDIR:-/tmp}/idem-pg.XXXXXX") || exit 1
cd "$dir"
if start >"$dir/log" 2>&1; then echo "$dir"; else echo "failed: $(tail -n 20 "$dir/log" | tr '\n' ' ')"; fi
exec 1>&-
cat >/dev/null
stop >>"$dir/log" 2>&1
cd / && rm -rf "$dir"
`

// supervise runs functions, which are the shell functions start and stop,
// under frame. Programs that refuse to run as root run as another user.
func supervise(functions string, args ...string) (*service, error) {
	credential, err := unprivileged()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", functions + frame, "sh"}, args...)...) //nolint:gosec,noctx // our own script, which ends with this process
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir(), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: credential}
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
	said, err := bufio.NewReader(stdout).ReadString('\n')
	s := &service{folder: strings.TrimSpace(said), stdin: stdin, exited: make(chan struct{})}
	go func() {
		defer close(s.exited)
		_ = cmd.Wait()
	}()
	if err != nil || !filepath.IsAbs(s.folder) {
		s.stop()
		return nil, fmt.Errorf("pgtest: %s did not start: %s", filepath.Base(args[0]), cmp.Or(s.folder, "no temporary folder"))
	}
	return s, nil
}

// stop ends the service and returns when nothing of it is left.
func (s *service) stop() {
	s.stdin.Close()
	<-s.exited
}

// unprivileged returns the user to run servers as, nil for the present one.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // nil is how SysProcAttr spells the present user
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(uidErr, gidErr)
	}
	return nil, errors.New("pgtest: PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}

// find returns the path of an installed program: the newest in the usual
// folders of Debian, Red Hat and Homebrew, or what is on the PATH.
func find(program, install string) (string, error) {
	var found []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin/", "/usr/pgsql-*/bin/", "/usr/sbin/",
		"/opt/homebrew/opt/postgresql*/bin/", "/usr/local/opt/postgresql*/bin/", "/opt/homebrew/bin/",
	} {
		matches, _ := filepath.Glob(pattern + program)
		found = append(found, matches...)
	}
	if len(found) > 0 {
		return slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) }), nil
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("pgtest: %s is not installed; install it with: %s", program, install)
	}
	return filepath.EvalSymlinks(path)
}

// version returns the first number in path, which is the major version in all
// folders that have one.
func version(path string) int {
	isDigit := func(r rune) bool { return r >= '0' && r <= '9' }
	fields := strings.FieldsFunc(path, func(r rune) bool { return !isDigit(r) })
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n
}
