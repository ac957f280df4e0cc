package kernel_test

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestPortMappings: what is written is what is read, for both families, all protocols, and one address or
// all; a port of another pod is not taken; with the last port the table is gone.
func TestPortMappings(t *testing.T) {
	b := newBench(t)
	hostNS := b.hostNS
	mapping := func(host, to, network string) netstate.PortMapping {
		return netstate.PortMapping{Host: host, To: &to, Network: &network}
	}
	all := []netstate.PortMapping{
		mapping("0.0.0.0:8080/tcp", "192.0.2.5:80", "192.0.2.0/24"),
		mapping("0.0.0.0:8080/udp", "192.0.2.6:80", "192.0.2.0/24"),
		mapping("0.0.0.0:8081/tcp", "192.0.2.5:80", "192.0.2.0/24"),
		mapping("198.51.100.1:8080/sctp", "192.0.2.5:65535", "192.0.2.0/24"),
		mapping("[::]:8080/tcp", "[2001:db8::5]:80", "2001:db8::/64"),
		mapping("[2001:db8:1::1]:1/udp", "[2001:db8::5]:80", "2001:db8::/64"),
	}
	for _, m := range all {
		b.absent(m)
		b.create(m)
		b.holds(m)
		b.create(m) // idempotent: a crash may have come between the change and the record
	}
	for _, m := range all {
		b.holds(m)
	}
	b.lists(all...)
	b.refused(fault.Conflict, netstate.Change{After: mapping("0.0.0.0:8080/tcp", "192.0.2.9:80", "192.0.2.0/24")}, "host port 0.0.0.0:8080/tcp leads to 192.0.2.5:80 already")
	b.update(mapping("0.0.0.0:8080/udp", "192.0.2.6:53", "192.0.0.0/16"))
	b.holds(mapping("0.0.0.0:8080/udp", "192.0.2.6:53", "192.0.0.0/16"))
	all[1] = mapping("0.0.0.0:8080/udp", "192.0.2.6:53", "192.0.0.0/16")

	nftIn(t, hostNS, "flush", "chain", "inet", "plumbline-ports", "output")
	b.absent(all[0])
	b.lists(all...) // none is sent on for sure, and all can be deleted
	b.create(all[0])
	for _, m := range all[2:] {
		b.holds(m)
	}
	nftIn(t, hostNS, "delete", "element", "inet", "plumbline-ports", "any6", "{ tcp . 8080 }")
	b.absent(all[4])
	b.create(all[4])

	for i, m := range all {
		b.remove(m)
		b.absent(m)
		b.remove(m)
		if i < len(all)-1 {
			b.holds(all[len(all)-1])
		}
	}
	if out := nftIn(t, hostNS, "list", "ruleset"); out != "" {
		t.Errorf("left behind:\n%s", out)
	}
	for text, m := range map[string]netstate.PortMapping{
		"is not ADDRESS:PORT/PROTOCOL": mapping("0.0.0.0:0/tcp", "192.0.2.5:80", "192.0.2.0/24"),
		"of the family of":             mapping("0.0.0.0:80/tcp", "[2001:db8::5]:80", "192.0.2.0/24"),
		"is not a prefix":              mapping("0.0.0.0:80/tcp", "192.0.2.5:80", "2001:db8::/64"),
		"leads nowhere":                {Host: "0.0.0.0:80/tcp"},
	} {
		b.refused(fault.Invalid, netstate.Change{After: m}, text)
	}
}

// lists checks that a query for all ports finds these.
func (b *bench) lists(want ...netstate.PortMapping) {
	b.Helper()
	snap := netstate.NewSnapshot()
	if err := b.Extend(b.ctx, snap, []netstate.Object{netstate.PortMapping{}}); err != nil {
		b.Fatal(err)
	}
	if got, want := netstate.All[netstate.PortMapping](snap), netstate.All[netstate.PortMapping](netstate.NewSnapshot(objects(want)...)); !reflect.DeepEqual(got, want) {
		b.Errorf("the table has %v, want %v", got, want)
	}
}

