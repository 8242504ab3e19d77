package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Check warns in the log of settings by which the server can forget records,
// whose operations are then executed again: any maxmemory-policy but
// noeviction, under which Redis deletes live records when its memory is full,
// and no append-only file, without which it loses them when it restarts. It
// returns an error if a node cannot be asked.
//
// The first claim checks too, in the background.
func (s *Store) Check(ctx context.Context) error {
	if s.client == nil {
		return errNoClient
	}
	infos, err := s.client.Info(ctx) // CONFIG is closed in many a managed service
	for address, info := range infos {
		s.warn(ctx, address, info)
	}
	if err != nil {
		return fmt.Errorf("redisstore: %w", err)
	}
	return nil
}

// warn warns of the settings that the INFO of a node tells.
func (s *Store) warn(ctx context.Context, address, info string) {
	policy := cmp.Or(setting(info, "maxmemory_policy"), "unknown")
	if policy != "noeviction" {
		s.logger().ErrorContext(ctx, "Redis deletes idempotency records when its memory is full, and their operations are then executed again; set its maxmemory-policy to noeviction",
			"node", address, "maxmemory_policy", policy)
	}
	if setting(info, "aof_enabled") != "1" {
		s.logger().WarnContext(ctx, "Redis loses idempotency records when it restarts, and their operations are then executed again; set its appendonly to yes",
			"node", address)
	}
}

// setting returns the value of a line of INFO.
func setting(info, name string) string {
	for line := range strings.SplitSeq(info, "\r\n") {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return value
		}
	}
	return ""
}

// checkLater is the check of the first claim.
func (s *Store) checkLater(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := s.Check(ctx); err != nil {
		s.logger().WarnContext(ctx, "the settings of Redis could not be checked", "error", err)
	}
}

func (s *Store) logger() *slog.Logger { return cmp.Or(s.Logger, slog.Default()) }
