package agent

import (
	"sync"

	"github.com/plumbline/plumbline/qos/filters"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
)

// podEntries are the own networks of the node's pods, as the follower of filters lists them. A list is made for each change of a pod of the
// node, so that of a pod that has its network is read again only after a pass that may have written it: one of many filters is megabytes.
// It implements reconcile.Recorder.
type podEntries struct {
	store interface {
		IDs() ([]reconcile.SandboxID, []error)
		Get(id reconcile.SandboxID) (reconcile.Record, bool, error)
	}
	listing sync.Mutex

	mu   sync.Mutex
	read map[reconcile.SandboxID]*claims.Entry // nil: being read, or of no pod of a cluster
}

func newPodEntries(base *hostengine.Base) *podEntries { return &podEntries{store: base.Store} }

// list lists them.
func (p *podEntries) list() []claims.Entry {
	p.listing.Lock()
	defer p.listing.Unlock()
	ids, _ := p.store.IDs() // damage is reported by the loop
	now := map[reconcile.SandboxID]*claims.Entry{}
	var unread []reconcile.SandboxID
	p.mu.Lock()
	before := p.read
	p.read = map[reconcile.SandboxID]*claims.Entry{}
	for _, id := range ids {
		if id.Origin().Container == "" {
			continue
		}
		e, known := before[id]
		if !known {
			unread = append(unread, id)
		}
		p.read[id], now[id] = e, e // before it is read: a pass from now on has it read again
	}
	p.mu.Unlock()
	for _, id := range unread {
		rec, known, err := p.store.Get(id)
		e, ok := filters.PodNetwork(&rec)
		if known && err == nil && ok {
			now[id] = &e
		}
		p.mu.Lock()
		switch _, unchanged := p.read[id]; {
		case !known || err != nil, ok && len(e.In) == 0: // another agent may attach it, whose passes nobody reports
			delete(p.read, id)
		case unchanged:
			p.read[id] = now[id]
		}
		p.mu.Unlock()
	}
	var out []claims.Entry
	for _, id := range ids {
		if e := now[id]; e != nil {
			out = append(out, *e)
		}
	}
	return out
}

// Pass implements reconcile.Recorder: all but a check may have written the record.
func (p *podEntries) Pass(pass reconcile.Pass) {
	if pass.Trigger != reconcile.TriggerCheck {
		p.Forget(pass.Sandbox)
	}
}

// Drift implements reconcile.Recorder.
func (*podEntries) Drift(reconcile.SandboxID, string, []reconcile.Drift) {}

// Forget implements reconcile.Recorder.
func (p *podEntries) Forget(id reconcile.SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.read, id)
}
