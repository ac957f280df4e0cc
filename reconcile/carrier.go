package reconcile

import (
	"slices"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// announceEvery is the shortest time between two announcements of a sandbox for a carrier: a link may
// lose and get it any number of times.
const announceEvery = 5 * time.Second

// noCarrier describes the links of a sandbox without carrier.
type noCarrier struct {
	links     []string  // whose addresses no neighbor has been told of since
	announced time.Time // when those of such a link were last
}

// announceCarriers announces the addresses of links that have a carrier now and had none at an earlier pass:
// what was sent on them before is lost, and the kernel announces IPv6 addresses only. A notification of the
// kernel about the carrier has caused the pass. It returns after which time another pass is to announce what
// is too early now, 0 for none.
func (p *pass) announceCarriers(plan *ops.Plan) time.Duration {
	domain, ok := p.domain.(announcer)
	if !ok {
		return 0
	}
	now := p.r.opts.Now()
	p.r.mu.Lock()
	was := p.r.noCarrier[p.sandbox.ID]
	p.r.mu.Unlock()
	next := noCarrier{announced: was.announced}
	var lit []netstate.Addr
	for _, a := range plan.Announced(p.snapshot) {
		switch l, _ := p.snapshot.Link(a.Link); {
		case !l.Carrier:
			next.links = append(next.links, a.Link)
		case slices.Contains(was.links, a.Link):
			lit = append(lit, a)
		}
	}
	early := max(0, announceEvery-now.Sub(was.announced))
	switch {
	case len(p.executed) > 0 || len(lit) == 0: // a pass that has changed something has announced all of them
		early = 0
	case early > 0:
		for _, a := range lit {
			next.links = append(next.links, a.Link)
		}
	default:
		next.announced = now
		p.send(domain, lit)
	}
	slices.Sort(next.links)
	next.links = slices.Compact(next.links)
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if delete(p.r.noCarrier, p.sandbox.ID); len(next.links) > 0 || now.Sub(next.announced) < announceEvery {
		p.r.noCarrier[p.sandbox.ID] = next
	}
	return early
}
