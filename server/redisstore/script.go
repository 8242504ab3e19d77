package redisstore

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	//go:embed lua/record.lua
	recordLua string
	//go:embed lua/claim.lua
	claimLua string
	//go:embed lua/extend.lua
	extendLua string
	//go:embed lua/accept.lua
	acceptLua string
	//go:embed lua/complete.lua
	completeLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/find.lua
	findLua string
	//go:embed lua/enter.lua
	enterLua string
	//go:embed lua/replace.lua
	replaceLua string
)

// The scripts on a record may be repeated without harm, and are when the
// connection is lost. Those on a door fail instead, which costs less time.
var (
	claimScript    = rueidis.NewLuaScriptRetryable(recordLua + claimLua)
	extendScript   = rueidis.NewLuaScriptRetryable(recordLua + extendLua)
	acceptScript   = rueidis.NewLuaScriptRetryable(recordLua + acceptLua)
	completeScript = rueidis.NewLuaScriptRetryable(recordLua + completeLua)
	releaseScript  = rueidis.NewLuaScriptRetryable(recordLua + releaseLua)
	findScript     = rueidis.NewLuaScriptRetryable(recordLua + findLua)
	enterScript    = rueidis.NewLuaScript(enterLua)
	replaceScript  = rueidis.NewLuaScript(replaceLua)
)

// run runs a script on one key. It returns when ctx is done, which the client
// does not promise.
func run(ctx context.Context, client rueidis.Client, script *rueidis.Lua, key string, args ...string) ([]rueidis.RedisMessage, error) {
	done := make(chan rueidis.RedisResult, 1)
	go func() { done <- script.Exec(ctx, client, []string{key}, args) }()
	select {
	case result := <-done:
		reply, err := result.ToArray()
		if err != nil {
			return nil, fmt.Errorf("redisstore: %w", err)
		}
		return reply, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("redisstore: no answer from Redis: %w", context.Cause(ctx))
	}
}

// milliseconds prints a duration for Redis. It rounds up, so that nothing ends
// too early.
func milliseconds(d time.Duration) string {
	n := d.Milliseconds()
	if d%time.Millisecond > 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}
