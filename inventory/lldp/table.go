package lldp

import (
	"maps"
	"strings"
	"time"

	"github.com/plumbline/plumbline/inventory"
)

// The times after which received frames are accepted. Speakers send every 30 s, with a TTL
// of 120 s (802.1AB-2016, 9.2.5).
const (
	// waitFor is the time without frames after which a port has no neighbour.
	waitFor = 90 * time.Second
	// settle is the time for which a new value has to be the only one received, so that a
	// neighbour with a new name each second does not cause a write each second.
	settle = time.Minute
	// minTTL and maxTTL bound a time to live: a speaker that leaves and returns each
	// second would else cause a write each time.
	minTTL, maxTTL = time.Minute, time.Hour
	// contested is the time for which a sender counts beside another one. While a port without a known neighbour
	// has two, none of them is accepted.
	contested   = 2 * time.Minute
	maxSpeakers = 8
)

// Table holds the known neighbours of the ports of a node. It has no clock: callers pass
// the time.
//
// A known neighbour stays until its TTL has expired, or until it has sent other values for a
// while. Meanwhile frames of other senders are ignored: a pod on a virtual function can send
// frames that reach the PF. If none is known and there are two, it is undecided who is at the wire.
type Table struct {
	ports map[string]*port
}

// port is one port that is listened to.
type port struct {
	carrier bool
	since   time.Time // it has had a carrier
	known   *inventory.Neighbour
	speaker string    // who said it, "" if it is remembered
	until   time.Time // it holds
	next    *inventory.Neighbour
	from    time.Time // next has been heard
	// heard are the sources of frames, and when the last one came, of at most maxSpeakers.
	heard map[string]time.Time
}

// hears notes a source, and reports whether there is another one.
func (p *port) hears(source string, now time.Time) (others bool) {
	if p.heard == nil {
		p.heard = map[string]time.Time{}
	}
	maps.DeleteFunc(p.heard, func(_ string, at time.Time) bool { return now.Sub(at) >= contested })
	if _, known := p.heard[source]; known || len(p.heard) < maxSpeakers {
		p.heard[source] = now
	}
	return len(p.heard) > 1
}

// Seed remembers what was known of a port before, as by an earlier agent, until it has been
// listened to for long enough.
func (t *Table) Seed(name string, n inventory.Neighbour, now time.Time) {
	if t.ports == nil {
		t.ports = map[string]*port{}
	}
	t.ports[name] = &port{known: &n, until: now.Add(waitFor), since: now}
}

// Follow sets the ports that are listened to, and which of them have a carrier. Without one
// nothing is heard, and who is there may be another when it returns.
func (t *Table) Follow(carrier map[string]bool, now time.Time) {
	if t.ports == nil {
		t.ports = map[string]*port{}
	}
	maps.DeleteFunc(t.ports, func(name string, p *port) bool {
		_, followed := carrier[name]
		return !followed && (p.speaker != "" || !now.Before(p.until))
	})
	for name, has := range carrier {
		p := t.ports[name]
		if p == nil {
			p = &port{}
			t.ports[name] = p
		}
		if has && !p.carrier {
			p.since, p.until = now, now.Add(waitFor)
			p.speaker, p.next, p.heard = "", nil, nil
		}
		p.carrier = has
	}
}

// Heard takes a frame of a port, and reports whether what is known has changed.
func (t *Table) Heard(name string, f Frame, now time.Time) bool {
	p := t.ports[name]
	if p == nil {
		return false
	}
	until := now.Add(min(max(f.TTL, minTTL), maxTTL))
	if p.known != nil && !now.Before(p.until) {
		p.known, p.next = nil, nil
	}
	switch {
	case f.TTL == 0: // the speaker will be silent
		if p.known != nil && p.speaker == f.Speaker && until.Before(p.until) {
			p.until = until
		}
		return false
	case p.hears(source(f.Speaker), now) && p.known == nil:
		return false
	case p.known == nil:
	case *p.known == f.Neighbour && (p.speaker == "" || p.speaker == f.Speaker):
		p.speaker, p.until, p.next = f.Speaker, until, nil
		return false
	case p.speaker != "" && source(p.speaker) != source(f.Speaker):
		return false
	case p.next == nil || *p.next != f.Neighbour:
		n := f.Neighbour
		p.next, p.from = &n, now
		p.until = until // somebody is there, though it does not say what
		return false
	case now.Sub(p.from) < settle:
		p.until = until
		return false
	}
	n := f.Neighbour
	p.known, p.speaker, p.until, p.next = &n, f.Speaker, until, nil
	return true
}

// among is how many sources there are.
func (p *port) among(now time.Time) (n int) {
	for _, at := range p.heard {
		if now.Sub(at) < contested {
			n++
		}
	}
	return n
}

// Speaker is the address of the known neighbour of a port, "" for none.
func (t *Table) Speaker(name string, now time.Time) string {
	p := t.ports[name]
	if p == nil || p.known == nil || !now.Before(p.until) {
		return ""
	}
	return source(p.speaker)
}

// source is the address from which a speaker sends.
func source(speaker string) string {
	from, _, _ := strings.Cut(speaker, "/")
	return from
}

// Known returns the neighbour of a port: nil while it is undecided, and an empty one if no neighbour sends LLDP.
func (t *Table) Known(name string, now time.Time) *inventory.Neighbour {
	p := t.ports[name]
	switch {
	case p == nil:
		return nil
	case p.known != nil && (now.Before(p.until) || !p.carrier):
		n := *p.known
		return &n
	case p.among(now) > 1:
		return nil
	case p.carrier && now.Sub(p.since) >= waitFor:
		return &inventory.Neighbour{}
	}
	return nil
}
