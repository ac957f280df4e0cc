package kernel

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// settleAfter is the time for which a partner has to agree after it did not. The kernel's
// LACP needs two seconds to use a port again (bond_3ad.c, AD_AGGREGATE_WAIT_TIME), so without
// a delay a partner that comes and goes could change the carrier of all pods on the port every
// few seconds. It also keeps the changes of one field below what is taken for contention.
const settleAfter = 5 * time.Second

// A partner that is lost again soon, within calmAfter of the time when it counted as stable, has
// to agree for twice as long the next time, settleMost at most: one that comes and goes would
// change the carrier of all pods on the port for as long as it pleases
// (docs/adr/0049).
const (
	calmAfter  = time.Minute
	settleMost = 32 * settleAfter
)

// lacpPorts remembers when the partners of physical functions agreed, which the kernel does
// not report. A port that was never seen without agreement has no time: a process that has just
// started delays nothing.
type lacpPorts struct {
	now func() time.Time

	mu sync.Mutex
	of map[string]agreement // by physical function
}

type agreement struct {
	agreed  bool
	since   time.Time     // zero: not known
	settles time.Duration // how long it has to agree before it counts as stable
}

// change notes that a partner agrees, or no longer does.
func (a *agreement) change(now time.Time) {
	if a.agreed {
		early := !a.since.IsZero() && now.Sub(a.since) < a.settles+calmAfter
		if !early {
			a.settles = settleAfter
		} else {
			a.settles = min(2*a.settles, settleMost)
		}
	}
	a.agreed, a.since = !a.agreed, now
}

// port returns the state of a physical function in LACP, nil if it is not the port of a bond
// with LACP.
func (p *lacpPorts) port(id string, w ifLink) *netstate.LACPPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := lacpOf(w)
	if state == nil {
		delete(p.of, id)
		return nil
	}
	was, seen := p.of[id]
	switch {
	case !seen:
		was = agreement{agreed: state.Agreed, settles: settleAfter}
	case was.agreed != state.Agreed:
		was.change(p.now())
	}
	p.of[id] = was
	if state.Agreed && !was.since.IsZero() {
		// Rounded up, so that it is not 0 too early.
		state.SettlesMillis = uint32((max(0, was.settles-p.now().Sub(was.since)) + time.Millisecond - 1) / time.Millisecond)
	}
	return state
}

func lacpOf(w ifLink) *netstate.LACPPort {
	if w.port != "bond" || len(w.raw) < unix.SizeofIfInfomsg {
		return nil
	}
	port := decodeBondPort(attribute(w.raw[unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO))
	if !port.LACP {
		return nil
	}
	return &netstate.LACPPort{Agreed: port.Partner && w.link.Carrier}
}
