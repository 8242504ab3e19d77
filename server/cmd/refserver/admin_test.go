package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem/internal/pgtest"
	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// desk is where an operator works on a store, which is in memory.
type desk struct {
	*memstore.Store
	t *testing.T
}

// atDesk runs a test in virtual time, which begins at 2000-01-01T00:00:00Z.
func atDesk(t *testing.T, test func(d desk)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(desk{new(memstore.Store), t}) })
}

const (
	deskLease = 30 * time.Second
	deskTTL   = time.Hour
)

// claims claims the key k-1 of the account acme, or another key.
func (d desk) claims(key ...string) server.Claim {
	d.t.Helper()
	id := server.ID{Account: "acme", Key: append(key, "k-1")[0]}
	claim, err := d.Claim(d.t.Context(), server.ClaimRequest{ID: id, Fingerprint: server.Fingerprint{Version: 1}, Lease: deskLease, TTL: deskTTL})
	require.NoError(d.t, err)
	return claim
}

// loses is an attempt that is lost 5 s later.
func (d desk) loses(key ...string) server.Operation {
	d.t.Helper()
	op := d.claims(key...).Operation
	time.Sleep(deskLease + 5*time.Second)
	return op
}

func (d desk) completes(claim server.Claim, r server.Response) {
	d.t.Helper()
	_, err := claim.Lease.Complete(d.t.Context(), r, deskTTL)
	require.NoError(d.t, err)
}

// said is what a command has printed, and its error.
type said struct {
	stdout, stderr string
	err            error
}

// does runs a command, given as words between blanks, and answers questions
// with stdin.
func (d desk) does(command string, stdin ...string) said {
	d.t.Helper()
	return d.asks(d.t.Context(), command, strings.NewReader(strings.Join(stdin, "")))
}

func (d desk) asks(ctx context.Context, command string, stdin io.Reader) said {
	d.t.Helper()
	var stdout, stderr bytes.Buffer
	c := &adminCall{stdin: stdin, stdout: &stdout, stderr: &stderr}
	run, err := c.parse(append(strings.Fields(command), "-database-url=postgres://unused"))
	require.NoError(d.t, err)
	c.records = d
	err = run(c, ctx)
	return said{stdout.String(), stderr.String(), err}
}

const ofTheKey = " -account acme -key k-1"

func TestOperatorsInspectAnOperation(t *testing.T) {
	t.Parallel()
	operation := func(op server.Operation) string {
		return fmt.Sprintf("account          acme\nidempotency key  k-1\noperation        %v\n", op.ID)
	}
	for name, test := range map[string]func(d desk) (want string){
		"running": func(d desk) string {
			return operation(d.claims().Operation) +
				"status           processing\nattempt          1\nanswered         not yet\n" +
				"began            2000-01-01T00:00:00Z\nlease until      2000-01-01T00:00:30Z\nexpires          2000-01-01T01:00:30Z\n"
		},
		"accepted": func(d desk) string {
			claim := d.claims()
			accepting, ok := claim.Lease.(server.Acceptor)
			require.True(d.t, ok)
			_, err := accepting.Accept(d.t.Context(), server.Response{StatusCode: 202}, time.Minute)
			require.NoError(d.t, err)
			return operation(claim.Operation) +
				"status           processing\nattempt          1\nanswered         202, for the time being\n" +
				"began            2000-01-01T00:00:00Z\nlease until      2000-01-01T00:01:00Z\nexpires          2000-01-01T01:01:00Z\n"
		},
		"lost": func(d desk) string {
			return operation(d.loses()) +
				"status           processing, its owner was lost 5s ago\nattempt          1\nanswered         not yet\n" +
				"began            2000-01-01T00:00:00Z\nlease until      2000-01-01T00:00:30Z\nexpires          2000-01-01T01:00:30Z\n"
		},
		"completed by the second attempt": func(d desk) string {
			d.loses()
			claim := d.claims()
			d.completes(claim, server.Response{StatusCode: 201, Body: []byte("secret")})
			return operation(claim.Operation) +
				"status           completed\nattempt          2\nanswered         201\n" +
				"began            2000-01-01T00:00:00Z\ncompleted        2000-01-01T00:00:35Z\nexpires          2000-01-01T01:00:35Z\n"
		},
		"expired, with an answer that was not kept": func(d desk) string {
			claim := d.claims()
			d.completes(claim, server.Response{StatusCode: 200, NotKept: true})
			time.Sleep(deskTTL)
			return operation(claim.Operation) +
				"status           completed, expired\nattempt          1\nanswered         200, the answer was not kept\n" +
				"began            2000-01-01T00:00:00Z\ncompleted        2000-01-01T00:00:00Z\nexpires          2000-01-01T01:00:00Z\n"
		},
		"failed": func(d desk) string {
			claim := d.claims()
			require.NoError(d.t, claim.Lease.Release(d.t.Context(), nil))
			return operation(claim.Operation) +
				"status           failed\nattempt          1\nanswered         not yet\n" +
				"began            2000-01-01T00:00:00Z\nexpires          2000-01-01T01:00:00Z\n"
		},
	} {
		t.Run(name, func(t *testing.T) {
			atDesk(t, func(d desk) {
				want := test(d)
				require.Equal(d.t, said{stdout: want}, d.does("inspect"+ofTheKey))
			})
		})
	}
}

