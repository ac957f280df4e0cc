package agent

import (
	"fmt"
	"testing"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
)

// countedStore counts how often records are read.
type countedStore struct {
	records map[reconcile.SandboxID]reconcile.Record
	reads   int
	reading func(id reconcile.SandboxID)
}

func (s *countedStore) IDs() (out []reconcile.SandboxID, _ []error) {
	for id := range s.records {
		out = append(out, id)
	}
	return out, nil
}

func (s *countedStore) Get(id reconcile.SandboxID) (reconcile.Record, bool, error) {
	s.reads++
	if s.reading != nil {
		s.reading(id)
	}
	rec, ok := s.records[id]
	return rec, ok, nil
}

// TestPodEntries holds that a list of the own networks of pods reads the records that a pass may have written since the last one, and no
// others, however many pods there are; that none is missing while a pass writes one; and that those of ended pods are not kept.
func TestPodEntries(t *testing.T) {
	store := &countedStore{records: map[reconcile.SandboxID]reconcile.Record{}}
	p := &podEntries{store: store}
	put := func(n int, phase reconcile.Phase) reconcile.SandboxID {
		id := reconcile.IDOfPrimary(fmt.Sprint("c", n), "eth0", "pods")
		store.records[id] = reconcile.Record{Phase: phase, Sandbox: reconcile.Sandbox{
			ID: id, Pod: &reconcile.Pod{Namespace: "ns", Name: fmt.Sprint("p", n), UID: "u"}, Topology: &topology.Topology{Name: "pods"},
		}}
		return id
	}
	const pods = 250
	var first reconcile.SandboxID
	for n := range pods {
		id := put(n, reconcile.Applied)
		if n == 0 {
			first = id
		}
	}
	store.records["s/c/rail"] = reconcile.Record{} // of a claim
	listed := func(what string, want, reads int) []claims.Entry {
		t.Helper()
		store.reads = 0
		out := p.list()
		if len(out) != want || store.reads != reads {
			t.Errorf("%s: %d entries from %d records, want %d from %d", what, len(out), store.reads, want, reads)
		}
		return out
	}
	attached := func(entries []claims.Entry) (n int) {
		for i := range entries {
			n += len(entries[i].In)
		}
		return n
	}
	listed("at the start", pods, pods)
	listed("without a change", pods, 0)
	p.Pass(reconcile.Pass{Sandbox: first, Trigger: reconcile.TriggerCheck})
	listed("after a check", pods, 0)
	put(0, reconcile.Failed)
	p.Pass(reconcile.Pass{Sandbox: first, Trigger: reconcile.TriggerRepair})
	if out := listed("after a repair", pods, 1); attached(out) != pods-1 {
		t.Errorf("%d are attached after one has failed", attached(out))
	}
	// A pass ends while its record is read: the list has it, and the next one reads it again.
	p.Pass(reconcile.Pass{Sandbox: first, Trigger: reconcile.TriggerRepair})
	store.reading = func(id reconcile.SandboxID) { p.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerRepair}) }
	listed("while a pass writes", pods, 1)
	store.reading = nil
	put(0, reconcile.Applied)
	if out := listed("after that", pods, 1); attached(out) != pods {
		t.Errorf("%d are attached", attached(out))
	}
	// The agent before this one ends what it had begun: no pass of ours says so.
	put(0, reconcile.Applying)
	p.Pass(reconcile.Pass{Sandbox: first, Trigger: reconcile.TriggerEnsure})
	listed("while another agent attaches", pods, 1)
	put(0, reconcile.Applied)
	if out := listed("after another agent has", pods, 1); attached(out) != pods {
		t.Errorf("%d are attached after another agent has attached one", attached(out))
	}
	listed("without a change", pods, 0)
	delete(store.records, first)
	p.Forget(first)
	listed("one has ended", pods-1, 0)
	if len(p.read) != pods-1 {
		t.Errorf("%d are kept", len(p.read))
	}
}
