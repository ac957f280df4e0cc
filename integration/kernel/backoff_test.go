package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
)

// refusing is a Domain that refuses to create a link of one name, and says when.
type refusing struct {
	reconcile.Domain
	refused func(reconcile.NetnsID)
}

func (r refusing) Apply(ctx context.Context, c netstate.Change) error {
	if l, ok := c.After.(netstate.Link); ok && l.Name == "refused" {
		r.refused(r.NetnsID())
		return errors.New("operation not permitted")
	}
	return r.Domain.Apply(ctx, c)
}

// TestBackoff: sandboxes whose passes fail are tried as seldom as their backoff says, whatever the kernel notifies of: the links
// or the function of each pass and of its rollback, or links of a writer that never stops. A slower machine tries them more seldom.
func TestBackoff(t *testing.T) {
	const (
		observed = 25 * time.Second
		// Until then, nine passes by the backoff from 0.1 s, five that notifications cause in a row, and one of them each ten
		// seconds.
		most = 9 + 5 + 3
		// A loop that answers its own notifications makes as many in a few seconds.
		tooMany = 3 * most
	)
	l, dir := newLane(t), t.TempDir()
	var mu sync.Mutex
	passes := map[reconcile.NetnsID]int{}
	r := l.engine(func(d reconcile.Domain) reconcile.Domain {
		return refusing{d, func(of reconcile.NetnsID) {
			mu.Lock()
			defer mu.Unlock()
			passes[of]++
		}}
	})
	boxes := map[string]string{} // paths by name
	describe := func(name, step string, devices map[string]string) {
		boxes[name] = newNetns(t)
		file := fmt.Sprintf("netns: %s\n", boxes[name])
		for step, id := range devices {
			file += fmt.Sprintf("devices: {%s: %q}\n", step, id)
		}
		file += "topology:\n  apiVersion: networking.dra.io/v1alpha1\n  kind: NetworkTopology\n  metadata: {name: t}\n  spec:\n    steps:\n" +
			"    - " + step + "\n    - {name: refused, type: dummy, config: {name: refused}}\n"
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const links = "{name: a, type: dummy, config: {name: net1}}"
	describe("links", links, nil)
	describe("writer", links, nil)
	if hasCards() {
		describe("function", "{name: a, type: sriov, config: {name: net1}}", functions(t, map[string]string{"a": "enp3s0f0/0"}))
	}
	tried := func(name string) int {
		d, err := open(l.host, boxes[name])
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		mu.Lock()
		defer mu.Unlock()
		return passes[d.NetnsID()]
	}
	start := map[string]*netstate.Snapshot{}
	for name, path := range boxes {
		start[name] = l.state(path)
	}
	another := netstate.Change{After: netstate.Link{Name: "another", LinkKind: "dummy"}}
	began := time.Now()
	l.loopOf(dir, time.Minute, r)
	eventually.True(t, patience, "the time is over, or there were too many passes", func() bool {
		l.disturb(boxes["writer"], another, netstatetest.Inverse(another))
		for name := range boxes {
			if tried(name) > tooMany {
				return true
			}
		}
		return time.Since(began) > observed
	})
	for name := range boxes {
		t.Logf("%s: %d passes in %s", name, tried(name), time.Since(began).Round(time.Millisecond))
		if got := tried(name); got > most || got == 0 {
			t.Errorf("%s: %d passes, want at least one, and %d at most", name, got, most)
		}
		if err := os.Remove(filepath.Join(dir, name+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	l.await("nothing is left of the sandboxes", func() bool { ids, _ := r.IDs(); return len(ids) == 0 })
	for name, path := range boxes {
		l.mustEqual(start[name], path, name)
	}
}
