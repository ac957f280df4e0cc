package kernel

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/netns"
)

// TestDriverCounters: of a pod's interfaces those of hardware have the counters of their drivers that ethtool -S prints, and others, and
// those of another namespace at the path, have none.
func TestDriverCounters(t *testing.T) {
	if !hasCards() {
		return
	}
	l := newLane(t)
	path := newNetns(t)
	s := box(path, parse(t, "t", `
    - {name: vf, type: sriov, config: {name: rail0}}
    - {name: d, type: dummy, config: {name: d0}}
`))
	s.Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"vf": "enp3s0f0/1"}))
	engine := l.engine(nil)
	if _, err := engine.Ensure(ctxFor(t), s); err != nil {
		t.Fatal(err)
	}
	id, err := netns.At(path)
	if err != nil {
		t.Fatal(err)
	}
	pod := &foreignWriter{t, filepath.Base(path), ""}
	indexOf := func(name string) int {
		number, _, _ := strings.Cut(pod.run("ip -n $NS -o link show "+name), ":")
		index, err := strconv.Atoi(number)
		if err != nil {
			t.Fatal(err)
		}
		return index
	}
	rail0 := indexOf("rail0")
	all := l.host.DriverCounters(path, id, []int{rail0, indexOf("d0"), 1 << 20})
	got := all[rail0]
	if len(all) != 1 {
		t.Errorf("counters of %d interfaces: %v", len(all), all)
	}
	printed := pod.run("ip netns exec $NS ethtool -S rail0")
	names := regexp.MustCompile(`(?m)^ +(\S.*): [0-9]+$`).FindAllStringSubmatch(printed, -1)
	if len(names) == 0 || len(names) != len(got) {
		t.Errorf("%d counters, ethtool prints %d:\n%s", len(got), len(names), printed)
	}
	for _, n := range names {
		if _, there := got[n[1]]; !there {
			t.Errorf("no counter %q in %v", n[1], got)
		}
	}
	// The pauses of a virtual function are those of its port, which this card's driver counts for the physical one.
	pf := l.host.PhysicalFunction(s.Given["vf"].Device)
	if at := l.host.PhysicalCounters([]string{pf, "0000:ff:1f.7"}); len(at) != 1 || len(at[pf]) == 0 {
		t.Errorf("the physical function %q has the counters %v", pf, at)
	} else if _, there := at[pf]["rx_flow_control_xoff"]; !there {
		t.Errorf("no pauses in %v", at[pf])
	}
	id.Inode++
	if got := l.host.DriverCounters(path, id, []int{rail0}); len(got) != 0 {
		t.Errorf("of another namespace: %v", got)
	}
	if _, err := engine.Release(ctxFor(t), s.ID); err != nil {
		t.Fatal(err)
	}
}
