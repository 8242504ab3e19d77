package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/idemhttp/idem/internal/keyfield"
	"github.com/idemhttp/idem/internal/rfc9110"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/pgstore"
	"github.com/idemhttp/idem/server/redisstore"
)

// adminCommands are what "refserver admin" can be asked for.
var adminCommands = []struct {
	name, does string
	run        func(*adminCall, context.Context) error
}{
	{"inspect", "show the operation of a key", (*adminCall).inspect},
	{"stuck", "list the operations whose owner was lost", (*adminCall).stuck},
	{"release", "give a lost operation up, so that the next request executes it again", (*adminCall).release},
	{"complete", "give a lost or failed operation the answer that its client is to get", (*adminCall).complete},
	{"cleanup", "delete the records that have expired", (*adminCall).cleanup},
}

// adminStore is a store that operators can look into and settle things in. Some
// are a [server.Cleaner] too.
type adminStore interface {
	server.Inspector
	server.Releaser
	server.Finisher
}

// adminCall is one call of a command.
type adminCall struct {
	storeOptions

	command  string
	table    string
	prefix   string
	json     bool
	yes      bool
	log      string
	id       server.ID
	limit    int
	purpose  string
	response server.Response
	ttl      time.Duration

	records        adminStore
	stdin          io.Reader
	stdout, stderr io.Writer
}

// runAdmin runs a command and returns the exit code: 0, 1 if it could not be
// done, 2 if the flags are wrong.
func runAdmin(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &adminCall{stdin: stdin, stdout: stdout, stderr: stderr}
	run, err := c.parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "refserver admin: %v\nRun refserver admin -h for the commands, and a command with -h for its flags.\n", err)
		return 2
	}
	closeStore, err := c.open(ctx)
	if err == nil {
		err = run(c, ctx)
		closeStore()
	}
	if err != nil {
		fmt.Fprintf(stderr, "refserver admin %s: %v\n", c.command, err)
		return 1
	}
	return 0
}

// parse reads the command and its flags. Asked for help it prints it and returns
// flag.ErrHelp.
func (c *adminCall) parse(args []string) (run func(*adminCall, context.Context) error, err error) {
	if len(args) == 0 {
		return nil, errors.New("a command is missing")
	}
	if slices.Contains([]string{"-h", "-help", "--help", "help"}, args[0]) {
		fmt.Fprintln(c.stdout, "Look at operations and settle them: refserver admin COMMAND [FLAGS]")
		for _, command := range adminCommands {
			fmt.Fprintf(c.stdout, "  %-9s %s\n", command.name, command.does)
		}
		return nil, flag.ErrHelp
	}
	for _, command := range adminCommands {
		if command.name == args[0] {
			c.command, run = args[0], command.run
		}
	}
	if run == nil {
		return nil, fmt.Errorf("there is no command %q", args[0])
	}
	fs := flag.NewFlagSet(c.command, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c.register(fs)
	err = fs.Parse(args[1:])
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(c.stdout, "refserver admin %s [FLAGS]\n", c.command)
		fs.SetOutput(c.stdout)
		fs.PrintDefaults()
	}
	if err == nil && fs.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %s", shown(fs.Arg(0)))
	}
	if err != nil {
		return nil, err
	}
	return run, c.check()
}