// TestPortsOfOthers: a table of the name that others have changed is neither deleted nor written again, and
// no pod has a port there.
func TestPortsOfOthers(t *testing.T) {
	b := newBench(t)
	hostNS := b.hostNS
	nftIn(t, hostNS, "add", "table", "inet", "plumbline-ports")
	nftIn(t, hostNS, "add", "chain", "inet", "plumbline-ports", "mine")
	m := netstate.PortMapping{Host: "0.0.0.0:8080/tcp", To: new("192.0.2.5:80"), Network: new("192.0.2.0/24")}
	b.absent(m)
	b.refused(fault.Conflict, netstate.Change{After: m}, `remove its chain "mine"`)
	b.remove(m)
	if out := nftIn(t, hostNS, "list", "ruleset"); !strings.Contains(out, "chain mine") {
		t.Errorf("what others have is gone:\n%s", out)
	}
}

// TestManyPorts: a port of a pod on a node full of pods with ports costs no read of all elements, unless another program
// has changed rules since; what that has changed is seen.
func TestManyPorts(t *testing.T) {
	b := newBench(t)
	hostNS := b.hostNS
	mapping := func(port int) netstate.PortMapping {
		return netstate.PortMapping{Host: fmt.Sprintf("0.0.0.0:%d/tcp", port), To: new("10.1.0.1:80"), Network: new("10.1.0.0/24")}
	}
	b.create(mapping(1))
	const pods, ports = 110, 32
	elements := map[string][]string{}
	for pod := range pods {
		for p := range ports {
			port := 1024 + pod*ports + p
			elements["any4"] = append(elements["any4"], fmt.Sprintf("tcp . %d : 10.1.0.%d . 80", port, pod+2))
			elements["any6"] = append(elements["any6"], fmt.Sprintf("tcp . %d : 2001:db8::%x . 80", port, pod+2))
		}
		elements["hairpins4"] = append(elements["hairpins4"], fmt.Sprintf("10.1.0.0/24 . 10.1.0.%d", pod+2))
		elements["hairpins6"] = append(elements["hairpins6"], fmt.Sprintf("2001:db8::/64 . 2001:db8::%x", pod+2))
	}
	for set, list := range elements {
		for some := range slices.Chunk(list, 1000) {
			nftIn(t, hostNS, "add", "element", "inet", "plumbline-ports", set, "{ "+strings.Join(some, ", ")+" }")
		}
	}
	last := netstate.PortMapping{Host: fmt.Sprintf("0.0.0.0:%d/tcp", 1024+pods*ports-1), To: new(fmt.Sprintf("10.1.0.%d:80", pods+1)), Network: new("10.1.0.0/24")}
	// allocations are those of f: each element that is read costs some.
	allocations := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	read := allocations(func() { b.holds(last) })
	const n = 10
	created := allocations(func() {
		for i := range n {
			b.create(mapping(2 + i))
		}
	})
	again := allocations(func() { b.holds(last) })
	t.Logf("a read of all ports makes %d allocations, %d new ports %d, a check %d", read, n, created, again)
	if read < pods*ports || created > n*read/10 || again > read/10 {
		t.Errorf("a read of all ports makes %d allocations, %d new ports %d, a check %d", read, n, created, again)
	}
	for i := range n {
		b.holds(mapping(2 + i))
	}
	nftIn(t, hostNS, "delete", "element", "inet", "plumbline-ports", "any4", "{ tcp . 3 }")
	b.absent(mapping(3))
	b.create(mapping(3))
	b.holds(last)
	if out := nftIn(t, hostNS, "get", "element", "inet", "plumbline-ports", "any4", "{ tcp . 3 }"); !strings.Contains(out, "10.1.0.1 . 80") {
		t.Errorf("the port is %s", out)
	}
	b.remove(mapping(3))
	b.absent(mapping(3))
	b.holds(mapping(4))
	nftIn(t, hostNS, "delete", "table", "inet", "plumbline-ports")
	b.absent(last)
}
