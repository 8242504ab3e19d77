package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/idemhttp/idem/server"
)

// printedEntry is an entry as JSON.
type printedEntry struct {
	Account        string    `json:"account"`
	Key            string    `json:"idempotency_key"`
	Operation      uuid.UUID `json:"operation_id"`
	Status         string    `json:"status"`
	Lost           bool      `json:"lost"`
	Expired        bool      `json:"expired"`
	Attempt        int       `json:"attempt"`
	ResponseStatus int       `json:"response_status,omitempty"`
	NotKept        bool      `json:"not_kept"`
	CreatedAt      time.Time `json:"created_at"`
	LeaseUntil     time.Time `json:"lease_until,omitzero"`
	CompletedAt    time.Time `json:"completed_at,omitzero"`
	ExpiresAt      time.Time `json:"expires_at"`
	SeenAt         time.Time `json:"seen_at"`
	DownstreamKey  string    `json:"downstream_key,omitempty"`
}

func (c *adminCall) printed(e server.Entry) printedEntry {
	p := printedEntry{
		Account: e.Account, Key: e.Key, Operation: e.ID, Status: e.Status.String(), Lost: e.Lost(), Expired: e.Expired(),
		Attempt: e.Attempt, ResponseStatus: e.ResponseStatus, NotKept: e.NotKept,
		CreatedAt: utc(e.CreatedAt), LeaseUntil: utc(e.LeaseUntil), CompletedAt: utc(e.CompletedAt),
		ExpiresAt: utc(e.ExpiresAt), SeenAt: utc(e.SeenAt),
	}
	if c.purpose != "" {
		p.DownstreamKey = e.DownstreamKey(c.purpose)
	}
	return p
}

// utc keeps the zero time zero.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Millisecond)
}

func (c *adminCall) printEntry(e server.Entry) error {
	if c.json {
		return c.printJSON(c.printed(e))
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	p := c.printed(e)
	fmt.Fprintf(w, "account\t%s\nidempotency key\t%s\noperation\t%s\n", printable(p.Account), p.Key, p.Operation)
	fmt.Fprintf(w, "status\t%s\nattempt\t%d\nanswered\t%s\n", statusOf(e), p.Attempt, answerOf(e))
	for _, line := range []struct {
		name string
		t    time.Time
	}{{"began", p.CreatedAt}, {"lease until", p.LeaseUntil}, {"completed", p.CompletedAt}, {"expires", p.ExpiresAt}} {
		if !line.t.IsZero() {
			fmt.Fprintf(w, "%s\t%s\n", line.name, line.t.Format(time.RFC3339))
		}
	}
	if p.DownstreamKey != "" {
		fmt.Fprintf(w, "downstream key\t%s\n", p.DownstreamKey)
	}
	return w.Flush()
}

func (c *adminCall) printEntries(entries []server.Entry) error {
	if c.json {
		printed := []printedEntry{} // none is [], not null
		for _, e := range entries {
			printed = append(printed, c.printed(e))
		}
		return c.printJSON(printed)
	}
	if len(entries) == 0 {
		_, err := fmt.Fprintln(c.stdout, "No operation is stuck.")
		return err
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ACCOUNT\tIDEMPOTENCY KEY\tOPERATION\tATTEMPT\tAGE\tLOST FOR")
	for _, e := range entries {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%v\t%v\n", printable(e.Account), e.Key, e.ID, e.Attempt,
			e.Age().Round(time.Second), -e.LeaseLeft().Round(time.Second))
	}
	return w.Flush()
}

// printAfter prints what a change has made of the record, unless that failed.
func (c *adminCall) printAfter(ctx context.Context, failed error) error {
	if failed != nil {
		return failed
	}
	return c.inspect(ctx)
}

func (c *adminCall) printDeleted(n int) error {
	if c.json {
		return c.printJSON(map[string]int{"deleted": n})
	}
	_, err := fmt.Fprintf(c.stdout, "%d deleted\n", n)
	return err
}

func (c *adminCall) printJSON(v any) error {
	encoder := json.NewEncoder(c.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

func statusOf(e server.Entry) string {
	s := e.Status.String()
	if e.Lost() {
		s += fmt.Sprintf(", its owner was lost %v ago", -e.LeaseLeft().Round(time.Second))
	}
	if e.Expired() {
		s += ", expired"
	}
	return s
}

func answerOf(e server.Entry) string {
	switch {
	case e.ResponseStatus == 0:
		return "not yet"
	case e.NotKept:
		return strconv.Itoa(e.ResponseStatus) + ", the answer was not kept"
	case e.Status == server.Processing:
		return strconv.Itoa(e.ResponseStatus) + ", for the time being"
	default:
		return strconv.Itoa(e.ResponseStatus)
	}
}

// describe says in a line which operation is meant.
func describe(e server.Entry) string {
	return fmt.Sprintf("The key %s of the account %s: attempt %d of the operation %s, %s.",
		e.Key, printable(e.Account), e.Attempt, e.ID, statusOf(e))
}

// printable returns s in quotes if it has anything that could make a terminal do
// more than print it.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
