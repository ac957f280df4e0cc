package kernel_test

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestPortMappings: what is written is read back, for both families, all protocols, and one address or
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

// TestPortsOverlap: a port of one address of the host, and that of all addresses of its family, are one pod's,
// which may have both. A query for one of them returns the other. Of two pods at once one has it.
func TestPortsOverlap(t *testing.T) {
	b := newBench(t)
	mapping := func(host, to string) netstate.PortMapping {
		network := "192.0.2.0/24"
		if strings.HasPrefix(to, "[") {
			network = "2001:db8::/64"
		}
		return netstate.PortMapping{Host: host, To: &to, Network: &network}
	}
	all4, one4 := mapping("0.0.0.0:8080/tcp", "192.0.2.5:80"), mapping("198.51.100.1:8080/udp", "192.0.2.5:80")
	all6, one6 := mapping("[::]:8080/sctp", "[2001:db8::5]:80"), mapping("[2001:db8:1::1]:1/udp", "[2001:db8::5]:80")
	b.create(all4, one4, all6, one6)
	for host, has := range map[string]struct {
		to   string
		have netstate.PortMapping
	}{
		"198.51.100.1:8080/tcp":     {"192.0.2.9:80", all4},
		"0.0.0.0:8080/udp":          {"192.0.2.9:80", one4},
		"[2001:db8:1::1]:8080/sctp": {"[2001:db8::9]:80", all6},
		"[::]:1/udp":                {"[2001:db8::9]:80", one6},
	} {
		b.refused(fault.Conflict, netstate.Change{After: mapping(host, has.to)}, "host port "+host+" overlaps with "+has.have.Host+", which leads to "+*has.have.To+" already")
		b.absent(netstate.PortMapping{Host: host})
		if seen, ok := netstate.Lookup(b.observe(netstate.PortMapping{Host: host}), has.have); !ok || *seen.To != *has.have.To {
			t.Errorf("a query for %s does not find %s", host, has.have.Host)
		}
	}
	for _, free := range []netstate.PortMapping{
		mapping("198.51.100.1:8080/tcp", "192.0.2.5:81"), mapping("0.0.0.0:8080/udp", "192.0.2.5:81"), // its own
		mapping("[::]:8080/tcp", "[2001:db8::9]:80"), mapping("198.51.100.1:1/udp", "192.0.2.9:80"), // of the other family
		mapping("198.51.100.2:8080/sctp", "192.0.2.9:80"), mapping("198.51.100.3:8080/sctp", "192.0.2.7:80"), // other addresses
	} {
		b.create(free)
		b.holds(free)
	}
	b.remove(all4)
	b.remove(mapping("198.51.100.1:8080/tcp", "192.0.2.5:81"))
	b.create(mapping("198.51.100.1:8080/tcp", "192.0.2.9:80"))

	second := newBenchOn(t, b.host)
	for port := range 30 {
		errs := make(chan error)
		for _, c := range []struct {
			*kernel.Sandbox
			netstate.PortMapping
		}{
			{b.Sandbox, mapping(fmt.Sprintf("0.0.0.0:%d/tcp", 2000+port), "192.0.2.5:80")},
			{second.Sandbox, mapping(fmt.Sprintf("198.51.100.1:%d/tcp", 2000+port), "192.0.2.9:80")},
		} {
			go func() { errs <- c.Apply(t.Context(), netstate.Change{After: c.PortMapping}) }()
		}
		if one, other := <-errs, <-errs; (fault.Of(one) == fault.Conflict) == (fault.Of(other) == fault.Conflict) || one != nil && other != nil {
			t.Fatalf("two pods at once: %v and %v", one, other)
		}
	}
}

// TestPortsOfLoopback: packets of the loopback leave over the link of a pod as long as that has a port of the loopback,
// and while the table has the rules for it; what others do to that is seen; a link that is missing fails before the table has changed.
func TestPortsOfLoopback(t *testing.T) {
	b := newBench(t)
	ip := func(args ...string) { inNetns(t, b.hostNS, "ip", args...) }
	localnet := func(want string) {
		t.Helper()
		if have := strings.TrimSpace(inNetns(t, b.hostNS, "cat", "/proc/sys/net/ipv4/conf/pods0/route_localnet")); have != want {
			t.Errorf("route_localnet is %s, want %s", have, want)
		}
	}
	mapping := func(host, to, via string) netstate.PortMapping {
		return netstate.PortMapping{Host: host, To: &to, Network: new("192.0.2.0/24"), Via: &via}
	}
	one, two, other := mapping("127.0.0.1:8080/tcp", "192.0.2.5:80", "pods0"), mapping("127.0.0.1:8080/udp", "192.0.2.5:80", "pods0"), mapping("127.0.0.2:8080/tcp", "192.0.2.6:80", "pods0")
	b.refused(fault.NotReady, netstate.Change{After: one}, `the host has no link "pods0"`)
	b.absent(one)
	b.refused(fault.Invalid, netstate.Change{After: netstate.PortMapping{Host: one.Host, To: one.To, Network: one.Network}}, "needs IPv4, and the link that leads to the pod")

	ip("link", "add", "pods0", "type", "dummy")
	for _, m := range []netstate.PortMapping{one, two, other} {
		b.create(m)
		b.holds(m)
		b.create(m)
		localnet("1")
	}
	inNetns(t, b.hostNS, "sh", "-c", "echo 0 >/proc/sys/net/ipv4/conf/pods0/route_localnet")
	shut := one
	shut.Via = new("")
	b.holds(shut)
	b.update(netstate.PortMapping{Host: one.Host, Via: one.Via})
	b.holds(one)
	localnet("1")
	nftIn(t, b.hostNS, "flush", "set", "inet", "plumbline-ports", "localnet4")
	b.holds(shut)
	b.update(netstate.PortMapping{Host: one.Host, Via: one.Via})
	b.update(netstate.PortMapping{Host: other.Host, Via: other.Via})
	b.holds(one)
	b.holds(other)
	nftIn(t, b.hostNS, "flush", "chain", "inet", "plumbline-ports", "loopback")
	b.absent(one)
	b.create(one)
	b.holds(other)

	b.remove(one)
	localnet("1")
	b.remove(two)
	localnet("1") // the other pod has one
	b.remove(other)
	localnet("0")
	b.create(one)
	ip("link", "delete", "pods0")
	b.remove(one)
	if out := nftIn(t, b.hostNS, "list", "ruleset"); out != "" {
		t.Errorf("left behind:\n%s", out)
	}
}