func TestOperatorsGetJSON(t *testing.T) {
	atDesk(t, func(d desk) {
		op := d.loses()
		lost := fmt.Sprintf(`{"account":"acme","idempotency_key":"k-1","operation_id":"%v","status":"processing","lost":true,"expired":false,"attempt":1,
			"not_kept":false,"created_at":"2000-01-01T00:00:00Z","lease_until":"2000-01-01T00:00:30Z","expires_at":"2000-01-01T01:00:30Z","seen_at":"2000-01-01T00:00:35Z"`, op.ID)
		require.JSONEq(d.t, lost+"}", d.does("inspect --json"+ofTheKey).stdout)
		require.JSONEq(d.t, lost+`,"downstream_key":"`+op.DownstreamKey("charge")+`"}`, d.does("inspect -purpose charge --json"+ofTheKey).stdout)
		require.JSONEq(d.t, "["+lost+"}]", d.does("stuck --json").stdout)
		require.JSONEq(d.t, fmt.Sprintf(`{"account":"acme","idempotency_key":"k-1","operation_id":"%v","status":"completed","lost":false,"expired":false,"attempt":1,
			"response_status":204,"not_kept":false,"created_at":"2000-01-01T00:00:00Z","completed_at":"2000-01-01T00:00:35Z","expires_at":"2000-01-03T00:00:35Z",
			"seen_at":"2000-01-01T00:00:35Z"}`, op.ID), d.does("complete --json --yes -status 204"+ofTheKey).stdout)
		require.JSONEq(d.t, "[]", d.does("stuck --json").stdout)
		require.JSONEq(d.t, `{"deleted":0}`, d.does("cleanup --json --yes").stdout)
	})
}

func TestOperatorsGetTheDownstreamKey(t *testing.T) {
	atDesk(t, func(d desk) {
		op := d.claims().Operation
		require.Contains(d.t, d.does("inspect -purpose charge"+ofTheKey).stdout, "\ndownstream key   "+op.DownstreamKey("charge")+"\n")
	})
}

func TestOperatorsListWhatIsStuck(t *testing.T) {
	atDesk(t, func(d desk) {
		require.Equal(d.t, said{stdout: "No operation is stuck.\n"}, d.does("stuck"))
		first, second := d.loses("k-1"), d.loses("longer-key")
		d.claims("running")
		head := "ACCOUNT  IDEMPOTENCY KEY  OPERATION                             ATTEMPT  AGE    LOST FOR\n"
		one := fmt.Sprintf("acme     k-1              %v  1        1m10s  40s\n", first.ID)
		two := fmt.Sprintf("acme     longer-key       %v  1        35s    5s\n", second.ID)
		require.Equal(d.t, said{stdout: head + one + two}, d.does("stuck"))
		require.Equal(d.t, said{stdout: head + one}, d.does("stuck -limit 1"))
	})
}