// register defines the flags of the command.
func (c *adminCall) register(fs *flag.FlagSet) {
	c.storeOptions.register(fs, "postgres")
	fs.StringVar(&c.table, "table", pgstore.DefaultTable, "`name` of the table, with -store=postgres")
	fs.StringVar(&c.prefix, "prefix", redisstore.DefaultPrefix, "what the names of the keys begin with, with -store=redis")
	fs.BoolVar(&c.json, "json", false, "print JSON")
	if c.oneKey() {
		fs.StringVar(&c.id.Account, "account", "", "`account` of the key; required")
		fs.StringVar(&c.id.Key, "key", "", "idempotency `key`; required")
		fs.StringVar(&c.purpose, "purpose", "", "print the downstream key of this `purpose` too, by which the effect can be looked up elsewhere")
	}
	if c.changes() {
		fs.BoolVar(&c.yes, "yes", false, "do not ask for confirmation")
		fs.StringVar(&c.log, "log", "text", "how to log on stderr what was changed, and by whom: text or json")
	}
	switch c.command {
	case "stuck":
		fs.IntVar(&c.limit, "limit", 100, "list at most so many")
	case "complete":
		fs.IntVar(&c.response.StatusCode, "status", 0, "status code of the answer, 200 to 599; required")
		fs.Func("header", "`\"Name: value\"` of a field of the answer; may be repeated (default Content-Type: application/json if there is a body)", c.addField)
		fs.Func("body", "`text` of the answer's body", func(s string) error { c.response.Body = []byte(s); return nil })
		fs.DurationVar(&c.ttl, "ttl", 48*time.Hour, "how long the answer is replayed")
	}
}

func (c *adminCall) oneKey() bool {
	return slices.Contains([]string{"inspect", "release", "complete"}, c.command)
}

func (c *adminCall) changes() bool {
	return slices.Contains([]string{"release", "complete", "cleanup"}, c.command)
}

func (c *adminCall) addField(s string) error {
	name, value, ok := strings.Cut(s, ":")
	f := server.Field{Name: http.CanonicalHeaderKey(strings.TrimSpace(name)), Value: strings.TrimSpace(value)}
	if !ok || rfc9110.CheckHeader(http.Header{f.Name: {f.Value}}) != nil {
		return errors.New("a field is written as Name: value")
	}
	c.response.Fields = append(c.response.Fields, f)
	return nil
}

func (c *adminCall) check() error {
	switch {
	case c.oneKey() && (c.id.Account == "" || c.id.Key == ""):
		return fmt.Errorf("%s needs -account and -key", c.command)
	case c.oneKey() && keyfield.Check(c.id.Key) != nil:
		return fmt.Errorf("-key: %w", keyfield.Check(c.id.Key))
	case c.changes() && c.log != "text" && c.log != "json":
		return fmt.Errorf("-log is %q: it must be text or json", c.log)
	case c.command == "stuck" && c.limit < 1:
		return fmt.Errorf("-limit is %d: it must be at least 1", c.limit)
	case c.command == "complete" && (c.response.StatusCode < 200 || c.response.StatusCode > 599):
		return fmt.Errorf("-status is %d: it must be 200 to 599", c.response.StatusCode)
	case c.command == "complete" && c.ttl < time.Millisecond:
		return fmt.Errorf("-ttl is %v: it must be at least %v", c.ttl, time.Millisecond)
	case c.store == "memory":
		return errors.New("-store=memory is inside of its server; look at the page on that one's -admin-addr")
	case c.store == "redis" && c.command == "stuck":
		return errors.New("-store=redis cannot list its operations; clients of those that are stuck get OPERATION_INDETERMINATE")
	case c.store == "redis" && c.command == "cleanup":
		return errors.New("-store=redis deletes by itself what has expired")
	}
	return c.resolve()
}

// open opens the store, which must be there. A door in front of it has nothing
// that it has not.
func (c *adminCall) open(ctx context.Context) (closeStore func(), err error) {
	if c.store == "redis" {
		return c.openRedis()
	}
	pool, err := pgstore.Open(ctx, c.databaseURL)
	if err != nil {
		return nil, fmt.Errorf("-database-url: %w", err)
	}
	s := pgstore.New(pool)
	s.Table, s.Logger = c.table, slog.New(slog.DiscardHandler) // its settings are the service's concern
	c.records = s
	return pool.Close, nil
}

func (c *adminCall) openRedis() (closeStore func(), err error) {
	option, err := redisOption(c.redisURL)
	if err != nil {
		return nil, err
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, fmt.Errorf("-redis-url: %w", err)
	}
	s := redisstore.New(client)
	s.Prefix, c.records = c.prefix, s
	return client.Close, nil
}
