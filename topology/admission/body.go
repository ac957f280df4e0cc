package admission

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// errBusy is the error of a body for which there is no room.
var errBusy = errors.New("too many requests at a time")

// budget is the memory that the bodies of requests may take. When there is none left, the client host that has most of
// it loses that of the body that has been incomplete for longest: one of an API server is complete within milliseconds.
type budget struct {
	mu         sync.Mutex
	free       int
	freed      chan struct{}  // closed, and replaced, when memory is
	incomplete list.List      // of *body, the oldest first
	held       map[string]int // by the host of the client, bytes of all its bodies
}

func newBudget(bytes int) *budget {
	return &budget{free: bytes, freed: make(chan struct{}), held: map[string]int{}}
}

// body is one of a request. It can be read once it is complete.
type body struct {
	of        *budget
	host      string // of the client
	interrupt func() // makes the read in progress fail
	parts     [][]byte

	// Under of.mu.
	reserved int
	at       *list.Element // in of.incomplete; nil when it is complete or evicted
	evicted  chan struct{} // closed when others have got its memory
}

func (b *budget) begin(host string, interrupt func()) *body {
	d := &body{of: b, host: host, interrupt: interrupt, evicted: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	d.at = b.incomplete.PushBack(d)
	return d
}

// end gives the memory back.
func (d *body) end() {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	d.leave()
	d.giveBack()
}

// leave makes it one that is not incomplete. The caller holds of.mu.
func (d *body) leave() {
	if d.at != nil {
		d.of.incomplete.Remove(d.at)
		d.at = nil
	}
}

// giveBack wakes those who wait for memory. The caller holds of.mu.
func (d *body) giveBack() {
	if d.reserved == 0 {
		return
	}
	d.of.free += d.reserved
	if d.of.held[d.host] -= d.reserved; d.of.held[d.host] == 0 {
		delete(d.of.held, d.host)
	}
	d.reserved = 0
	close(d.of.freed)
	d.of.freed = make(chan struct{})
}

// read reads all of it, as memory and time permit.
func (d *body) read(ctx context.Context, r io.Reader, size int) error {
	defer context.AfterFunc(ctx, d.interrupt)()
	for part := firstPart; size > 0; part = min(2*part, lastPart) {
		buf := min(part, size)
		if err := d.reserve(ctx, buf); err != nil {
			return err
		}
		if err := d.readPart(r, buf); err != nil {
			select {
			case <-d.evicted:
				return errBusy
			default:
				return fmt.Errorf("read the request: %w", err)
			}
		}
		size -= buf
	}
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	if d.at == nil {
		return errBusy
	}
	d.leave()
	return nil
}

func (d *body) readPart(r io.Reader, bytes int) error {
	late := time.AfterFunc(partWithin, d.interrupt)
	defer late.Stop()
	part := make([]byte, bytes)
	if _, err := io.ReadFull(r, part); err != nil {
		return err
	}
	d.parts = append(d.parts, part)
	if !late.Stop() {
		return context.DeadlineExceeded
	}
	return nil
}

// reserve waits for memory of the budget until ctx ends.
func (d *body) reserve(ctx context.Context, bytes int) error {
	for {
		freed, err := d.tryReserve(bytes)
		if freed == nil {
			return err
		}
		select {
		case <-freed:
		case <-d.evicted:
			return errBusy
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errBusy, context.Cause(ctx))
		}
	}
}

// tryReserve reserves memory, or returns what to wait for: no other body may lose its own.
func (d *body) tryReserve(bytes int) (freed <-chan struct{}, err error) {
	b := d.of
	b.mu.Lock()
	defer b.mu.Unlock()
	for d.at != nil && b.free < bytes {
		other := b.evictable(d, bytes)
		if other == nil {
			return b.freed, nil
		}
		other.evict()
	}
	if d.at == nil {
		return nil, errBusy
	}
	b.free -= bytes
	b.held[d.host] += bytes
	d.reserved += bytes
	return nil, nil
}

// evictable is the body that loses its memory to another one, which needs some bytes: the oldest of those that are
// incomplete, of the host that has most. A host that would have most itself takes from its own bodies only.
func (b *budget) evictable(to *body, bytes int) *body {
	var found *body
	most := 0
	for e := b.incomplete.Front(); e != nil; e = e.Next() {
		d := e.Value.(*body)
		if d == to || d.reserved == 0 || d.host != to.host && b.held[d.host] < b.held[to.host]+bytes {
			continue
		}
		if held := b.held[d.host]; held > most {
			found, most = d, held
		}
	}
	return found
}

// evict gives the memory of an incomplete body to others. The caller holds of.mu.
func (d *body) evict() {
	d.leave()
	d.giveBack()
	close(d.evicted)
	d.interrupt()
}

// Read implements io.Reader.
func (d *body) Read(p []byte) (int, error) {
	if len(d.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, d.parts[0])
	if d.parts[0] = d.parts[0][n:]; len(d.parts[0]) == 0 {
		d.parts = d.parts[1:]
	}
	return n, nil
}
