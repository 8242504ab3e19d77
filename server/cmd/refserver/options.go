package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idemhttp/idem/internal/rfc9110"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/refserver"
)

// options is what the flags say.
type options struct {
	storeOptions
	sidecarOptions

	addr           string
	adminAddr      string
	wait           time.Duration
	lease          time.Duration
	ttl            time.Duration
	storeTimeout   time.Duration
	handlerTimeout time.Duration
	refuse         bool
	unreadyFor     time.Duration
	grace          time.Duration
	log            string
	chances        refserver.Chances
}

// parse reads the flags. Asked for help it prints them to usage and returns
// flag.ErrHelp.
func parse(args []string, usage io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("refserver", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.addr, "addr", "127.0.0.1:8080", "`host:port` to listen on; port 0 takes a free one")
	fs.StringVar(&o.adminAddr, "admin-addr", "", "`host:port` on which operators, and nobody else, get /metrics, /debug/idempotency,\n"+
		"/debug/pprof/, /healthz and /readyz; none without it")
	o.storeOptions.register(fs, "memory")
	fs.Lookup("database-url").Usage += ".\nEvery order that is being made holds one of pool_max_conns connections"
	o.sidecarOptions.register(fs)
	fs.DurationVar(&o.wait, "wait", time.Second, "how long a duplicate waits for the first attempt before it is answered 202")
	fs.DurationVar(&o.lease, "lease", 30*time.Second, "how long an attempt may go without a sign of life")
	fs.DurationVar(&o.ttl, "ttl", 48*time.Hour, "how long an answer is replayed")
	fs.DurationVar(&o.storeTimeout, "store-timeout", time.Second, "how long the store may take for a call, the wait for a connection included")
	fs.DurationVar(&o.handlerTimeout, "handler-timeout", 2*time.Minute, "how long a handler may run")
	fs.BoolVar(&o.refuse, "refuse-takeover", false, "answer 409 instead of running an operation again whose attempt was lost")
	fs.DurationVar(&o.unreadyFor, "unready-for", 0, "when stopping, how long to go on serving with /readyz at 503")
	fs.DurationVar(&o.grace, "grace", 30*time.Second, "when stopping, how long running requests may take")
	fs.StringVar(&o.log, "log", "text", "access log on stderr: text, json or off")
	fs.Uint64Var(&o.chances.Seed, "fault-seed", 1, "seed of the faults at random")
	fs.Float64Var(&o.chances.Delay, "fault-delay", 0, "`probability` that a handler is delayed")
	fs.DurationVar(&o.chances.DelayFor, "fault-delay-for", 100*time.Millisecond, "how long it is delayed")
	fs.Float64Var(&o.chances.Fail, "fault-fail", 0, "`probability` that a handler answers 503 before its effect")
	fs.Float64Var(&o.chances.FailAfter, "fault-fail-after", 0, "`probability` that a handler answers 503 after its effect")
	fs.Float64Var(&o.chances.Panic, "fault-panic", 0, "`probability` that a handler panics before its effect")
	fs.Float64Var(&o.chances.Drop, "fault-drop", 0, "`probability` that the connection is closed in place of the answer")
	fs.Float64Var(&o.chances.Truncate, "fault-truncate", 0, "`probability` that the answer's body is cut")

	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(usage, "The reference server: orders and payments behind the idempotency middleware or,\n"+
			"with -upstream, any service behind it. See also: refserver admin -h")
		fs.SetOutput(usage)
		fs.PrintDefaults()
	}
	if err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %s: there are only flags, and the command admin", shown(fs.Arg(0)))
	}
	return o, cmp.Or(o.check(), o.resolve(), o.sidecarOptions.check(o.chances))
}

// shown returns an argument as it may be printed: it could be a URL with a
// password, whose flag was forgotten.
func shown(arg string) string {
	if scheme, _, isURL := strings.Cut(arg, "://"); isURL {
		arg = scheme + "://..."
	}
	return strconv.Quote(arg)
}

func (o options) check() error {
	for _, d := range []struct {
		flag         string
		value, least time.Duration
	}{
		{"wait", o.wait, 0},
		{"lease", o.lease, time.Millisecond},
		{"ttl", o.ttl, time.Millisecond},
		{"store-timeout", o.storeTimeout, time.Millisecond},
		{"handler-timeout", o.handlerTimeout, time.Millisecond},
		{"unready-for", o.unreadyFor, 0},
		{"grace", o.grace, 0},
		{"fault-delay-for", o.chances.DelayFor, 0},
	} {
		if d.value < d.least {
			return fmt.Errorf("-%s is %v: it must be at least %v", d.flag, d.value, d.least)
		}
	}
	for _, p := range []struct {
		flag  string
		value float64
	}{
		{"fault-delay", o.chances.Delay},
		{"fault-fail", o.chances.Fail},
		{"fault-fail-after", o.chances.FailAfter},
		{"fault-panic", o.chances.Panic},
		{"fault-drop", o.chances.Drop},
		{"fault-truncate", o.chances.Truncate},
	} {
		if !(p.value >= 0 && p.value <= 1) { // not a number is wrong too
			return fmt.Errorf("-%s is %v: a probability is from 0 to 1", p.flag, p.value)
		}
	}
	if o.log != "text" && o.log != "json" && o.log != "off" {
		return fmt.Errorf("-log is %q: it must be text, json or off", o.log)
	}
	return nil
}

