package refserver

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/big"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// Entry is an order or a payment. Exactly one of its ids is set.
type Entry struct {
	OrderID   string `json:"order_id,omitempty"`
	PaymentID string `json:"payment_id,omitempty"`
	AccountID string `json:"account_id"`
	Amount    int64  `json:"amount"` // in minor units, above 0
	Currency  string `json:"currency"`
	Items     []Item `json:"items,omitempty"`
	Status    string `json:"status"`
}

// Item is a line of an order.
type Item struct {
	SKU string `json:"sku"`
	Qty int64  `json:"qty"`
}

// ID returns the id that is set.
func (e Entry) ID() string { return cmp.Or(e.OrderID, e.PaymentID) }

// location returns the path of an entry.
func location(e Entry) string {
	if e.OrderID != "" {
		return "/orders/" + e.OrderID
	}
	return "/payments/" + e.PaymentID
}

// ErrOutOfStock is what a Ledger returns for an order of more than there is.
var ErrOutOfStock = errors.New("refserver: there is not enough in stock")

// DemoStock returns how many pieces there are at first, by SKU. What it does
// not list is made to order, and never out of stock.
func DemoStock() map[string]int64 {
	return map[string]int64{"SKU-1": 1_000_000_000, "SKU-RARE": 10, "SKU-NONE": 0}
}

// Ledger is where orders and payments are booked: the effects of the API. It
// is safe for concurrent use.
type Ledger interface {
	// Add books an entry under its account and id, and takes the items of an
	// order from the stock: both or, if there is not enough, neither, with
	// [ErrOutOfStock]. An operation that runs again adds its entry again; that
	// must change nothing, unless the first time was undone with its attempt.
	Add(ctx context.Context, e Entry) error
	// List returns the entries of an account in the order of their booking.
	List(ctx context.Context, account string) ([]Entry, error)
	// Find returns the account's entry with the given id, and whether there is
	// one.
	Find(ctx context.Context, account, id string) (Entry, bool, error)
}

// Provider moves the money of payments somewhere else, where no transaction of
// ours reaches. Charges under one key are one charge and have one id. It is
// safe for concurrent use.
type Provider interface {
	Charge(ctx context.Context, key string, e Entry) (id string, err error)
}

// memoryLedger is a Ledger that lives as long as the process.
type memoryLedger struct {
	mu    sync.RWMutex
	books map[string]*book // by account
	stock map[string]int64 // by SKU
}

func newMemoryLedger() *memoryLedger {
	return &memoryLedger{books: make(map[string]*book), stock: DemoStock()}
}

type book struct {
	entries []Entry
	index   map[string]int // by id
}

func (l *memoryLedger) Add(_ context.Context, e Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.books[e.AccountID]
	if b == nil {
		b = &book{index: make(map[string]int)}
		l.books[e.AccountID] = b
	}
	if _, booked := b.index[e.ID()]; booked {
		return nil
	}
	if e.OrderID != "" && !l.take(e.Items) {
		return ErrOutOfStock
	}
	b.index[e.ID()] = len(b.entries)
	b.entries = append(b.entries, e)
	return nil
}

// take takes all items from the stock, or reports that it cannot.
func (l *memoryLedger) take(items []Item) bool {
	left := make(map[string]int64)
	for _, item := range items {
		qty, listed := l.stock[item.SKU]
		if !listed {
			continue
		}
		if before, taken := left[item.SKU]; taken {
			qty = before
		}
		if item.Qty > qty {
			return false
		}
		left[item.SKU] = qty - item.Qty
	}
	maps.Copy(l.stock, left)
	return true
}

func (l *memoryLedger) List(_ context.Context, account string) ([]Entry, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if b := l.books[account]; b != nil {
		return slices.Clone(b.entries), nil
	}
	return nil, nil
}

func (l *memoryLedger) Find(_ context.Context, account, id string) (Entry, bool, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if b := l.books[account]; b != nil {
		if i, booked := b.index[id]; booked {
			return b.entries[i], true, nil
		}
	}
	return Entry{}, false, nil
}

// memoryProvider is a Provider that lives as long as the process.
type memoryProvider struct {
	mu      sync.Mutex
	charges map[string]string // ids by key
}

func (p *memoryProvider) Charge(_ context.Context, key string, _ Entry) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.charges[key]; ok {
		return id, nil
	}
	if p.charges == nil {
		p.charges = make(map[string]string)
	}
	id := uuid.NewString()
	p.charges[key] = id
	return id, nil
}

// total sums entries of one kind in one currency.
type total struct {
	Count  int      `json:"count"`
	Amount *big.Int `json:"amount"` // in minor units
}

// totals sums orders and payments, each by currency.
func totals(entries []Entry) map[string]map[string]total {
	sums := map[string]map[string]total{"orders": {}, "payments": {}}
	for _, e := range entries {
		kind := sums["orders"]
		if e.PaymentID != "" {
			kind = sums["payments"]
		}
		sum := kind[e.Currency]
		if sum.Amount == nil {
			sum.Amount = new(big.Int)
		}
		sum.Count++
		sum.Amount.Add(sum.Amount, big.NewInt(e.Amount))
		kind[e.Currency] = sum
	}
	return sums
}
