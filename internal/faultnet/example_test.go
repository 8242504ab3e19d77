package faultnet_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/idemhttp/idem/internal/faultnet"
)

// A server that is busy once, breaks off once and then answers. In a test,
// faultnet.Serve(t, ...) does it without Start and Close.
func ExampleSteps() {
	s := faultnet.Start(faultnet.Listen(), faultnet.Steps(
		faultnet.Reply(faultnet.Answer(503, "busy", "Retry-After: 1")),
		faultnet.Cut(faultnet.Answer(201, `{"id":1}`), 47),
		faultnet.Reply(faultnet.Answer(201, `{"id":1}`)),
	))
	defer s.Close()

	for range 3 {
		fmt.Println(send(s, "12.00"))
	}
	fmt.Println(s.Bodies())
	// Output:
	// 503 "busy" <nil>
	// 201 "{\"id" unexpected EOF
	// 201 "{\"id\":1}" <nil>
	// [12.00 12.00 12.00]
}

// Actions are functions, so that they combine, and new ones are short.
func ExampleAction() {
	ok := faultnet.Reply(faultnet.Answer(200, "ok"))
	s := faultnet.Start(faultnet.Listen(), func(x *faultnet.Exchange) {
		if x.N == 1 {
			faultnet.Reset()(x)
			return
		}
		ok(x)
	})
	defer s.Close()

	fmt.Println(send(s, ""))
	fmt.Println(send(s, ""))
	s.Play(faultnet.Reply(faultnet.Answer(500, "")))
	fmt.Println(send(s, ""))
	// Output:
	// no answer
	// 200 "ok" <nil>
	// 500 "" <nil>
}

// A network in front of a real server that loses every answer: the server does
// its work and nobody knows.
func ExampleUpstream() {
	bank := faultnet.Serve(exampleTB{}, faultnet.Reply(faultnet.Answer(201, "paid")))
	defer bank.Close()
	up := faultnet.Upstream(bank.Addr)
	network := faultnet.Start(faultnet.Listen(), up.LoseAnswer())
	defer network.Close()

	fmt.Println(send(network, "12.00"))
	fmt.Println(bank.Bodies())
	// Output:
	// no answer
	// [12.00]
}

// exampleTB stands in for the testing.T that an example does not have.
type exampleTB struct{}

func (exampleTB) Helper()        {}
func (exampleTB) Cleanup(func()) {}
func (exampleTB) Fatal(v ...any) { panic(fmt.Sprint(v...)) }

func send(s *faultnet.Server, body string) string {
	req, _ := http.NewRequest("POST", s.URL, strings.NewReader(body))
	resp, err := s.Transport.RoundTrip(req)
	if err != nil {
		return "no answer"
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %q %v", resp.StatusCode, read, err)
}
