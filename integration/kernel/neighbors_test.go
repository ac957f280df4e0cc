package kernel

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/reconcile"
)

// neighborCase is a pod that has addresses on a link, and a neighbor on the other end of nb0, or beyond the bridge nbbr.
type neighborCase struct {
	name, steps string
	link        string // of the pod
	dev         string // of the neighbor, nb1 or a VLAN on it
	deleted     []string
}

const bothFamilies = `addresses: [192.0.2.5/24, "2001:db8:5::5/64"]`

func neighborCases() []neighborCase {
	one := func(name, config string) neighborCase {
		typ, _, _ := strings.Cut(name, " ")
		return neighborCase{name, "    - {name: net, type: " + typ + ", config: {" + config + ", " + bothFamilies + "}}\n", "net1", "nb1", []string{"net1"}}
	}
	vlan := "    - {name: v, type: vlan, dependOn: [%s], config: {id: 7, name: v7, " + bothFamilies + "}}\n"
	ports := "    - {name: a, type: bridge, config: {bridge: nbbr, ifName: p0}}\n    - {name: b, type: bridge, config: {bridge: nbbr, ifName: p1}}\n" +
		"    - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 50%s}}\n"
	return []neighborCase{
		one("macvlan", "master: nb0"), one("macvlan without dad", "master: nb0, dad: off"), one("ipvlan", "master: nb0, mode: l2"), one("bridge", "bridge: nbbr"),
		{"vlan", "    - {name: net, type: macvlan, config: {master: nb0}}\n" + fmt.Sprintf(vlan, "net"), "v7", "nb1.7", []string{"v7", "net1"}},
		{"bond", fmt.Sprintf(ports, ", "+bothFamilies), "bond0", "nb1", []string{"bond0", "p0"}},
		{"vlan on bond", fmt.Sprintf(ports, "") + fmt.Sprintf(vlan, "bond"), "v7", "nb1.7", []string{"v7", "bond0", "p1"}},
	}
}

// TestNeighbors: a neighbor that knows an address by the MAC of a pod that has ended knows that of the
// pod that has it now, of both families, and reaches it: after attaching, and after a repair that makes the link
// or one below it again, which keeps its MAC. A neighbor's entry is as if it had just been confirmed, so it asks nobody.
func TestNeighbors(t *testing.T) {
	for _, c := range effort.Sample(t, 7, neighborCases()) {
		t.Run(c.name, c.run)
	}
}

func (c neighborCase) run(t *testing.T) {
	l, path, neighbor := newLane(t), newNetns(t), newNetns(t)
	s := &foreignWriter{t: t, ns: filepath.Base(path), other: filepath.Base(neighbor)}
	t.Cleanup(func() { s.run("(ip link delete nb0; ip link delete nbbr) 2>/dev/null || true") })
	s.run(`ip link add nb0 type veth peer name nb1 && ip link set nb0 up && ip link set nb1 netns $OTHER && ip -n $OTHER link set nb1 up
		ip -n $OTHER link add nb1.7 link nb1 type vlan id 7 && ip -n $OTHER link set nb1.7 up
		ip -n $OTHER address add 192.0.2.9/24 dev ` + c.dev + ` && ip -n $OTHER address add 2001:db8:5::9/64 dev ` + c.dev + ` nodad`)
	if strings.Contains(c.steps, "nbbr") {
		s.run("ip link add nbbr type bridge && ip link set nbbr up && ip link set nb0 master nbbr")
	}
	sb := box(path, parse(t, "t", c.steps))
	ips := []string{"192.0.2.5", "2001:db8:5::5"}
	dead := func() {
		for _, ip := range ips {
			s.run(fmt.Sprintf("ip -n $OTHER neigh replace %s lladdr 02:00:00:00:00:dd dev %s nud reachable", ip, c.dev))
		}
	}
	mac := func() string {
		return strings.TrimSpace(s.run("$ip -o link show dev " + c.link + " | sed 's/.*link.ether \\([^ ]*\\).*/\\1/'"))
	}
	known := func(when string) {
		t.Helper()
		for _, ip := range ips {
			l.await(fmt.Sprintf("%s: the neighbor sends to %s at its MAC", when, ip), func() bool {
				return strings.Contains(s.run(fmt.Sprintf("ip -n $OTHER neigh show %s dev %s", ip, c.dev)), mac())
			})
			s.run("ip netns exec $OTHER ping -c 1 -W 10 " + ip)
		}
	}
	dead()
	r := l.engine(nil)
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	known("attached")
	had := mac()
	for _, link := range c.deleted {
		s.run("$ip link delete " + link)
		dead()
		if _, err := l.engine(nil).Repair(ctxFor(t), sb.ID); err != nil {
			t.Fatal(err)
		}
		known("repaired after " + link + " was deleted")
		if now := mac(); now != had {
			t.Errorf("MAC %s before the repair, %s after it", had, now)
		}
	}
	if rep, err := r.Ensure(ctxFor(t), sb); err != nil || !rep.Unchanged {
		t.Errorf("again: %v %v", rep.Changes, err)
	}
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
}