func TestOperatorsReleaseWhatIsLost(t *testing.T) {
	atDesk(t, func(d desk) {
		op := d.loses()
		got := d.does("release -log json"+ofTheKey, "y\n")
		require.NoError(d.t, got.err)
		question, audit, _ := strings.Cut(got.stderr, "[y/N] ")
		require.Equal(d.t, fmt.Sprintf("The key k-1 of the account acme: attempt 1 of the operation %v, processing, its owner was lost 5s ago.\n"+
			"The next request with this key will EXECUTE IT AGAIN. Release it? ", op.ID), question)
		requireAudit(d.t, audit, `{"level":"INFO","msg":"audit","action":"release","account":"acme","idempotency_key":"k...","operation_id":"`+op.ID.String()+`","attempt":1}`)
		require.Contains(d.t, got.stdout, "\nstatus           failed\n")

		again := d.claims()
		require.NotNil(d.t, again.Lease, "the next request executes it")
		require.Equal(d.t, op.ID, again.Operation.ID)
		require.Equal(d.t, 2, again.Operation.Attempt)
	})
}

// requireAudit demands the one line of an audit, its time and author aside, which
// must be there.
func requireAudit(t *testing.T, line, want string) {
	t.Helper()
	var record map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &record), line)
	at, ok := record["time"].(string)
	require.True(t, ok)
	parsed, err := time.Parse(time.RFC3339Nano, at)
	require.NoError(t, err)
	require.True(t, time.Now().Equal(parsed), at)
	require.Equal(t, who(), record["who"])
	require.Regexp(t, ".@.", record["who"])
	delete(record, "time")
	delete(record, "who")
	got, err := json.Marshal(record)
	require.NoError(t, err)
	require.JSONEq(t, want, string(got))
}

