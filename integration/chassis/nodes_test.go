package chassis_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/chassis"
	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// cluster are two nodes, the engine on each of them, and what they share.
type cluster struct {
	*testing.T
	*chassis.Nodes
	worker []*worker
	bench  *bench // of the first node
	mtu    int    // largest of a network through the tunnels
}

func startCluster(t *testing.T, six bool) *cluster {
	t.Helper()
	if os.Getenv("PLUMBLINE_BENCH") == "" {
		t.Skip("needs the programs of OVN: make test-ovn")
	}
	nodes, err := chassis.StartNodes(t.Context(), t.TempDir(), six, "node-1", "node-2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Close(); err != nil {
			t.Error(err)
		}
	})
	// docs/ovn.md says what Geneve adds.
	c := &cluster{T: t, Nodes: nodes, mtu: chassis.UnderlayMTU - map[bool]int{false: 58, true: 78}[six]}
	sent := new(uint32)
	for _, node := range nodes.Node {
		b := &bench{T: t, chassis: node.Chassis, sent: sent}
		c.worker = append(c.worker, newWorkerOf(b, kernel.Options{Netns: node.Netns}, []string{nodes.Endpoint()}, node.Endpoint()))
	}
	c.bench = c.worker[0].bench
	return c
}

// in is the cluster in a part of a test.
func (c *cluster) in(t *testing.T) *cluster {
	out := *c
	out.T, out.bench, out.worker = t, c.bench.in(t), nil
	for _, w := range c.worker {
		out.worker = append(out.worker, &worker{w.in(t), w.engine, w.registry})
	}
	return &out
}

// pod is a sandbox on a node.
type pod struct {
	reconcile.Sandbox
	on        *worker
	node      string
	four, six string
}

// pod attaches a pod with this last number of its addresses, and more of them.
func (c *cluster) pod(name string, node, number int, config string, more ...string) pod {
	c.Helper()
	p := pod{on: c.worker[node], node: c.Node[node].Name, four: fmt.Sprintf("192.0.2.%d", number), six: fmt.Sprintf("2001:db8::%d", number)}
	addresses := append([]string{p.four + "/24", p.six + "/64"}, more...)
	p.Sandbox = p.on.sandbox(name, fmt.Sprintf(`{%s, addresses: ["%s"], dad: "off"}`, config, strings.Join(addresses, `", "`)))
	p.on.apply(p.Sandbox)
	return p
}

// meet holds that pods reach each other, in both directions and with both families.
func (c *cluster) meet(a, b pod) {
	c.Helper()
	for _, way := range [][2]pod{{a, b}, {b, a}} {
		for _, address := range []string{way[1].four, way[1].six} {
			c.worker[0].reach(way[0].Netns, way[1].Netns, address)
		}
	}
}

// repaired repairs a pod until nothing differs.
func (c *cluster) repaired(p pod) {
	c.Helper()
	c.bench.ok(chassis.Eventually(c.Context(), string(p.ID)+" is repaired", func() error {
		if _, err := p.on.engine.Repair(c.Context(), p.ID); err != nil {
			return err
		}
		st, err := p.on.engine.Check(c.Context(), p.ID)
		if err == nil && st.State != reconcile.InSync {
			err = fmt.Errorf("%s: %v", st.State, st.Drift)
		}
		return err
	}))
}

// logicalPort is the name of the port of a pod, which is the only one of its node.
func (c *cluster) logicalPort(p pod) string {
	c.Helper()
	return c.run("ovn-nbctl", "--bare", "--columns=name", "find", "Logical_Switch_Port", "options:requested-chassis="+p.node)
}

// run runs a program on the databases that all nodes share.
func (c *cluster) run(program string, arguments ...string) string {
	c.Helper()
	out, err := c.Central.Run(c.Context(), program, arguments...)
	c.bench.ok(err)
	return out
}

