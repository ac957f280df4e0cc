package kernel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/hostports"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// TestHostPorts: ports of the host lead to pods, from other hosts, from the host itself and from
// pods, over TCP and UDP in both families; what is deleted is repaired, and nothing is left.
func TestHostPorts(t *testing.T) {
	for _, step := range effort.Sample(t, 2, []string{
		`{name: eth, type: bridge, config: {bridge: plpod0, isDefaultGateway: true, ipMasq: true, dad: "off"}}`,
		`{name: eth, type: ptp, config: {isDefaultGateway: true, ipMasq: true, dad: "off"}}`,
	}) {
		t.Run(strings.Fields(step)[3], func(t *testing.T) { testHostPorts(t, step) })
	}
}

func testHostPorts(t *testing.T, step string) {
	s := &foreignWriter{t: t}
	n, outside := newPortNode(t, step)
	home := n.state("")
	ruleset := s.run("nft list ruleset")
	defer n.run(n.server(&process{}, nil, ""))()
	mapped := func(container, path string, more ...map[string]any) *libcni.RuntimeConf {
		rt := at(container, path)
		rt.CapabilityArgs = map[string]any{"portMappings": append(more,
			map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""},
			map[string]any{"hostPort": 8080, "containerPort": 53, "protocol": "UDP"},
			map[string]any{"hostPort": 0, "containerPort": 81, "protocol": "tcp"})}
		return rt
	}

	a, b := newNetns(t), newNetns(t)
	one := mapped("a", a, map[string]any{"hostPort": 9090, "containerPort": 80, "hostIP": "203.0.113.9"},
		map[string]any{"hostPort": 9091, "containerPort": 80, "hostIP": "203.0.113.2"}) // not the host's
	a4, _ := n.add(one)
	b4, _ := n.add(at("b", b))
	s.run(in(a) + "ip link set lo up")
	answer(t, a, 80, 53)
	for what, c := range map[string]struct{ from, network, to, seen string }{
		"from outside":              {outside, "tcp", "203.0.113.1:8080", "203.0.113.2"},
		"over IPv6":                 {outside, "tcp", "[2001:db8:9::1]:8080", "2001:db8:9::2"},
		"over UDP":                  {outside, "udp", "203.0.113.1:8080", "203.0.113.2"},
		"over UDP and IPv6":         {outside, "udp", "[2001:db8:9::1]:8080", "2001:db8:9::2"},
		"to one address":            {outside, "tcp", "203.0.113.9:9090", "203.0.113.2"},
		"from the host":             {"", "tcp", "203.0.113.1:8080", "203.0.113.1"},
		"from the host over IPv6":   {"", "tcp", "[2001:db8:9::1]:8080", "2001:db8:9::1"},
		"from another pod":          {b, "tcp", "203.0.113.1:8080", ""},
		"from another pod over UDP": {b, "udp", "203.0.113.1:8080", ""},
		"from the pod itself":       {a, "tcp", "203.0.113.1:8080", ""},
		"from itself over IPv6":     {a, "tcp", "[2001:db8:9::1]:8080", ""},
	} {
		eventually.Succeeds(t, patience, "the network is as wanted", func() error {
			seen, err := ask(c.from, c.network, c.to)
			if err == nil && c.seen != "" && seen != c.seen {
				err = fmt.Errorf("the pod has seen %s, want %s", seen, c.seen)
			}
			if err != nil {
				return fmt.Errorf("%s: %w\n%s", what, err, s.run("nft list table inet plumbline-ports"))
			}
			return nil
		})
	}
	for what, c := range map[string]struct{ from, to string }{
		"a port on another address":      {outside, "203.0.113.1:9090"},
		"a port that is not mapped":      {outside, "203.0.113.1:81"},
		"an address of another host":     {b, "203.0.113.2:9091"},
		"another host, from the host":    {"", "203.0.113.2:9091"},
		"the loopback":                   {"", "127.0.0.1:8080"},
		"an address that is not a local": {outside, net.JoinHostPort(b4, "8080")},
	} {
		if seen, err := ask(c.from, "tcp", c.to); err == nil {
			t.Errorf("%s leads to the pod, which has seen %s", what, seen)
		}
	}

	// A port is one pod's at a time.
	before := s.run("nft list table inet plumbline-ports")
	other := newNetns(t)
	if _, err := n.cni.AddNetworkList(ctxFor(t), n.list, mapped("other", other)); err == nil || !strings.Contains(err.Error(), "portMappings[0].hostPort: port 0.0.0.0:8080/tcp of the host leads to "+a4+":80, which another pod of this node has") {
		t.Errorf("the port of another pod: %v", err)
	}
	beside := at("beside", other)
	beside.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "hostIP": "203.0.113.9"}}}
	if _, err := n.cni.AddNetworkList(ctxFor(t), n.list, beside); err == nil || !strings.Contains(err.Error(), "portMappings[0].hostPort: port 203.0.113.9:8080/tcp of the host overlaps with 0.0.0.0:8080/tcp, which leads to "+a4+":80, which another pod of this node has") {
		t.Errorf("the port of one address, which another pod has of all: %v", err)
	}
	if after := s.run("nft list table inet plumbline-ports"); after != before {
		t.Errorf("the refused pod has changed the ports:\n%s\nbefore:\n%s", after, before)
	}

	check := func() error { return n.cni.CheckNetworkList(ctxFor(t), n.list, one) }
	if err := check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for what, disturb := range map[string]string{
		"the table":    "nft delete table inet plumbline-ports",
		"a port":       "nft delete element inet plumbline-ports any4 '{ tcp . 8080 }'",
		"a target":     "nft delete element inet plumbline-ports any4 '{ tcp . 8080 }' && nft add element inet plumbline-ports any4 '{ tcp . 8080 : " + b4 + " . 80 }'",
		"the chain":    "nft flush chain inet plumbline-ports prerouting",
		"its hairpins": "nft flush set inet plumbline-ports hairpins6",
	} {
		s.run(disturb)
		if err := check(); err == nil || !strings.Contains(err.Error(), "port-mapping") {
			t.Errorf("CHECK when %s was changed: %v", what, err)
		}
		if _, err := n.engine(nil).Repair(ctxFor(t), reconcile.IDOfPrimary("a", "eth0", "pods")); err != nil {
			t.Errorf("repair of %s: %v", what, err)
		}
		if err := check(); err != nil {
			t.Errorf("CHECK when %s was repaired: %v", what, err)
		}
	}
	if seen, err := ask(outside, "tcp", "203.0.113.1:8080"); err != nil || seen != "203.0.113.2" {
		t.Errorf("after repair: %s, %v", seen, err)
	}

	// A connection of a pod to the same port of another host is not forgotten: it keeps its mark.
	answer(t, outside, 80, 8080)
	s.run("nft add table inet marks && nft 'add chain inet marks c { type filter hook forward priority 0; }' && nft add rule inet marks c udp dport 8080 ct state new ct mark set 7")
	sender, err := dialIn(b, "udp", "203.0.113.2:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	eventually.Succeeds(t, patience, "the network is as wanted", func() error {
		_, err := exchange(sender)
		return err
	})
	s.run("nft delete table inet marks && nft delete element inet plumbline-ports any4 '{ udp . 8080 }'")
	if _, err := n.engine(nil).Repair(ctxFor(t), reconcile.IDOfPrimary("a", "eth0", "pods")); err != nil {
		t.Error(err)
	}
	if _, err := exchange(sender); err != nil {
		t.Errorf("to another host, after a port was repaired: %v", err)
	}
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(flows, func(f *netlink.ConntrackFlow) bool {
		return f.Forward.DstIP.String() == "203.0.113.2" && f.Forward.DstPort == 8080 && f.Mark == 7
	}) {
		t.Errorf("a connection of a pod to the same port of another host was forgotten: %v", flows)
	}

	// A client that goes on sending reaches the next pod.
	client, err := dialIn(outside, "udp", "203.0.113.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := exchange(client); err != nil {
		t.Error(err)
	}
	if err := n.cni.DelNetworkList(ctxFor(t), n.list, one); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if seen, err := ask(outside, "tcp", "203.0.113.1:8080"); err == nil {
		t.Errorf("the port of a pod that has ended is answered: %s", seen)
	}
	_, _ = exchange(client) // to nobody
	c := newNetns(t)
	next := mapped("c", c)
	n.add(next)
	answer(t, c, 80, 53)
	eventually.Succeeds(t, patience, "the network is as wanted", func() error {
		_, err := exchange(client)
		return err
	})

	for container, path := range map[string]string{"b": b, "c": c} {
		if err := n.cni.DelNetworkList(ctxFor(t), n.list, at(container, path)); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	n.nothingLeft("by pods with ports of the host")
	n.mustEqual(home, "", "without pods")
	if left := s.run("nft list ruleset"); left != ruleset {
		t.Errorf("rules are left:\n%s\nbefore:\n%s", left, ruleset)
	}
}