// TestCarrierComesLater: a neighbor learns the MAC of a pod whose link had no carrier when its addresses were announced.
func TestCarrierComesLater(t *testing.T) {
	l, path, neighbor := newLane(t), newNetns(t), newNetns(t)
	between := filepath.Base(newNetns(t)) // a switch, whose port to the node is down
	s := &foreignWriter{t: t, ns: filepath.Base(path), other: filepath.Base(neighbor)}
	t.Cleanup(func() { s.run("ip link delete nb0 2>/dev/null || true") })
	s.run(strings.ReplaceAll(`ip link add nb0 type veth peer name p0 netns SWITCH && ip link set nb0 up
		ip -n SWITCH link add br0 type bridge && ip -n SWITCH link set br0 up && ip -n SWITCH link set p0 master br0
		ip -n SWITCH link add p1 type veth peer name nb1 netns $OTHER && ip -n SWITCH link set p1 master br0 && ip -n SWITCH link set p1 up
		ip -n $OTHER link set nb1 up && ip -n $OTHER address add 192.0.2.9/24 dev nb1 && ip -n $OTHER address add 2001:db8:5::9/64 dev nb1 nodad`, "SWITCH", between))
	r := l.engine(nil)
	sb := box(path, parse(t, "t", "    - {name: net, type: macvlan, config: {master: nb0, "+bothFamilies+"}}\n"))
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	l.loop(r)
	ips := []string{"192.0.2.5", "2001:db8:5::5"}
	for _, ip := range ips {
		s.run("ip -n $OTHER neigh replace " + ip + " lladdr 02:00:00:00:00:dd dev nb1 nud reachable")
	}
	s.run("ip -n " + between + " link set p0 up")
	mac := strings.TrimSpace(s.run("$ip -o link show dev net1 | sed 's/.*link.ether \\([^ ]*\\).*/\\1/'"))
	for _, ip := range ips {
		l.await("the neighbor sends to "+ip+" at its MAC", func() bool {
			return strings.Contains(s.run("ip -n $OTHER neigh show "+ip+" dev nb1"), mac)
		})
		s.run("ip netns exec $OTHER ping -c 1 -W 10 " + ip)
	}
}

// TestBridgeKeepsMAC: pods on a bridge of the host know their gateway by its MAC. Whichever of them
// ends, the others reach it at the same, and keep their own MACs.
func TestBridgeKeepsMAC(t *testing.T) {
	l := newLane(t)
	s := &foreignWriter{t: t}
	s.run("ip link delete gwbr 2>/dev/null || true")
	type pod struct {
		reconcile.Sandbox
		ns, mac string
	}
	var pods []pod
	var before string
	r := l.engine(nil)
	gateway := func() string { return s.run("cat /sys/class/net/gwbr/address") }
	mac := func(ns string) string {
		return s.run("ip -n " + ns + " -o link show dev net1 | sed 's/.*link.ether \\([^ ]*\\).*/\\1/'")
	}
	hold := func(when string) {
		t.Helper()
		if now := gateway(); now != before {
			t.Errorf("%s: the gateway has %s, had %s", when, now, before)
		}
		for _, p := range pods {
			if out, err := s.try("ip netns exec " + p.ns + " ping -c 1 -W 2 192.0.2.1"); err != nil {
				t.Errorf("%s: %s does not reach its gateway: %s", when, p.ID, out)
			}
			if now := mac(p.ns); now != p.mac {
				t.Errorf("%s: %s has %s, had %s", when, p.ID, now, p.mac)
			}
		}
	}
	count, ends := 6, []int{3, 0, 2, 1, 0} // the first and the last among them
	if effort.Long() {
		count, ends = 10, []int{3, 0, 7, 2, 2, 4, 0, 1, 0}
	}
	for i := range count {
		path := newNetns(t)
		sb := box(path, parse(t, "t", fmt.Sprintf("    - {name: net, type: bridge, config: {bridge: gwbr, isGateway: true, addresses: [{address: 192.0.2.%d/24, gateway: 192.0.2.1}]}}\n", i+2)))
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = gateway()
		}
		ns := filepath.Base(path)
		pods = append(pods, pod{sb, ns, mac(ns)})
	}
	hold("all are there")
	for _, i := range ends {
		ended := pods[i]
		if _, err := r.AwaitRelease(ctxFor(t), ended.ID); err != nil {
			t.Fatal(err)
		}
		pods = slices.Delete(pods, i, i+1)
		hold(string(ended.ID) + " has ended")
	}
	if _, err := r.AwaitRelease(ctxFor(t), pods[0].ID); err != nil { // the bridge goes with its last port
		t.Fatal(err)
	}
}