// nothing holds that no database has anything of a pod.
func (c *cluster) nothing() {
	c.Helper()
	c.run("ovn-nbctl", "--wait=hv", "--timeout=60", "sync")
	for _, of := range [][2]string{{"ovn-nbctl", "Logical_Switch"}, {"ovn-nbctl", "Logical_Switch_Port"}, {"ovn-nbctl", "QoS"}, {"ovn-nbctl", "Address_Set"}, {"ovn-sbctl", "Datapath_Binding"}, {"ovn-sbctl", "Port_Binding"}} {
		if left := c.run(of[0], "--bare", "--columns=_uuid", "list", of[1]); left != "" {
			c.Errorf("%s: left is %s", of[1], c.run(of[0], "list", of[1]))
		}
	}
	for i, w := range c.worker {
		if left := w.run("ovs-vsctl", "--bare", "--columns=name", "find", "Interface", "external_ids:iface-id!=none"); left != "" {
			c.Errorf("node %d: left is %q", i, left)
		}
		if left := w.run("ip", "-n", c.Node[i].Name, "-o", "link", "show", "type", "veth"); strings.Contains(left, " pl") {
			c.Errorf("node %d: left is %s", i, left)
		}
	}
}

// chassis are the names of those that OVN knows.
func (c *cluster) chassis() []string {
	c.Helper()
	return slices.Sorted(strings.FieldsSeq(c.run("ovn-sbctl", "--bare", "--columns=name", "list", "Chassis")))
}

// TestNodes: two pods on two nodes are on one network through Geneve, with packets as large as
// possible, and rules of a port decide about what goes through the tunnel. Whatever crashes or is
// deleted by others comes back, and the last pods leave nothing. So does a node that is lost, after
// what docs/ovn.md says.
func TestNodes(t *testing.T) {
	for _, six := range []bool{false, true}[:map[bool]int{false: 1, true: 2}[effort.Long()]] {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) {
			c := startCluster(t, six)
			c.tunnels()
			c.localnet()
			c.lost()
		})
	}
}