// TestLoopbackPorts: a port of the host's loopback leads to a pod, for programs of the host only: what comes to or from
// the loopback from elsewhere is dropped, also where the kernel would accept it. Changes by others are repaired,
// and with the last port that link is as it was.
func TestLoopbackPorts(t *testing.T) {
	for _, step := range effort.Sample(t, 2, []string{
		`{name: eth, type: bridge, config: {bridge: plpod0, isDefaultGateway: true, dad: "off"}}`,
		`{name: eth, type: ptp, config: {isDefaultGateway: true, dad: "off"}}`,
	}) {
		t.Run(strings.TrimSuffix(strings.Fields(step)[3], ","), func(t *testing.T) { testLoopbackPorts(t, step) })
	}
}

func testLoopbackPorts(t *testing.T, step string) {
	s := &foreignWriter{t: t}
	n, outside := newPortNode(t, step)
	home := n.state("")
	ruleset := s.run("nft list ruleset")
	defer n.run(n.server(&process{}, nil, ""))()
	mapped := func(container, path string, ports ...map[string]any) *libcni.RuntimeConf {
		rt := at(container, path)
		rt.CapabilityArgs = map[string]any{"portMappings": ports}
		return rt
	}
	port := func(host int, on, protocol string) map[string]any {
		container := 80
		if protocol == "udp" {
			container = 53
		}
		return map[string]any{"hostPort": host, "containerPort": container, "protocol": protocol, "hostIP": on}
	}

	a, b, c := newNetns(t), newNetns(t), newNetns(t)
	one := mapped("a", a, port(8080, "127.0.0.1", "tcp"), port(8080, "127.0.0.1", "udp"))
	two := mapped("b", b, port(8080, "203.0.113.1", "tcp"), port(8081, "127.0.0.2", "tcp")) // the same port of another address
	a4, _ := n.add(one)
	b4, _ := n.add(two)
	c4, _ := n.add(at("c", c))
	for _, path := range []string{a, b} {
		answer(t, path, 80, 53)
	}
	answers := func(what string) {
		t.Helper()
		for to, network := range map[string]string{"127.0.0.1:8080": "tcp", "127.0.0.1:8080/": "udp", "127.0.0.2:8081": "tcp", "203.0.113.1:8080": "tcp"} {
			eventually.Succeeds(t, patience, what, func() error {
				if _, err := ask("", network, strings.TrimSuffix(to, "/")); err != nil {
					return fmt.Errorf("%s %s: %w\n%s", network, to, err, s.run("nft list table inet plumbline-ports"))
				}
				return nil
			})
		}
	}
	answers("ports of the loopback")
	// As curl --interface does.
	bound, err := (&net.Dialer{Timeout: 3 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP("203.0.113.1")}}).Dial("tcp", "127.0.0.1:8080")
	if err != nil {
		t.Errorf("from another address of the host: %v", err)
	} else if seen, err := exchange(bound); err != nil || seen != "203.0.113.1" {
		t.Errorf("from another address of the host the pod has seen %s, %v", seen, err)
	}

	// The host listens on its loopback, as programs without a password do.
	l, err := net.Listen("tcp", "127.0.0.1:7070")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reached := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached <- c.RemoteAddr().String()
			c.Close()
		}
	}()
	u, err := net.ListenPacket("udp", ":7071")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	go func() {
		b := make([]byte, 16)
		for {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			reached <- "udp " + from.String()
		}
	}()
	froms := []struct{ path, via, source, self string }{
		{outside, "203.0.113.1", "203.0.113.2", "outside"},
		{c, "10.98.7.1", c4, "another pod"},
		{a, "10.98.7.1", a4, "its own pod"},
	}
	for _, from := range froms {
		ns := in(from.path)
		dev := "$(" + ns + "ip -o route get " + from.via + " | sed -E 's/.* dev ([^ ]+).*/\\1/')"
		s.run(ns + "ip link set lo down && " + ns + "ip address flush dev lo; " + ns + "ip route flush table local 127.0.0.0/8; " +
			ns + "ip route replace 127.0.0.0/8 via " + from.via + " onlink dev " + dev + " && " + ns + "sysctl -qw net.ipv4.conf.all.route_localnet=1")
		for _, to := range []string{"127.0.0.1:8080", "127.0.0.2:8081", "127.0.0.1:7070"} {
			if got, err := dialFrom(from.path, from.source, to); err == nil {
				got.Close()
				t.Errorf("%s reaches %s", from.self, to)
			}
		}
		// A source that only the host itself can have.
		s.run(ns + "ip address add 127.0.0.9/32 dev " + dev)
		if err := sendFrom(from.path, "127.0.0.9", from.via+":7071"); err != nil {
			t.Errorf("%s: %v", from.self, err)
		}
		s.run(ns + "ip address del 127.0.0.9/32 dev " + dev) // else answers may have it as their source
	}
	// What was sent has arrived, or was dropped, once this has arrived, which is sent the same way.
	for _, from := range froms {
		eventually.Succeeds(t, patience, "the last datagram arrives", func() error {
			if err := sendFrom(from.path, from.source, from.via+":7071"); err != nil {
				return err
			}
			for {
				select {
				case who := <-reached:
					if strings.Contains(who, "127.0.0.9") || !strings.HasPrefix(who, "udp") {
						t.Errorf("the loopback was reached from elsewhere, by %s", who)
					}
					if strings.Contains(who, from.source+":") {
						return nil
					}
				case <-time.After(time.Second):
					return fmt.Errorf("the host does not receive what %s sends to it", from.self)
				}
			}
		})
	}
	answers("after these")

	// Others change it.
	check := func() error { return n.cni.CheckNetworkList(ctxFor(t), n.list, one) }
	localnet := func() string {
		return strings.TrimSpace(s.run("dev=$(ip -o route get " + a4 + " | sed -E 's/.* dev ([^ ]+).*/\\1/'); cat /proc/sys/net/ipv4/conf/$dev/route_localnet"))
	}
	for what, disturb := range map[string]string{
		"the sysctl":      "echo 0 >/proc/sys/net/ipv4/conf/$(ip -o route get " + a4 + " | sed -E 's/.* dev ([^ ]+).*/\\1/')/route_localnet",
		"the chain":       "nft flush chain inet plumbline-ports loopback",
		"the table":       "nft delete table inet plumbline-ports",
		"a port":          "nft delete element inet plumbline-ports at4 '{ 127.0.0.1 . tcp . 8080 }'",
		"the set of pods": "nft flush set inet plumbline-ports localnet4",
	} {
		s.run(disturb)
		if err := check(); err == nil || !strings.Contains(err.Error(), "port-mapping") {
			t.Errorf("CHECK when %s was changed: %v", what, err)
		}
		for _, id := range []string{"a", "b"} {
			if _, err := n.engine(nil).Repair(ctxFor(t), reconcile.IDOfPrimary(id, "eth0", "pods")); err != nil {
				t.Errorf("repair of %s: %v", what, err)
			}
		}
		if err := check(); err != nil {
			t.Errorf("CHECK when %s was repaired: %v", what, err)
		}
		answers("after the repair of " + what)
	}

	// The link is open as long as one of its pods has such a port, and no longer.
	if value := localnet(); value != "1" {
		t.Errorf("route_localnet is %s with ports of the loopback", value)
	}
	del := func(rt *libcni.RuntimeConf) {
		t.Helper()
		if err := n.cni.DelNetworkList(ctxFor(t), n.list, rt); err != nil {
			t.Errorf("DEL %s: %v", rt.ContainerID, err)
		}
	}
	del(one)
	if seen, err := ask("", "tcp", "127.0.0.1:8080"); err == nil {
		t.Errorf("the port of a pod that has ended is answered: %s", seen)
	}
	if _, err := ask("", "tcp", "127.0.0.2:8081"); err != nil {
		t.Errorf("the port of the other pod: %v", err)
	}
	del(two)
	for of := range strings.FieldsSeq(s.run("grep -l 1 /proc/sys/net/ipv4/conf/*/route_localnet || true")) {
		t.Errorf("%s is 1 without a port of the loopback (pods had %s and %s)", of, a4, b4)
	}
	del(at("c", c))
	n.nothingLeft("by pods with ports of the loopback")
	n.mustEqual(home, "", "without pods")
	if left := s.run("nft list ruleset"); left != ruleset {
		t.Errorf("rules are left:\n%s\nbefore:\n%s", left, ruleset)
	}
}

