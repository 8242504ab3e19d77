package dialect_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/dialect"
	"github.com/idemhttp/idem/internal/faultnet"
)

func TestEveryVariableIsInAllAndTested(t *testing.T) {
	t.Parallel()
	var tested []string
	for i, p := range providers {
		require.Same(t, p.dialect, dialect.All()[i])
		tested = append(tested, p.name)
	}
	require.Len(t, dialect.All(), len(tested))
	require.ElementsMatch(t, variables(t), tested)
}

// variables returns the names of the package's exported variables.
func variables(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		if parsed.Name.Name != "dialect" {
			continue
		}
		for _, decl := range parsed.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.VAR {
				continue
			}
			for _, spec := range group.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

func TestLostAnswerIsAskedForAgainAndNothingIsMadeTwice(t *testing.T) {
	t.Parallel()
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			fake := p.fake()
			api := httptest.NewServer(fake)
			defer api.Close()
			up := faultnet.Upstream(api.Listener.Addr().String())
			network := faultnet.Serve(t, faultnet.Steps(up.LoseAnswer(), up.Forward()))
			network.Transport.DisableKeepAlives = true // so that every send is an attempt of ours

			result, err := pay(t, speaking(p.dialect, network.Transport))
			require.Equal(t, idem.Done, idem.OutcomeOf(err))
			require.Equal(t, 2, result.Attempts)
			require.Equal(t, 1, fake.Effects())
			sent := network.Requests()
			require.Len(t, sent, 2)
			require.Equal(t, result.Key, p.keyOf(t, sent[0]))
			require.Equal(t, sent[0].Raw, sent[1].Raw)
			if p.name == "GoCardless" { // the answer names what was made, and is not it
				conflict := asA[*idem.ConflictError](t, err)
				require.Contains(t, string(conflict.Body), `"conflicting_resource_id":"PM1"`)
				return
			}
			require.NoError(t, err)
			require.Contains(t, result.Value.ID, "1")
		})
	}
}

func TestSlowAnswerIsWaitedForUnderTheSameKey(t *testing.T) {
	t.Parallel()
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				fake := p.fake()
				fake.Takes = 2500 * time.Millisecond
				client := speaking(p.dialect, faultnet.Handle(t, fake))
				client.Retry.AttemptTimeout = time.Second
				result, err := pay(t, client)
				require.Equal(t, idem.Done, idem.OutcomeOf(err), "%v", err)
				require.Greater(t, result.Attempts, 1)
				require.Equal(t, 1, fake.Effects())
			})
		})
	}
}

func TestKeyUsedForAnotherRequestMakesNothing(t *testing.T) {
	t.Parallel()
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			fake := p.fake()
			client := speaking(p.dialect, fake.Transport(0))
			op, err := idem.NewOperation("POST", "/payments", []byte(paymentJSON))
			require.NoError(t, err)
			_, err = idem.Send[made](t.Context(), client, op)
			require.NoError(t, err)
			op.Body = []byte(`{"amount":9900,"currency":"RUB"}`)
			_, err = idem.Send[made](t.Context(), client, op)
			require.Equal(t, 1, fake.Effects())
			if fake.Reused.Status != 0 { // the provider notices
				require.Equal(t, idem.Rejected, idem.OutcomeOf(err))
			}
		})
	}
}

func TestMintedAndDerivedKeysSuitEveryProvider(t *testing.T) {
	t.Parallel()
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			fake := p.fake()
			client := speaking(p.dialect, fake.Transport(0))
			for i, key := range []idem.Key{idem.NewKey(), idem.DeriveKey("order", "1042")} {
				op := idem.Operation{Key: key, Method: "POST", URL: "/payments", Body: []byte(paymentJSON)}
				_, err := idem.Send[made](t.Context(), client, op)
				require.NoError(t, err)
				require.Equal(t, i+1, fake.Effects())
			}
		})
	}
}

func TestKeysThatTheProviderDoesNotTakeAreNotSent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dialect *idem.Dialect
		longest int
		refused []idem.Key
	}{
		"Stripe":           {dialect: dialect.Stripe, longest: 255},
		"YooKassa":         {dialect: dialect.YooKassa, longest: 64},
		"PayPal":           {dialect: dialect.PayPal, longest: 38},
		"Adyen":            {dialect: dialect.Adyen, longest: 64},
		"Square":           {dialect: dialect.Square, longest: 45},
		"Razorpay":         {dialect: dialect.Razorpay, longest: 36, refused: []idem.Key{"abc", "order:1042"}},
		"Razorpay refunds": {dialect: dialect.RazorpayRefunds, longest: 255, refused: []idem.Key{"order-104", "order:1042"}},
		"AWS":              {dialect: dialect.AWS, longest: 64},
		"AWS, query":       {dialect: dialect.AWSQuery, longest: 64},
		"AWS, header":      {dialect: dialect.AWSHeader, longest: 64},
		"Google Cloud":     {dialect: dialect.GoogleCloud, refused: []idem.Key{"order-1042"}},
		"Azure":            {dialect: dialect.Azure, refused: []idem.Key{"order-1042"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := faultnet.Serve(t, faultnet.Reply(faultnet.Answer(200, `{"id":"1"}`)))
			client := speaking(tc.dialect, srv.Transport)
			send := func(key idem.Key) error {
				_, err := idem.Send[made](t.Context(), client, idem.Operation{Key: key, Method: "POST", URL: "/"})
				return err
			}
			sent := 0
			if tc.longest > 0 {
				require.NoError(t, send(idem.Key(strings.Repeat("k", tc.longest))))
				require.True(t, hasA[*idem.UsageError](send(idem.Key(strings.Repeat("k", tc.longest+1)))))
				sent = 1
			}
			for _, key := range tc.refused {
				require.True(t, hasA[*idem.UsageError](send(key)), string(key))
			}
			require.Len(t, srv.Requests(), sent)
		})
	}
}

func TestOperationIsNotSentOnceItsKeyMayBeForgotten(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	lifetimes := map[string]time.Duration{
		"Stripe": day, "YooKassa": day, "PayPal": 3 * time.Hour, "Adyen": 7 * day, "CheckoutCom": day, "ModernTreasury": day,
		"Mollie": time.Hour, "GoogleCloud": time.Hour, "Azure": 5 * time.Minute,
	}
	for _, p := range providers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			lifetime, known := lifetimes[p.name]
			synctest.Test(t, func(t *testing.T) {
				fake := p.fake()
				client := speaking(p.dialect, fake.Transport(0))
				op, err := idem.NewOperation("POST", "/payments", []byte(paymentJSON))
				require.NoError(t, err)
				stored, err := json.Marshal(op)
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(stored, &op)) // after a crash

				<-time.After(lifetime - time.Second)
				_, err = idem.Send[made](t.Context(), client, op)
				require.NoError(t, err)
				<-time.After(time.Second)
				op.Key = idem.NewKey()
				_, err = idem.Send[made](t.Context(), client, op)
				if !known {
					require.NoError(t, err)
					return
				}
				require.Equal(t, idem.Expired, idem.OutcomeOf(err))
				require.Equal(t, 1, fake.Effects())
			})
		})
	}
}

func TestAzureLearnsWhenTheRequestWasMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv, _ := timeline(t, faultnet.Answer(500, "", "Retry-After: 5"), faultnet.Answer(202, `{"id":"1"}`))
		_, err := pay(t, speaking(dialect.Azure, srv.Transport))
		require.NoError(t, err)
		for _, r := range srv.Requests() {
			require.Equal(t, "Sat, 01 Jan 2000 00:00:00 GMT", r.Header.Get("Repeatability-First-Sent"))
		}
	})
}