func (c *cluster) tunnels() {
	began := time.Now()
	blue := fmt.Sprintf("topology: layer2, netAttachDefName: default/tenant-blue, mtu: %d", c.mtu)
	one := c.pod("one", 0, 2, blue)
	// OVN delivers to a port what is for its addresses only, so it has those of all packets.
	two := c.pod("two", 1, 77, blue, "198.51.100.7/32", "198.51.100.8/32", "203.0.113.9/32", "2001:db8:1::7/128", "2001:db8:1::8/128", "2001:db8:2::9/128")
	c.meet(one, two)
	c.Logf("two pods on two nodes: %s", time.Since(began))
	b := c.bench
	b.port = netstate.LogicalPort{Switch: new("plumbline:layer2:default/tenant-blue"), Name: c.logicalPort(one)}
	b.source, b.server = &traffic.Pod{Netns: one.Netns, IPv4: one.four, IPv6: one.six}, &traffic.Pod{Netns: two.Netns, IPv4: two.four, IPv6: two.six}
	b.ok(b.source.SendTo(c.Context(), "net1", b.mac("two", "net1")))
	b.sender = traffic.NewSender(one.Netns, b.sent)
	c.Cleanup(b.sender.Close)
	var err error
	b.receiver, err = traffic.NewReceiver(two.Netns)
	b.ok(err)
	c.Cleanup(func() { b.receiver.Close() })
	var rules decide
	c.part("full MTU", func(c *cluster) {
		b := c.bench
		for address, header := range map[string]int{two.four: 20, two.six: 40} {
			full := b.send(b.sender, traffic.Packet(address, 253, 0), 0, c.mtu-header)
			if got := b.await(b.receiver, full)[full].Length; got != c.mtu {
				c.Errorf("to %s: %d bytes arrived, sent were %d", address, got, c.mtu)
			}
		}
		// One byte more does not fit, so nothing smaller is needed.
		b.run("ip", "-n", "one", "link", "set", "net1", "mtu", fmt.Sprint(c.mtu+1))
		large := b.send(b.sender, traffic.Packet(two.four, 253, 0), 0, c.mtu+1-20)
		if _, ok := b.await(b.receiver, b.send(b.sender, traffic.Packet(two.four, 253, 0), 0, 64))[large]; ok {
			c.Errorf("%d bytes arrived: Geneve adds less than docs/ovn.md says", c.mtu+1)
		}
		c.repaired(one)
	})
	c.part("marks", func(c *cluster) {
		rules = c.bench.enforce(object("a", 1, "{dscp: 46}", "{dscp: 10, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: '2001:db8:1::/48'}}]}}", "{dscp: 12, classifier: {ports: [{protocol: UDP, port: 443}]}}"))
		c.bench.marks(c.bench.sender, c.bench.receiver, packets(), rules)
	})
	type crash struct {
		of   *chassis.Chassis
		name string
	}
	crashes := []crash{{c.Node[0].Chassis, chassis.Controller}, {c.Node[1].Chassis, chassis.VSwitch}, {c.Central, chassis.Northd}}
	if effort.Long() {
		crashes = append(crashes, crash{c.Node[0].Chassis, chassis.VSwitch}, crash{c.Node[1].Chassis, chassis.Controller}, crash{c.Central, chassis.Database}, crash{c.Node[1].Chassis, chassis.Database})
	}
	for _, crash := range crashes {
		c.part(crash.name+" crashes", func(c *cluster) {
			began := time.Now()
			c.bench.ok(crash.of.Restart(c.Context(), crash.name))
			c.meet(one, two)
			c.Logf("restarted, and pods reach each other: %s", time.Since(began))
			c.repaired(one)
			c.repaired(two)
			c.bench.ok(c.bench.chassis.Sync(c.Context()))
			c.bench.marks(c.bench.sender, c.bench.receiver, packets(), rules)
		})
	}
	c.part("limit", func(c *cluster) {
		b := c.bench
		b.enforce(object("a", 1, "{dscp: 1, bandwidth: {rate: 1, burst: 24}, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: '2001:db8:1::/48'}}]}}"))
		began := time.Now()
		limited := map[uint32]bool{}
		for range 5 {
			for address, is := range map[string]bool{"198.51.100.7": true, "2001:db8:1::7": true, "203.0.113.9": false, "2001:db8:2::9": false} {
				limited[b.send(b.sender, traffic.Packet(address, qos.UDP, 9), 0, 1000)] = is
			}
		}
		elapsed := time.Since(began)
		b.apply(nil, nil)
		got := b.await(b.receiver, b.send(b.sender, traffic.Packet("198.51.100.7", qos.UDP, 9), 0, 64))
		passed := 0
		for n, is := range limited {
			_, ok := got[n]
			switch {
			case !is && !ok:
				c.Errorf("packet %d is not limited, and dropped", n)
			case is && ok:
				passed++
			}
		}
		// As in TestLimits.
		if most := 2 + int(elapsed.Seconds()*125/1034) + 1; passed < 2 || passed > most || passed == 10 {
			c.Errorf("%d packets of 10 passed, want 2 to %d", passed, most)
		}
	})
	type deletion struct {
		pod pod
		of  func(*cluster, pod)
	}
	deletions := map[string]deletion{
		"the logical port is deleted":         {one, func(c *cluster, p pod) { c.run("ovn-nbctl", "lsp-del", c.logicalPort(p)) }},
		"the port of Open vSwitch is deleted": {two, func(c *cluster, p pod) { p.on.run("ovs-vsctl", "del-port", c.link(p)) }},
	}
	if effort.Long() {
		deletions["the logical switch is deleted"] = deletion{two, func(c *cluster, _ pod) { c.run("ovn-nbctl", "ls-del", *b.port.Switch) }}
		deletions["the integration bridge is deleted"] = deletion{one, func(_ *cluster, p pod) { p.on.run("ovs-vsctl", "del-br", "br-int") }}
	}
	for name, of := range deletions {
		c.part(name, func(c *cluster) {
			of.of(c, of.pod)
			if st, err := of.pod.on.engine.Check(c.Context(), of.pod.ID); err != nil || st.State != reconcile.Drifted {
				c.Fatalf("%s %v %v", st.State, st.Drift, err)
			}
			for _, p := range []pod{of.pod, one, two} { // a switch is that of both
				c.repaired(p)
			}
			c.meet(one, two)
		})
	}
	one.on.release(one.Sandbox)
	two.on.release(two.Sandbox)
	c.nothing()
}

// part runs a part of the test.
func (c *cluster) part(name string, run func(*cluster)) {
	c.Helper()
	if !c.Run(name, func(t *testing.T) { run(c.in(t)) }) {
		c.Logf("failed, and what follows may be a consequence: %s", name)
	}
}