// dialFrom connects from an address of a namespace, where 127.0.0.0/8 is no loopback.
func dialFrom(path, source, to string) (c net.Conn, err error) {
	err = kernel.Within(path, func() (err error) {
		c, err = (&net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).Dial("tcp", to)
		return err
	})
	return c, err
}

// sendFrom sends one message over UDP from an address of a namespace.
func sendFrom(path, source, to string) error {
	return kernel.Within(path, func() error {
		c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}).Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("?"))
		return err
	})
}

// newOutside is a host on a network of the node, 203.0.113.0/24 and 2001:db8:9::/64. The node has
// rules of nftables of another.
func newOutside(t *testing.T) (path string) {
	t.Helper()
	s := &foreignWriter{t: t}
	path = newNetns(t)
	in := "ip -n " + filepath.Base(path)
	s.run("ip link add out0 type veth peer name v0 netns " + filepath.Base(path) + ` && ip link set out0 up && ip address add 203.0.113.1/24 dev out0 && ip address add 203.0.113.9/24 dev out0 &&
ip address add 2001:db8:9::1/64 nodad dev out0 && ` + in + ` link set v0 up && ` + in + ` address add 203.0.113.2/24 dev v0 && ` + in + ` address add 2001:db8:9::2/64 nodad dev v0
nft add table inet anothers && nft 'add chain inet anothers c { type nat hook prerouting priority dstnat; }'`)
	t.Cleanup(func() { s.run("ip link delete out0; nft delete table inet anothers") })
	return path
}