func TestOperatorsCompleteWhatHasHappened(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flags string
		want  server.Response
	}{
		"without a body": {"-status 204", server.Response{StatusCode: 204}},
		"JSON by default": {
			`-status 201 -body {"id":1}`,
			server.Response{StatusCode: 201, Body: []byte(`{"id":1}`), Fields: []server.Field{{Name: "Content-Type", Value: "application/json"}}},
		},
		"with fields": {"-status 201 -body made -header location:/payments/1 -header content-type:text/plain", server.Response{
			StatusCode: 201, Body: []byte("made"),
			Fields: []server.Field{{Name: "Location", Value: "/payments/1"}, {Name: "Content-Type", Value: "text/plain"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			atDesk(t, func(d desk) {
				op := d.loses()
				got := d.does("complete -log json -ttl 10m "+tt.flags+ofTheKey, "YES\n")
				require.NoError(d.t, got.err)
				question, audit, _ := strings.Cut(got.stderr, "[y/N] ")
				require.Equal(d.t, fmt.Sprintf("The key k-1 of the account acme: attempt 1 of the operation %v, processing, its owner was lost 5s ago.\n"+
					"Its client will get %d with %d bytes of body, and it will never be executed again. Complete it? ", op.ID, tt.want.StatusCode, len(tt.want.Body)), question)
				requireAudit(d.t, audit, fmt.Sprintf(`{"level":"INFO","msg":"audit","action":"complete","account":"acme","idempotency_key":"k...","operation_id":"%v","attempt":1,"status":%d}`,
					op.ID, tt.want.StatusCode))
				require.Contains(d.t, got.stdout, "\nexpires          2000-01-01T00:10:35Z\n")

				retry := d.claims()
				require.Nil(d.t, retry.Lease, "the next request does not execute it")
				require.Equal(d.t, tt.want, *retry.Record.Response)
			})
		})
	}
}

func TestOperatorsCompleteWhatHasFailed(t *testing.T) {
	atDesk(t, func(d desk) {
		require.NoError(d.t, d.claims().Lease.Release(d.t.Context(), nil))
		require.NoError(d.t, d.does("complete --yes -status 201"+ofTheKey).err)
		require.Equal(d.t, server.Completed, d.claims().Record.Status)
	})
}

func TestOperatorsCleanUp(t *testing.T) {
	atDesk(t, func(d desk) {
		for i := range 2500 { // more than a batch
			d.completes(d.claims(fmt.Sprint(i)), server.Response{StatusCode: 200})
		}
		time.Sleep(deskTTL)
		d.completes(d.claims("fresh"), server.Response{StatusCode: 200})
		got := d.does("cleanup -log json", "y")
		require.NoError(d.t, got.err)
		require.Equal(d.t, "2500 deleted\n", got.stdout)
		question, audit, _ := strings.Cut(got.stderr, "[y/N] ")
		require.Equal(d.t, "Delete the records that have expired? ", question)
		requireAudit(d.t, audit, `{"level":"INFO","msg":"audit","action":"cleanup","deleted":2500}`)
		require.Equal(d.t, said{stdout: "0 deleted\n"}.stdout, d.does("cleanup --yes").stdout)
	})
}

func TestWhatIsNotConfirmedIsNotDone(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"release" + ofTheKey, "complete -status 201" + ofTheKey, "cleanup"} {
		for _, answer := range []string{"n\n", "\n", "", "yesterday\n"} {
			t.Run(fmt.Sprintf("%s %q", command, answer), func(t *testing.T) {
				atDesk(t, func(d desk) {
					d.loses()
					got := d.does(command, answer)
					require.EqualError(d.t, got.err, "not confirmed, nothing was done; with -yes it is not asked")
					require.NotContains(d.t, got.stderr, "audit")
					require.Contains(d.t, d.does("inspect"+ofTheKey).stdout, "processing, its owner was lost")
				})
			})
		}
	}
}

func TestAnInterruptIsANo(t *testing.T) {
	atDesk(t, func(d desk) {
		d.loses()
		silent, hangUp := io.Pipe()
		ctx, interrupt := context.WithTimeout(d.t.Context(), time.Minute)
		defer interrupt()
		require.ErrorContains(d.t, d.asks(ctx, "release"+ofTheKey, silent).err, "not confirmed")
		require.NoError(d.t, hangUp.Close())
	})
}

func TestOperatorsLeaveAloneWhatIsSettled(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before func(d desk)
		want   string
	}{
		"nothing": {func(desk) {}, `there is no record of the key "k-1" of the account "acme"`},
		"running": {func(d desk) { d.claims() }, "an attempt or a worker is at it: its lease lasts for another 30s"},
		"completed": {
			func(d desk) { d.completes(d.claims(), server.Response{StatusCode: 201}) },
			"the operation is completed, its client gets 201",
		},
		"expired": {
			func(d desk) { d.claims(); time.Sleep(deskLease + deskTTL) },
			"the record has expired: the next request with this key is a new operation",
		},
	} {
		t.Run(name, func(t *testing.T) {
			atDesk(t, func(d desk) {
				tt.before(d)
				require.EqualError(d.t, d.does("release"+ofTheKey).err, tt.want)
				got := d.does("complete -status 201" + ofTheKey)
				require.EqualError(d.t, got.err, tt.want)
				require.Empty(d.t, got.stderr, "nothing is asked or logged")
			})
		})
	}
	t.Run("failed", func(t *testing.T) {
		atDesk(t, func(d desk) {
			require.NoError(d.t, d.claims().Lease.Release(d.t.Context(), nil))
			require.EqualError(d.t, d.does("release"+ofTheKey).err, "the operation has failed: the next request with its key executes it anyway")
		})
	})
}