// TestPortsTogether: many ports are changed at once, all of them or none. All pods of a node have a bounded number.
func TestPortsTogether(t *testing.T) {
	b := newBench(t)
	created := func(address string, ports, first int) (out []netstate.Change) {
		for i := range ports {
			out = append(out, netstate.Change{After: netstate.PortMapping{Host: fmt.Sprintf("%s:%d/tcp", address, first+i), To: new("192.0.2.5:80"), Network: new("192.0.2.0/24")}})
		}
		return out
	}
	deleted := func(changes []netstate.Change) (out []netstate.Change) {
		for _, c := range changes {
			out = append(out, netstate.Change{Before: c.After})
		}
		return out
	}
	apply := func(changes []netstate.Change) error {
		t.Helper()
		_, _, before := b.Counters()
		err := b.ApplyAll(b.ctx, changes)
		if _, _, after := b.Counters(); after-before != 1 {
			t.Errorf("%d changes at once took %d writes", len(changes), after-before)
		}
		return err
	}
	has := func(when string, want ...[]netstate.Change) {
		t.Helper()
		snap := netstate.NewSnapshot()
		if err := b.Extend(b.ctx, snap, []netstate.Object{netstate.PortMapping{}}); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, w := range want {
			n += len(w)
		}
		if have := len(netstate.All[netstate.PortMapping](snap)); have != n {
			t.Errorf("%s: %d ports, want %d", when, have, n)
		}
	}
	own := created("0.0.0.0", 600, 1000)
	if err := apply(own); err != nil {
		t.Fatal(err)
	}
	has("created", own)
	taken := append(created("0.0.0.0", 10, 2000), netstate.Change{After: netstate.PortMapping{Host: "0.0.0.0:1500/tcp", To: new("192.0.2.9:80"), Network: new("192.0.2.0/24")}})
	if err := apply(taken); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `create port-mapping "0.0.0.0:1500/tcp": host port 0.0.0.0:1500/tcp leads to 192.0.2.5:80 already`) {
		t.Errorf("one that another pod has: %v", err)
	}
	has("one was refused", own)
	nftIn(t, b.hostNS, "flush", "map", "inet", "plumbline-ports", "any4") // none is remembered that is not there
	has("another program has deleted all")
	if err := apply(own); err != nil {
		t.Fatal(err)
	}
	has("created again", own)
	const most = 16 << 10
	var all [][]netstate.Change
	for i := 0; len(own)+i*4096 <= most; i++ {
		all = append(all, created(fmt.Sprintf("198.51.100.%d", i), 4096, 10000))
	}
	last := all[len(all)-1]
	for _, some := range all[:len(all)-1] {
		if err := apply(some); err != nil {
			t.Fatal(err)
		}
	}
	if err := apply(last); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "and can have 16384: choose another node") {
		t.Errorf("more than a node can have: %v", err)
	}
	has("a full node", append(all[:len(all)-1], own)...)
	for _, some := range append(all, own) { // also those that are not there
		if err := apply(deleted(some)); err != nil {
			t.Error(err)
		}
	}
	has("deleted")
	if out := nftIn(t, b.hostNS, "list", "ruleset"); out != "" {
		t.Errorf("left behind:\n%s", out)
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
	beside := allocations(func() {
		for i := range n {
			b.refused(fault.Conflict, netstate.Change{After: netstate.PortMapping{Host: fmt.Sprintf("198.51.100.1:%d/tcp", 1024+i), To: new("10.1.0.1:80"), Network: new("10.1.0.0/24")}}, "overlaps with 0.0.0.0:")
		}
	})
	if beside > n*read/10 {
		t.Errorf("to compare %d ports with those of all addresses makes %d allocations", n, beside)
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
