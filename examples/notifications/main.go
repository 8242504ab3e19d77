// Command notifications sends each e-mail once, however often the queue
// delivers the message that asks for it:
//
//	go run ./examples/notifications
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/idemhttp/idem/server"
	"github.com/idemhttp/idem/server/memstore"
)

// message is what a queue delivers: at least once.
type message struct{ id, to, text string }

// deliveries has a message whose acknowledgement was lost, one that meets a
// mail server which is down, and one under an id that was used before.
var deliveries = []message{
	{"1001", "anna@example.com", "Your order has been shipped"},
	{"1001", "anna@example.com", "Your order has been shipped"},
	{"1002", "bert@example.com", "Your invoice"},
	{"1002", "bert@example.com", "Your invoice"},
	{"1001", "carl@example.com", "Not the message that 1001 was"},
	{"1002", "bert@example.com", "Your invoice"},
}

func main() {
	mail := &mailServer{failures: map[string]int{"bert@example.com": 1}}
	consume(context.Background(), os.Stdout, deliveries, mail)
	for _, to := range mail.sent {
		fmt.Println("in the mailbox of", to)
	}
}

// consume handles every delivery, and prints what it tells the queue.
func consume(ctx context.Context, out io.Writer, deliveries []message, mail *mailServer) {
	store := new(memstore.Store) // a real consumer has one that survives it
	for _, m := range deliveries {
		fmt.Fprintf(out, "message %s to %s: %s\n", m.id, m.to, handle(ctx, store, mail, m))
	}
}

// handle sends the e-mail of one delivery unless an earlier one has.
func handle(ctx context.Context, store server.Store, mail *mailServer, m message) string {
	operation := server.ClaimRequest{
		ID:          server.ID{Account: "notifications", Key: m.id},
		Fingerprint: server.Fingerprint{Version: 1, Sum: sha256.Sum256(fmt.Appendf(nil, "%q %q", m.to, m.text))},
	}
	done, err := server.Do(ctx, store, operation, func(context.Context) ([]byte, error) {
		return mail.send(m)
	})
	var inFlight *server.InFlightError
	switch {
	case err == nil && done.Replayed:
		return fmt.Sprintf("acknowledged, it is receipt %s already", done.Value)
	case err == nil:
		return fmt.Sprintf("acknowledged, receipt %s", done.Value)
	case errors.Is(err, server.ErrReused):
		return "to the dead letters, " + err.Error()
	case errors.As(err, &inFlight):
		return fmt.Sprintf("deliver again in %v, another consumer is at it", inFlight.LeaseLeft)
	default:
		return "deliver again, " + err.Error()
	}
}

// mailServer fails as often as told, and remembers what it has sent.
type mailServer struct {
	failures map[string]int
	sent     []string
}

func (s *mailServer) send(m message) ([]byte, error) {
	if s.failures[m.to] > 0 {
		s.failures[m.to]--
		return nil, errors.New("the mail server is down")
	}
	s.sent = append(s.sent, m.to)
	return fmt.Appendf(nil, "R-%d", len(s.sent)), nil
}