// overtaken answers a question once something has happened.
type overtaken struct {
	io.Reader
	happens func()
}

func (o overtaken) Read(p []byte) (int, error) {
	o.happens()
	return o.Reader.Read(p)
}

func TestAnOperationThatIsTakenOverWhileTheQuestionIsOpenIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"release", "complete -status 201"} {
		t.Run(command, func(t *testing.T) {
			atDesk(t, func(d desk) {
				op := d.loses()
				stdin := overtaken{strings.NewReader("y\n"), func() { d.claims() }}
				got := d.asks(d.t.Context(), command+" -log json"+ofTheKey, stdin)
				require.EqualError(d.t, got.err, "the operation has changed meanwhile; nothing was done, look at it again")
				require.Empty(d.t, got.stdout)
				_, audit, _ := strings.Cut(got.stderr, "[y/N] ")
				require.Contains(d.t, audit, `"level":"ERROR"`)
				require.Contains(d.t, audit, op.ID.String())
				e, err := d.Inspect(d.t.Context(), server.ID{Account: "acme", Key: "k-1"})
				require.NoError(d.t, err)
				require.Equal(d.t, server.Processing, e.Status)
				require.Equal(d.t, 2, e.Attempt)
			})
		})
	}
}

func TestAccountsThatCouldControlATerminalAreQuoted(t *testing.T) {
	atDesk(t, func(d desk) {
		id := server.ID{Account: "a\x1b[2J\u202e", Key: "k-1"}
		_, err := d.Claim(d.t.Context(), server.ClaimRequest{ID: id, Fingerprint: server.Fingerprint{Version: 1}, Lease: time.Millisecond, TTL: deskTTL})
		require.NoError(d.t, err)
		time.Sleep(time.Second)
		require.Contains(d.t, d.does("stuck").stdout, `"a\x1b[2J\u202e"`)
		require.Contains(d.t, d.does("inspect -key k-1 -account "+id.Account).stdout, `account          "a\x1b[2J\u202e"`)
	})
}

func TestAdminFlagsThatAreWrongAreMetWithTheCure(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                                       "a command is missing",
		"destroy":                                `there is no command "destroy"`,
		"inspect -account acme":                  "inspect needs -account and -key",
		"release -key k-1":                       "release needs -account and -key",
		"inspect -account acme -key \u043a":      "-key: byte 1 of the key is 0xD0, only visible ASCII (0x21-0x7E) is allowed",
		"inspect --yes" + ofTheKey:               "flag provided but not defined: -yes",
		"stuck -limit 0":                         "-limit is 0: it must be at least 1",
		"stuck now":                              `unexpected argument "now"`,
		"stuck":                                  "-store=postgres needs -database-url, or DATABASE_URL in the environment",
		"stuck -store memory":                    "-store=memory is inside of its server; look at the page on that one's -admin-addr",
		"stuck -store redis":                     "-store=redis cannot list its operations; clients of those that are stuck get OPERATION_INDETERMINATE",
		"cleanup -store redis":                   "-store=redis deletes by itself what has expired",
		"cleanup -log off":                       `-log is "off": it must be text or json`,
		"complete" + ofTheKey:                    "-status is 0: it must be 200 to 599",
		"complete -status 199" + ofTheKey:        "-status is 199",
		"complete -status 200 -ttl 0" + ofTheKey: "-ttl is 0s: it must be at least 1ms",
		"complete -status 200 -header Location" + ofTheKey: `invalid value "Location" for flag -header: a field is written as Name: value`,
		"complete -status 200 -header ä:1" + ofTheKey:      `invalid value "ä:1" for flag -header: a field is written as Name: value`,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, 2, runAdmin(t.Context(), strings.Fields(args), strings.NewReader(""), &stdout, &stderr))
			require.True(t, strings.HasPrefix(stderr.String(), "refserver admin: "+want), stderr.String())
			require.Empty(t, stdout.String())
		})
	}
}

