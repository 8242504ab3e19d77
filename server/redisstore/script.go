package redisstore

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis knows scripts by it
	_ "embed"     // the scripts
	"encoding/hex"
	"errors"
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
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/releaselost.lua
	releaseLostLua string
	//go:embed lua/enter.lua
	enterLua string
	//go:embed lua/replace.lua
	replaceLua string
)

// No script does harm when it is repeated. Those on a record are when the
// connection is lost, unless whoever asks has to know whether it was he who did
// it; those on a door fail instead, which costs less time.
var (
	claimScript       = newScript(recordLua+claimLua, rueidis.NewLuaScriptRetryable)
	extendScript      = newScript(recordLua+extendLua, rueidis.NewLuaScriptRetryable)
	acceptScript      = newScript(recordLua+acceptLua, rueidis.NewLuaScriptRetryable)
	completeScript    = newScript(recordLua+completeLua, rueidis.NewLuaScriptRetryable)
	releaseScript     = newScript(recordLua+releaseLua, rueidis.NewLuaScriptRetryable)
	findScript        = newScript(recordLua+findLua, rueidis.NewLuaScriptRetryable)
	inspectScript     = newScript(recordLua+inspectLua, rueidis.NewLuaScriptRetryable)
	releaseLostScript = newScript(recordLua+releaseLostLua, rueidis.NewLuaScript)
	enterScript       = newScript(enterLua, rueidis.NewLuaScript)
	replaceScript     = newScript(replaceLua, rueidis.NewLuaScript)
)

// Script is a Lua script of this package, for a [Client] to run.
type Script struct {
	// Source is what EVAL takes.
	Source string
	// SHA1 is what EVALSHA takes: the sum of Source in hexadecimal digits.
	SHA1 string

	lua *rueidis.Lua
}

func newScript(source string, newLua func(string, ...rueidis.LuaOption) *rueidis.Lua) Script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // Redis knows scripts by it
	return Script{Source: source, SHA1: hex.EncodeToString(sum[:]), lua: newLua(source)}
}

var errNoClient = errors.New("redisstore: there is no client: the one given to New or Lock is nil, or neither made the Store")

// run runs a script on one key. It returns when ctx is done, which the client
// does not promise.
func run(ctx context.Context, client Client, script Script, key string, args ...string) ([]any, error) {
	if client == nil {
		return nil, errNoClient
	}
	type result struct {
		reply []any
		err   error
	}
	done := make(chan result, 1)
	go func() {
		reply, err := client.Run(ctx, script, key, args)
		done <- result{reply, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, fmt.Errorf("redisstore: %w", r.err)
		}
		return r.reply, nil
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
