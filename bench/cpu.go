package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// cpu is processor time, which says more than the clock does on a machine that
// has other things to do.
type cpu struct{ client, server time.Duration }

func (c cpu) since(before cpu) cpu { return cpu{c.client - before.client, c.server - before.server} }

// cpuMeter reads the processor time of this process and of a server's.
type cpuMeter struct{ postmaster string }

// newCPUMeter finds the parent of the pool's sessions.
func newCPUMeter(ctx context.Context, pool *pgxpool.Pool) (cpuMeter, error) {
	var session int
	if err := pool.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&session); err != nil {
		return cpuMeter{}, err
	}
	fields, err := statOf(filepath.Join("/proc", strconv.Itoa(session), "stat"))
	if err != nil {
		return cpuMeter{}, err
	}
	return cpuMeter{postmaster: fields[parent]}, nil
}

// Fields of a process's stat, after its name. See proc(5).
const (
	parent     = 1
	userTime   = 11
	systemTime = 12
	ticks      = 10 * time.Millisecond
)

func statOf(path string) ([]string, error) {
	content, err := os.ReadFile(path) //nolint:gosec // below /proc
	if err != nil {
		return nil, err
	}
	_, rest, found := strings.Cut(string(content), ") ")
	fields := strings.Fields(rest)
	if !found || len(fields) <= systemTime {
		return nil, errors.New("unknown format: " + path)
	}
	return fields, nil
}

// read returns what has been used so far. The server's part counts the
// sessions that are there now.
func (m cpuMeter) read() cpu {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // cannot fail with these arguments
	c := cpu{client: time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}
	processes, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range processes {
		fields, err := statOf(path)
		if err != nil || fields[parent] != m.postmaster {
			continue // it has ended meanwhile, or is none of ours
		}
		user, _ := strconv.Atoi(fields[userTime])
		system, _ := strconv.Atoi(fields[systemTime])
		c.server += time.Duration(user+system) * ticks
	}
	return c
}