// newPortNode is a node of which the runtime says which ports of the host a pod has, and a host
// outside, see newOutside.
func newPortNode(t *testing.T, step string) (n *podNode, outside string) {
	t.Helper()
	restoreForwarding(t) // that of newPodNodeOf is too late for the next line
	(&foreignWriter{t: t}).run("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	outside = newOutside(t)
	n = newPodNodeOf(t, step)
	var err error
	n.list, err = libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "plumbline", "plugins": [{"type": "plumbline", "socket": %q, "capabilities": {"portMappings": true}}]}`, n.socket))
	if err != nil {
		t.Fatal(err)
	}
	return n, outside
}

// TestLostPorts: if the record of a pod is lost, its ports of the host lead to no later pod, and are free again;
// those of others stay: of pods, also while they are attached, of sandboxes of the command line, and foreign ones.
func TestLostPorts(t *testing.T) {
	for _, c := range effort.Sample(t, 2, []struct{ step, command string }{
		{
			`{name: eth, type: bridge, config: {bridge: plpod0, isDefaultGateway: true, dad: "off"}}`,
			`{name: eth, type: bridge, config: {bridge: plpod0, isDefaultGateway: true, dad: "off", addresses: [10.98.7.200/24], portMappings: [{hostPort: 7070, containerPort: 80}]}}`,
		},
		{
			`{name: eth, type: ptp, config: {isDefaultGateway: true, dad: "off"}}`,
			`{name: eth, type: ptp, config: {isDefaultGateway: true, dad: "off", addresses: [10.98.7.200/24], portMappings: [{hostPort: 7070, containerPort: 80}]}}`,
		},
	}) {
		t.Run(strings.TrimSuffix(strings.Fields(c.step)[3], ","), func(t *testing.T) { testLostPorts(t, c.step, c.command) })
	}
}

func testLostPorts(t *testing.T, step, command string) {
	s := &foreignWriter{t: t}
	n, outside := newPortNode(t, step)
	home := n.state("")
	ruleset := s.run("nft list ruleset")
	networks := []netip.Prefix{netip.MustParsePrefix("10.98.7.0/24"), netip.MustParsePrefix("fd00:98:7::/64")}
	search := func(unused func(netip.Addr) bool) (deleted []string) {
		t.Helper()
		ports, err := hostports.Release(ctxFor(t), n.engine(nil), unused)
		for _, m := range ports {
			deleted = append(deleted, m.Host)
		}
		if err != nil && !frame.IsDamage(err) {
			t.Error(err)
		}
		return deleted
	}
	guards := func() []string {
		t.Helper()
		deleted, err := hostports.ReleaseGuards(ctxFor(t), n.engine(nil))
		if err != nil && !frame.IsDamage(err) {
			t.Error(err)
		}
		return deleted
	}
	records := func() {
		t.Helper()
		anywhere := func(a netip.Addr) bool { return networks[0].Contains(a) || networks[1].Contains(a) }
		if deleted := search(anywhere); len(deleted) > 0 {
			t.Errorf("ports of records were deleted: %s", deleted)
		}
		if deleted := guards(); len(deleted) > 0 {
			t.Errorf("guards of records were deleted: %s", deleted)
		}
	}
	unused := func() []string {
		t.Helper()
		f, err := n.allocator().Unused(networks)
		if err != nil {
			t.Fatal(err)
		}
		return search(f)
	}
	// In each moment of an attachment and of a release.
	watching := true
	defer n.run(n.server(&process{}, func() {
		if watching {
			records()
		}
	}, ""))()
	mapped := func(container, path string, port int) *libcni.RuntimeConf {
		rt := at(container, path)
		rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}, {"hostPort": port, "containerPort": 53, "protocol": "udp"}}}
		return rt
	}
	del := func(rt *libcni.RuntimeConf) {
		t.Helper()
		if err := n.cni.DelNetworkList(ctxFor(t), n.list, rt); err != nil {
			t.Errorf("DEL %s: %v", rt.ContainerID, err)
		}
	}
	answers := func(what, to string) {
		t.Helper()
		eventually.Succeeds(t, patience, "the network is as wanted", func() error {
			if _, err := ask(outside, "tcp", to); err != nil {
				return fmt.Errorf("%s: %w\n%s", what, err, s.run("nft list table inet plumbline-ports"))
			}
			return nil
		})
	}

	a, b, c, d, e, f := newNetns(t), newNetns(t), newNetns(t), newNetns(t), newNetns(t), newNetns(t)
	living := mapped("living", b, 9090)
	n.add(living) // first: its record has the bridge
	lost := mapped("lost", a, 8080)
	lost4, _ := n.add(lost)
	own := reconcile.Sandbox{ID: "command/line", Netns: c, Topology: parse(t, "line", "    - "+command+"\n")}
	if _, err := n.engine(nil).Ensure(ctxFor(t), own); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{a, b, c} {
		answer(t, path, 80, 53)
	}
	s.run("nft add element inet plumbline-ports any4 '{ tcp . 7777 : 192.0.2.77 . 80 }'")
	records()

	// The record is damaged, and the pod runs.
	watching = false
	n.damage("cni/lost/eth0/pods")
	if deleted := unused(); len(deleted) > 0 {
		t.Errorf("the pod has its address, and its ports were deleted: %s", deleted)
	}
	answers("a pod without a record", "203.0.113.1:8080")
	del(lost)
	s.run("ip -n " + filepath.Base(a) + " link delete eth0") // as with its namespace, which open sockets keep
	if table := s.run("nft list table inet plumbline-ports"); !strings.Contains(table, "tcp . 8080 : "+lost4) {
		t.Fatalf("the port is gone with a record that nobody has read, and the test tests nothing:\n%s", table)
	}

	// Its address has rested, and goes to a pod without ports.
	n.ahead.Store(int64(time.Hour))
	next := at("next", d)
	next4, _ := n.add(next)
	if next4 != lost4 {
		t.Fatalf("the next pod has %s, and not %s", next4, lost4)
	}
	answer(t, d, 80, 53)
	n.reach(in(d), "10.98.7.1")
	for _, network := range []string{"tcp", "udp"} {
		if seen, err := ask(outside, network, "203.0.113.1:8080"); err == nil {
			t.Errorf("the port of a pod that has ended leads to the next pod with its address, over %s from %s", network, seen)
		}
	}
	if table := s.run("nft list table inet plumbline-ports"); strings.Contains(table, "8080") || !strings.Contains(table, "tcp . 7777 : 192.0.2.77") {
		t.Errorf("the port of the pod that has ended is there, or a foreign one is not:\n%s", table)
	}
	answers("another pod", "203.0.113.1:9090")
	answers("a sandbox of the command line", "203.0.113.1:7070")

	// A port is free again, also if nobody gets the address.
	gone := mapped("gone", e, 8081)
	n.add(gone)
	n.damage("cni/gone/eth0/pods")
	del(gone)
	deleteNetns(e)
	again := mapped("again", f, 8081)
	if _, err := n.cni.AddNetworkList(ctxFor(t), n.list, again); err == nil || !strings.Contains(err.Error(), "which another pod of this node has") {
		t.Errorf("the port of a pod whose record is lost: %v", err)
	}
	if deleted := unused(); !slices.Equal(deleted, []string{"0.0.0.0:8081/tcp", "0.0.0.0:8081/udp", "[::]:8081/tcp", "[::]:8081/udp"}) {
		t.Errorf("deleted %s", deleted)
	}
	if deleted := guards(); strings.Contains(step, "bridge") != (len(deleted) == 2) {
		t.Errorf("the guards of the ports of two pods are not all that was deleted: %s", deleted)
	}
	watching = true
	n.add(again)
	answer(t, f, 80, 53)
	answers("the next pod with the port", "203.0.113.1:8081")
	answers("another pod", "203.0.113.1:9090")
	answers("a sandbox of the command line", "203.0.113.1:7070")
	records()

	if _, err := n.engine(nil).Release(ctxFor(t), own.ID); err != nil {
		t.Error(err)
	}
	for _, rt := range []*libcni.RuntimeConf{next, again, living} {
		del(rt)
	}
	if table := s.run("nft list table inet plumbline-ports"); !strings.Contains(table, "tcp . 7777 : 192.0.2.77") {
		t.Errorf("a foreign port is gone:\n%s", table)
	}
	s.run("nft delete table inet plumbline-ports")
	n.nothingLeft("by pods whose record was lost")
	n.mustEqual(home, "", "without pods")
	if left := s.run("nft list ruleset"); left != ruleset {
		t.Errorf("rules are left:\n%s\nbefore:\n%s", left, ruleset)
	}
}

// damage overwrites the record of a sandbox.
func (n *podNode) damage(id reconcile.SandboxID) {
	n.t.Helper()
	files, err := filepath.Glob(filepath.Join(n.dir, "*"+strings.Split(string(id), "/")[1]+"*.journal"))
	if err != nil || len(files) != 1 {
		n.t.Fatalf("record of %s: %s, %v", id, files, err)
	}
	if err := os.WriteFile(files[0], []byte("damaged\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// answer serves in a namespace: each connection, and each message, is answered with the
// address that it is from.
func answer(t *testing.T, path string, tcp, udp int) {
	t.Helper()
	err := kernel.Within(path, func() error {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", tcp))
		if err != nil {
			return err
		}
		p, err := net.ListenPacket("udp", fmt.Sprintf(":%d", udp))
		if err != nil {
			return errors.Join(err, l.Close())
		}
		t.Cleanup(func() { l.Close(); p.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, c.RemoteAddr().String())
				c.Close()
			}
		}()
		go func() {
			b := make([]byte, 16)
			for {
				_, from, err := p.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = p.WriteTo([]byte(from.String()), from)
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func dialIn(path, network, to string) (c net.Conn, err error) {
	dial := func() (err error) {
		c, err = net.DialTimeout(network, to, 3*time.Second)
		return err
	}
	if path == "" {
		return c, dial()
	}
	err = kernel.Within(path, dial)
	return c, err
}

// exchange sends a message and returns the address that the answer names.
func exchange(c net.Conn) (seen string, err error) {
	if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", err
	}
	if c.RemoteAddr().Network() == "udp" {
		if _, err := c.Write([]byte("?")); err != nil {
			return "", err
		}
	}
	b := make([]byte, 100)
	k, err := c.Read(b)
	if err != nil {
		return "", err
	}
	from, err := netip.ParseAddrPort(string(b[:k]))
	return from.Addr().Unmap().String(), err
}

// ask connects from a namespace, "" for the host's, and returns the address that the other
// side has seen.
func ask(path, network, to string) (seen string, err error) {
	c, err := dialIn(path, network, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return exchange(c)
}
