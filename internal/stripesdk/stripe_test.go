// Package stripesdk_test runs the client under Stripe's own SDK, against Stripe's
// own stand-in. It is a module of its own, so that neither is a dependency of
// idem.
package stripesdk_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/dialect"
	"github.com/idemhttp/idem/internal/childproc"
)

// checkout is a program that uses the SDK. It knows nothing of idem.
func checkout(ctx context.Context, sc *stripe.Client) (*stripe.PaymentIntent, error) {
	customer, err := sc.V1Customers.Create(ctx, &stripe.CustomerCreateParams{Email: stripe.String("anna@example.com")})
	if err != nil {
		return nil, err
	}
	intent, err := sc.V1PaymentIntents.Create(ctx, &stripe.PaymentIntentCreateParams{
		Amount: stripe.Int64(1200), Currency: stripe.String("eur"), Customer: stripe.String(customer.ID),
	})
	if err != nil {
		return nil, err
	}
	confirm := &stripe.PaymentIntentConfirmParams{PaymentMethod: stripe.String("pm_card_visa")}
	confirm.SetIdempotencyKey("confirm-" + intent.ID)
	if _, err := sc.V1PaymentIntents.Confirm(ctx, intent.ID, confirm); err != nil {
		return nil, err
	}
	return sc.V1PaymentIntents.Retrieve(ctx, intent.ID, nil)
}

const writes = 3 // that checkout makes

func TestStripeGo(t *testing.T) {
	t.Parallel()
	plain, secure := startMock(t)
	base := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // stripe-mock signs its certificate itself
		ForceAttemptHTTP2: true,
	}
	t.Cleanup(base.CloseIdleConnections)
	for name, url := range map[string]string{"over HTTP": plain, "over HTTPS": secure} {
		t.Run(name+" as it is", func(t *testing.T) {
			t.Parallel()
			network := &network{base: base}
			intent, err := checkout(t.Context(), sdk(url, network))
			require.NoError(t, err)
			require.NotEmpty(t, intent.ID)
			require.Len(t, network.sent, writes)
		})
		t.Run(name+" with the first answer of every write lost", func(t *testing.T) {
			t.Parallel()
			network := &network{base: base, fault: func(*http.Response) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }}
			client := &idem.Client{Transport: network, Dialect: dialect.Stripe, Retry: atOnce}
			intent, err := checkout(t.Context(), sdk(url, client.RoundTripper()))
			require.NoError(t, err)
			require.NotEmpty(t, intent.ID)
			network.requireEachWriteTwice(t)
			require.Contains(t, network.sent[4].key, "confirm-pi_", "the caller's own key is kept")
		})
		t.Run(name+" with every key in use at first", func(t *testing.T) {
			t.Parallel()
			network := &network{base: base, fault: keyInUse}
			client := &idem.Client{Transport: network, Dialect: dialect.Stripe, Retry: atOnce}
			_, err := checkout(t.Context(), sdk(url, client.RoundTripper()))
			require.NoError(t, err, "the SDK never hears of the conflict")
			network.requireEachWriteTwice(t)
		})
		t.Run(name+" with a declined card", func(t *testing.T) {
			t.Parallel()
			network := &network{base: base, fault: declined}
			client := &idem.Client{Transport: network, Dialect: dialect.Stripe, Retry: atOnce}
			_, err := checkout(t.Context(), sdk(url, client.RoundTripper()))
			var card *stripe.Error
			require.ErrorAs(t, err, &card, "the SDK gets its answer untouched")
			require.Equal(t, stripe.ErrorCodeCardDeclined, card.Code)
			require.Len(t, network.sent, 1)
		})
	}
}

var atOnce = idem.RetryPolicy{NewBackOff: func() backoff.BackOff { return &backoff.ZeroBackOff{} }}

// sdk returns the SDK's client for url over the transport.
func sdk(url string, transport http.RoundTripper) *stripe.Client {
	return stripe.NewClient("sk_test_123", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL:           stripe.String(url),
		HTTPClient:    &http.Client{Transport: transport},
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull},
	})))
}

// network is a transport with a fault at the first attempt of every write.
type network struct {
	base  http.RoundTripper
	fault func(answer *http.Response) (*http.Response, error) // nil for none

	mu   sync.Mutex
	sent []write
}

type write struct{ key, target, body string }

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		return n.base.RoundTrip(req)
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Body = io.NopCloser(bytes.NewReader(body))
	first := n.record(write{req.Header.Get("Idempotency-Key"), req.Method + " " + req.URL.Path, string(body)})
	answer, err := n.base.RoundTrip(req)
	if err != nil || !first || n.fault == nil {
		return answer, err
	}
	defer answer.Body.Close()
	return n.fault(answer)
}

// record reports whether w is the first with its key.
func (n *network) record(w write) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent = append(n.sent, w)
	return !slices.ContainsFunc(n.sent[:len(n.sent)-1], func(earlier write) bool { return earlier.key == w.key })
}

func (n *network) requireEachWriteTwice(t *testing.T) {
	t.Helper()
	require.Len(t, n.sent, 2*writes)
	keys := map[string]bool{}
	for i := 0; i < len(n.sent); i += 2 {
		require.Equal(t, n.sent[i], n.sent[i+1], "same key, same request")
		keys[n.sent[i].key] = true
	}
	require.Len(t, keys, writes)
	require.NotContains(t, keys, "")
}

func keyInUse(answer *http.Response) (*http.Response, error) {
	return replaced(answer, http.StatusConflict, `{"error":{"type":"invalid_request_error","code":"idempotency_key_in_use"}}`)
}

func declined(answer *http.Response) (*http.Response, error) {
	return replaced(answer, http.StatusPaymentRequired, `{"error":{"type":"card_error","code":"card_declined"}}`)
}

func replaced(answer *http.Response, status int, body string) (*http.Response, error) {
	return &http.Response{
		StatusCode: status, Proto: answer.Proto, ProtoMajor: answer.ProtoMajor, ProtoMinor: answer.ProtoMinor,
		Header: http.Header{"Content-Type": {"application/json"}}, Request: answer.Request,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}

// script runs stripe-mock on free ports of the loopback interface.
const script = `
program=$1
start() {
	"$program" -http-addr 127.0.0.1: -https-addr 127.0.0.1: >"$dir/log" 2>&1 </dev/null &
	pid=$!
	until grep -q 'Listening for HTTPS' "$dir/log"; do
		kill -0 $pid || { cat "$dir/log"; return 1; }
		sleep 0.1
	done
}
stop() { kill $pid; wait $pid; }
`

// startMock builds stripe-mock at the version of go.mod, starts it, and returns
// its URLs.
func startMock(t *testing.T) (plain, secure string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "stripe-mock")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/stripe/stripe-mock").CombinedOutput()
	require.NoError(t, err, string(out))
	service, err := childproc.Start(childproc.Command{Script: script, Args: []string{program}})
	require.NoError(t, err)
	t.Cleanup(service.Stop)
	log, err := os.ReadFile(filepath.Join(service.Folder, "log"))
	require.NoError(t, err)
	found := regexp.MustCompile(`Listening for (HTTPS?) at address: (\S+)`).FindAllStringSubmatch(string(log), -1)
	require.Len(t, found, 2, string(log))
	addresses := map[string]string{}
	for _, match := range found {
		addresses[match[1]] = match[2]
	}
	return "http://" + addresses["HTTP"], "https://" + addresses["HTTPS"]
}