// link is the name of the interface of a pod on its node.
func (c *cluster) link(p pod) string {
	c.Helper()
	name := c.logicalPort(p)
	return name[strings.LastIndex(name, ":")+1:]
}

// mac is the address of an interface in a namespace.
func (b *bench) mac(netns, iface string) string {
	b.Helper()
	_, rest, _ := strings.Cut(b.run("ip", "-n", netns, "-o", "link", "show", iface), "link/ether ")
	address, _, _ := strings.Cut(rest, " ")
	return address
}

// localnet: pods on two nodes reach a host on a VLAN, and each other by the physical network. One
// that leaves takes nothing from the other.
func (c *cluster) localnet() {
	b := c.bench
	for _, w := range c.worker {
		w.run("ovs-vsctl", "--may-exist", "add-br", "br-phys", "--", "--may-exist", "add-port", "br-phys", "eth1", "--", "set", "Open_vSwitch", ".", "external_ids:ovn-bridge-mappings=localnet1:br-phys")
	}
	host, err := traffic.Bare("server")
	b.ok(err)
	c.Cleanup(func() { host.Close() })
	b.ok(traffic.IP(c.Context(), "link add server type veth peer name eth1 netns server\nlink set server master "+chassis.Physical+" up"))
	b.ok(host.IP(c.Context(), "link set eth1 up\nlink add link eth1 name eth1.200 type vlan id 200\naddr add 192.0.2.1/24 dev eth1.200\naddr add 2001:db8::1/64 dev eth1.200 nodad\nlink set eth1.200 up"))
	server := pod{Sandbox: reconcile.Sandbox{Netns: host.Netns}, four: "192.0.2.1", six: "2001:db8::1"}
	blue := "topology: localnet, netAttachDefName: default/localnet-blue, physicalNetworkName: localnet1, vlanID: 200"
	three, four := c.pod("three", 0, 3, blue), c.pod("four", 1, 4, blue)
	c.meet(three, server)
	c.meet(four, server)
	c.meet(three, four)
	three.on.release(three.Sandbox)
	c.repaired(four)
	c.meet(four, server)
	four.on.release(four.Sandbox)
	c.nothing()
}

// lost: a node ends without a release. Pods of the other one go on and come and go, and what is left is
// deleted as docs/ovn.md says.
func (c *cluster) lost() {
	blue := "topology: layer2, netAttachDefName: default/tenant-blue"
	five, six := c.pod("five", 0, 5, blue), c.pod("six", 1, 6, blue)
	c.meet(five, six)
	c.bench.ok(c.Node[1].Lose())
	seven := c.pod("seven", 0, 7, blue)
	c.repaired(five)
	c.meet(five, seven)
	seven.on.release(seven.Sandbox)
	if effort.Long() {
		five.on.release(five.Sandbox)
	}
	if left := c.logicalPort(six); left == "" || !slices.Equal(c.chassis(), []string{"node-1", "node-2"}) {
		c.Errorf("ports left of the node that is lost %q, chassis %q: docs/ovn.md says that they stay", left, c.chassis())
	}
	c.worker = c.worker[:1]
	for port := range strings.FieldsSeq(c.run("ovn-nbctl", "--bare", "--columns=name", "find", "Logical_Switch_Port", "options:requested-chassis=node-2", "external_ids:dra.networking/owner=plumbline")) {
		c.run("ovn-nbctl", "lsp-del", port)
	}
	c.run("ovn-sbctl", "--if-exists", "chassis-del", "node-2")
	if effort.Long() {
		// A switch without ports is left, until the next pod on it has come and gone.
		five = c.pod("again", 0, 6, blue)
	}
	five.on.release(five.Sandbox)
	c.nothing()
	if got := c.chassis(); !slices.Equal(got, []string{"node-1"}) {
		c.Errorf("chassis left %q", got)
	}
	c.bench.ok(chassis.Eventually(c.Context(), "no tunnel leads to the node that is lost", func() error {
		if ports := c.worker[0].run("ovs-vsctl", "list-ports", "br-int"); strings.Contains(ports, "node-2") {
			return fmt.Errorf("ports %q", ports)
		}
		return nil
	}))
}
