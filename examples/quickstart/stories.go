package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/idemhttp/idem"
	"github.com/idemhttp/idem/server/refserver"
)

// Payment is what the API takes and returns.
type Payment struct {
	ID       string `json:"payment_id,omitempty"`
	Amount   int64  `json:"amount"` // in minor units: 1200 is 12.00
	Currency string `json:"currency"`
}

type stories struct {
	timeline

	url       string
	transport http.RoundTripper       // nil means the default
	counts    func() refserver.Counts // what the server has really done
	client    *idem.Client
	lost      idem.Operation // the payment of the first story
}

// tell tells all stories and returns an error if a claim did not hold.
func (s *stories) tell(ctx context.Context) error {
	s.printf("The reference server is on %s and keeps its keys in memory.\n", s.url)
	s.client = s.newClient(s.trace(), idem.RetryPolicy{})
	for _, story := range []func(context.Context) error{
		s.lostAnswer, s.failures, s.duplicates, s.slowPayment, s.reusedKey, s.ledger,
	} {
		if err := story(ctx); err != nil {
			return err
		}
	}
	return s.end()
}

func (s *stories) newClient(trace idem.Trace, retry idem.RetryPolicy) *idem.Client {
	return &idem.Client{
		BaseURL:   s.url,
		Header:    http.Header{"Authorization": {"Bearer demo-acme"}},
		Transport: s.transport,
		Retry:     retry,
		Trace:     trace,
	}
}

// newPayment returns a payment that the server is asked to meet with a fault.
func newPayment(amount int64, fault string) (idem.Operation, error) {
	op, err := idem.NewOperation("POST", "/payments", Payment{Amount: amount, Currency: "RUB"})
	if err == nil {
		op.Header.Set("X-Fault", fault)
	}
	return op, err
}

func (s *stories) lostAnswer(ctx context.Context) error {
	s.begin("12.00 are paid, but the connection breaks before the answer arrives.")
	op, err := newPayment(1200, "drop")
	if err != nil {
		return err
	}
	s.lost = op
	before := s.counts().Executions
	res, err := idem.Send[Payment](ctx, s.client, op)
	if err != nil {
		return err
	}
	s.claim(res.Replayed, "the second attempt got the answer of the first")
	s.claim(s.counts().Executions == before+1, "the server executed it once")
	return nil
}

func (s *stories) failures(ctx context.Context) error {
	s.begin("25.00 meet a server that fails twice before it works.")
	op, err := newPayment(2500, "fail=503, times=2")
	if err != nil {
		return err
	}
	res, err := idem.Send[Payment](ctx, s.client, op)
	if err != nil {
		return err
	}
	s.claim(res.Attempts == 3, "the third attempt made it")
	s.claim(!res.Replayed, "it is no replay: failures are not kept")
	return nil
}

func (s *stories) duplicates(ctx context.Context) error {
	const n = 20
	s.begin("40.00 are sent by 20 clients at the same moment, under one key.")
	op, err := newPayment(4000, "delay=50ms")
	if err != nil {
		return err
	}
	before := s.counts().Executions
	payments, errs := make([]idem.Result[Payment], n), make([]error, n)
	var sent sync.WaitGroup
	for i := range n {
		client := s.newClient(idem.Trace{}, idem.RetryPolicy{})
		sent.Go(func() { payments[i], errs[i] = idem.Send[Payment](ctx, client, op) })
	}
	sent.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	ids, replays := make(map[string]bool), 0
	for _, p := range payments {
		ids[p.Value.ID] = true
		if p.Replayed {
			replays++
		}
	}
	s.event("%d answers, %d of them replays", n, replays)
	s.claim(len(ids) == 1, "all of them have the same payment")
	s.claim(s.counts().Executions == before+1, "the server executed it once")
	return nil
}

func (s *stories) slowPayment(ctx context.Context) error {
	s.begin("8.00 take the server longer than an attempt may take.")
	op, err := newPayment(800, "delay=800ms")
	if err != nil {
		return err
	}
	client := s.newClient(s.trace(), idem.RetryPolicy{AttemptTimeout: 300 * time.Millisecond})
	before := s.counts().Executions
	res, err := idem.Send[Payment](ctx, client, op)
	if err != nil {
		return err
	}
	s.claim(res.Replayed, "the client waited as it was told and got the answer")
	s.claim(s.counts().Executions == before+1, "the server executed it once")
	return nil
}

func (s *stories) reusedKey(ctx context.Context) error {
	s.begin("A bug sends 99.00 under the key of the first payment.")
	op, err := newPayment(9900, "delay=0s")
	if err != nil {
		return err
	}
	op.Key = s.lost.Key
	before := s.counts().Executions
	_, err = idem.Send[Payment](ctx, s.client, op)
	var conflict *idem.ConflictError
	s.claim(errors.As(err, &conflict) && conflict.Problem != nil && conflict.Problem.Code == "IDEMPOTENCY_KEY_REUSE",
		"the error is an *idem.ConflictError, code IDEMPOTENCY_KEY_REUSE")
	s.claim(idem.OutcomeOf(err) == idem.Rejected, "its outcome is %q: nothing was done, and nothing will be", idem.OutcomeOf(err))
	s.claim(s.counts().Executions == before, "the server executed nothing")
	return nil
}

func (s *stories) ledger(ctx context.Context) error {
	s.begin("In the end this is what the server has in its ledger.")
	req, err := http.NewRequestWithContext(ctx, "GET", s.url+"/ledger", nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var ledger struct {
		Entries []Payment `json:"entries"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&ledger); err != nil {
		return err
	}
	var amounts []int64
	for _, p := range ledger.Entries {
		s.event("%3d.%02d %s  payment %s", p.Amount/100, p.Amount%100, p.Currency, p.ID)
		amounts = append(amounts, p.Amount)
	}
	s.claim(slices.Equal(amounts, []int64{1200, 2500, 4000, 800}), "four payments, each of them once")
	return nil
}
