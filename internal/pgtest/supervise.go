package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/idemhttp/idem/internal/childproc"
)

// supervise runs a service of this process. Programs that refuse to run as root
// run as another user.
func supervise(script string, args ...string) (*childproc.Service, error) {
	credential, err := unprivileged()
	if err != nil {
		return nil, err
	}
	s, err := childproc.Start(childproc.Command{Script: script, Args: args, Credential: credential})
	if err != nil {
		return nil, fmt.Errorf("pgtest: %s did not start: %w", filepath.Base(args[0]), err)
	}
	return s, nil
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
