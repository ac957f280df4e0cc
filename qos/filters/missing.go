package filters

import (
	"slices"
	"strings"
	"sync"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/table"
)

// Missing knows in which sandboxes the kernel, or OVN, does not have the rules of NetworkQoS objects: somebody has removed
// them, and they are only observed, cannot be restored, or are removed after each repair. It is a recorder of the engine
// and of the loop, and changes with what it knows.
type Missing struct {
	table.Changes

	mu    sync.Mutex
	of    map[reconcile.SandboxID]map[string]string // what the last pass has found, by rule; "" is of all rules
	again map[reconcile.SandboxID]string            // what another writer changes back
}

// NewMissing returns a Missing that knows of nothing.
func NewMissing() *Missing {
	return &Missing{of: map[reconcile.SandboxID]map[string]string{}, again: map[reconcile.SandboxID]string{}}
}

// enforces reports whether rules are not in place while an object of a sandbox differs.
func enforces(o netstate.Key, action netstate.Action, field string) bool {
	switch o.Kind {
	case netstate.KindFilter, netstate.KindClsact, netstate.KindLogicalRule, netstate.KindLogicalPort, netstate.KindOVSPort:
		return true
	case netstate.KindLink: // its filters go with it
		return action == netstate.Create || action == netstate.Replace
	case netstate.KindVF:
		return field == "maxTxRate"
	default:
		return false
	}
}

// Drift implements reconcile.Recorder. The last call in a repair has the drift that the repair left.
func (m *Missing) Drift(id reconcile.SandboxID, _ string, drift []reconcile.Drift) {
	var of map[string]string
	for _, d := range drift {
		if !enforces(d.Object, d.Action, d.Field) {
			continue
		}
		if of == nil {
			of = map[string]string{}
		}
		if _, known := of[d.Of]; !known {
			of[d.Of] = d.String()
		}
	}
	m.set(id, of)
}

// Pass implements reconcile.Recorder. An applied plan was verified.
func (m *Missing) Pass(p reconcile.Pass) {
	if p.Trigger == reconcile.TriggerEnsure && p.Outcome == "" {
		m.set(p.Sandbox, nil)
	}
}

// Contended implements node.Recorder.
func (m *Missing) Contended(id reconcile.SandboxID, _ string, contended []reconcile.Contention) {
	said := ""
	if i := slices.IndexFunc(contended, func(c reconcile.Contention) bool { return enforces(c.Object, c.Action, c.Field) }); i >= 0 {
		said = contended[i].String()
	}
	m.mu.Lock()
	same := m.again[id] == said
	if m.again[id] = said; said == "" {
		delete(m.again, id)
	}
	m.mu.Unlock()
	if !same {
		m.Changed()
	}
}

// Forget implements reconcile.Recorder.
func (m *Missing) Forget(id reconcile.SandboxID) {
	m.Contended(id, "", nil)
	m.set(id, nil)
}

func (m *Missing) set(id reconcile.SandboxID, of map[string]string) {
	m.mu.Lock()
	same := len(m.of[id]) == 0 && len(of) == 0
	if m.of[id] = of; len(of) == 0 {
		delete(m.of, id)
	}
	m.mu.Unlock()
	if !same {
		m.Changed()
	}
}

// why returns why the rules of an object are not in place in a sandbox, "" if they are as far as is known.
func (m *Missing) why(id reconcile.SandboxID, p *qos.Policy) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if said := m.again[id]; said != "" {
		return said
	}
	first := ""
	for rule, said := range m.of[id] {
		if (rule == "" || strings.HasPrefix(rule, p.Key.String()+"[")) && (first == "" || said < first) {
			first = said
		}
	}
	return first
}