func TestAdminHelpGoesToStdout(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"-h": "Look at operations and settle them: refserver admin COMMAND [FLAGS]\n" +
			"  inspect   show the operation of a key\n" +
			"  stuck     list the operations whose owner was lost\n" +
			"  release   give a lost operation up, so that the next request executes it again\n" +
			"  complete  give a lost or failed operation the answer that its client is to get\n" +
			"  cleanup   delete the records that have expired\n",
		"complete -h": "refserver admin complete [FLAGS]\n",
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 0, runAdmin(t.Context(), strings.Fields(args), strings.NewReader(""), &stdout, &stderr))
		require.True(t, strings.HasPrefix(stdout.String(), want), stdout.String())
		require.Empty(t, stderr.String())
	}
}

// atDatabase runs a command on a database.
func atDatabase(t *testing.T, url, command string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = runAdmin(t.Context(), append(strings.Fields(command), "-database-url="+url), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestOperatorsSettleOperationsInADatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := startPostgres(t, db.URL, "-lease=1ms", "-refuse-takeover")
	other, err := openPostgres(t.Context(), options{storeOptions: storeOptions{databaseURL: db.URL}}, quiet)
	require.NoError(t, err)
	t.Cleanup(other.close)
	for _, key := range []string{"k-1", "k-2"} {
		_, err := other.payments.Claim(t.Context(), server.ClaimRequest{ID: server.ID{Account: "acme", Key: key}, Lease: time.Millisecond, TTL: time.Hour})
		require.NoError(t, err)
	}
	db.Exec(t, "UPDATE idem_operations SET fingerprint_version = 0") // proves nothing
	require.Contains(t, post(p.url, "/payments").body, "OPERATION_INDETERMINATE")

	code, stdout, stderr := atDatabase(t, db.URL, "stuck --json")
	require.Equal(t, 0, code, stderr)
	require.Empty(t, stderr)
	var stuck []printedEntry
	require.NoError(t, json.Unmarshal([]byte(stdout), &stuck))
	require.Len(t, stuck, 2)
	require.Equal(t, "k-1", stuck[0].Key)
	require.True(t, stuck[0].Lost)

	code, stdout, stderr = atDatabase(t, db.URL, "release --yes"+ofTheKey)
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "status           failed\n")
	require.Contains(t, stderr, "msg=audit action=release")
	require.Equal(t, 201, post(p.url, "/payments").status, "it is executed")

	code, _, stderr = atDatabase(t, db.URL, "complete --yes -status 201 -body made -account acme -key k-2")
	require.Equal(t, 0, code, stderr)
	replay := post(p.url, "/payments", "Idempotency-Key: k-2")
	require.Equal(t, 201, replay.status)
	require.Equal(t, "made", replay.body)
	require.Equal(t, "true", replay.header.Get("Idempotent-Replayed"))

	db.Exec(t, "UPDATE idem_operations SET expires_at = now()")
	code, stdout, stderr = atDatabase(t, db.URL, "cleanup --yes")
	require.Equal(t, 0, code, stderr)
	require.Equal(t, "2 deleted\n", stdout)
	code, _, stderr = atDatabase(t, db.URL, "inspect"+ofTheKey)
	require.Equal(t, 1, code)
	require.Equal(t, `refserver admin inspect: there is no record of the key "k-1" of the account "acme"`+"\n", stderr)
}

func TestOperatorsAreToldWhatIsWrongWithTheDatabase(t *testing.T) {
	t.Parallel()
	code, _, stderr := atDatabase(t, pgtest.New(t).URL, "stuck -table shop.operations")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "refserver admin stuck: ")
	require.Contains(t, stderr, "shop.operations")
	code, _, stderr = atDatabase(t, "postgres://user:secret@127.0.0.1:1/shop", "stuck")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "refserver admin stuck: ")
	require.NotContains(t, stderr, "secret")
}