func (o options) logger(w io.Writer) *slog.Logger {
	switch o.log {
	case "json":
		return slog.New(slog.NewJSONHandler(w, nil))
	case "off":
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

func (o options) middleware(s server.Store) *server.Middleware {
	m := &server.Middleware{
		Store: s, Wait: o.wait, Lease: o.lease, TTL: o.ttl,
		HandlerTimeout: o.handlerTimeout, StoreTimeout: o.storeTimeout,
	}
	if o.wait == 0 {
		m.Wait = server.NoWait
	}
	if o.refuse {
		m.Takeover = server.Refuse
	}
	return m
}

// storeOptions says where the store is.
type storeOptions struct{ store, databaseURL, redisURL string }

func (o *storeOptions) register(fs *flag.FlagSet, store string) {
	fs.StringVar(&o.store, "store", store, "where keys and answers are kept: memory, postgres or redis; with postgres the orders and payments too")
	fs.StringVar(&o.databaseURL, "database-url", "", "`URL` of the database of -store=postgres; without it the environment variable DATABASE_URL")
	fs.StringVar(&o.redisURL, "redis-url", "", "`URL` of Redis; of -store=redis, for which the environment variable REDIS_URL will do, or with\n"+
		"-store=postgres of a quick door in front of it")
}

// resolve looks into the environment, which -h must not show, and checks.
func (o *storeOptions) resolve() error {
	unused := o.databaseURL != "" && o.store != "postgres"
	o.databaseURL = cmp.Or(o.databaseURL, os.Getenv("DATABASE_URL"))
	if o.store == "redis" {
		o.redisURL = cmp.Or(o.redisURL, os.Getenv("REDIS_URL"))
	}
	switch {
	case !slices.Contains([]string{"memory", "postgres", "redis"}, o.store):
		return fmt.Errorf("-store is %q: it must be memory, postgres or redis", o.store)
	case o.store == "postgres" && o.databaseURL == "":
		return errors.New("-store=postgres needs -database-url, or DATABASE_URL in the environment, such as postgres://user@host/database")
	case o.store == "redis" && o.redisURL == "":
		return errors.New("-store=redis needs -redis-url, or REDIS_URL in the environment, such as redis://127.0.0.1:6379")
	case unused:
		return errors.New("-database-url needs -store=postgres")
	case o.store == "memory" && o.redisURL != "":
		return errors.New("-redis-url needs -store=redis or -store=postgres")
	}
	return nil
}

// sidecarOptions says in front of which service to stand, and how.
type sidecarOptions struct {
	upstreamURL   string
	upstream      *url.URL // what it says; nil: the program serves its own API
	accountHeader string
	accountClaim  string
	requireKey    bool
	methods       []string
	maxBody       int64
}

func (o *sidecarOptions) register(fs *flag.FlagSet) {
	fs.StringVar(&o.upstreamURL, "upstream", "", "`URL` of a service to stand in front of, such as http://127.0.0.1:9000, in place of the API")
	fs.StringVar(&o.accountHeader, "account-header", "", "with -upstream: `field` that names the account. Whoever stands in front sets it,\n"+
		"and removes it from what clients send")
	fs.StringVar(&o.accountClaim, "account-claim", "", "with -upstream: `claim` of the bearer token that names the account.\n"+
		"THE TOKEN IS NOT VERIFIED HERE: whoever stands in front must have done so")
	fs.BoolVar(&o.requireKey, "require-key", false, "with -upstream: refuse requests without a key, for which -methods asks one")
	fs.Func("methods", "with -upstream: `methods` whose requests are guarded if they have a key (default POST,PATCH)", func(s string) error {
		for method := range strings.SplitSeq(s, ",") {
			o.methods = append(o.methods, strings.TrimSpace(method))
		}
		return nil
	})
	fs.Int64Var(&o.maxBody, "max-body", 1<<20, "with -upstream: the largest body, in `bytes`, of a request with a key")
}

func (o *sidecarOptions) check(chances refserver.Chances) error {
	faults := chances != (refserver.Chances{Seed: chances.Seed, DelayFor: chances.DelayFor})
	if o.upstreamURL != "" {
		var err error
		if o.upstream, err = url.Parse(o.upstreamURL); err != nil { // which repeats the URL
			return errors.New("-upstream must be a URL such as http://127.0.0.1:9000")
		}
	}
	switch {
	case o.upstream == nil && (o.accountHeader != "" || o.accountClaim != "" || o.requireKey || o.methods != nil):
		return errors.New("-account-header, -account-claim, -require-key and -methods need -upstream")
	case o.upstream == nil:
		return nil
	case (o.accountHeader == "") == (o.accountClaim == ""):
		return errors.New("-upstream needs either -account-header or -account-claim: keys belong to accounts")
	case o.accountHeader != "" && !rfc9110.IsToken(o.accountHeader):
		return fmt.Errorf("-account-header is %q: it must be the name of a field, such as X-Account-Id", o.accountHeader)
	case o.maxBody < 1:
		return fmt.Errorf("-max-body is %d: it must be at least 1", o.maxBody)
	case faults:
		return errors.New("the faults are the API's: -fault flags do not go with -upstream")
	}
	return nil
}
