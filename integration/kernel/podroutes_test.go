package kernel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology/addresspool"
)

// clusterNodes are the Node objects of a cluster, as agents hear of them.
type clusterNodes struct {
	sync.Mutex
	nodes   map[string]hostroutes.Node
	unheard bool
	ended   bool              // no topology selects the nodes any more
	changed map[string]func() // by who follows them
}

// nodesFor is one node's view of it.
type nodesFor struct {
	*clusterNodes
	node string
}

func (c nodesFor) Follow(_ context.Context, on bool, changed func()) {
	c.Lock()
	defer c.Unlock()
	if delete(c.changed, c.node); on {
		c.changed[c.node] = changed
	}
}

func (c nodesFor) All() (out []hostroutes.Node, known bool) {
	c.Lock()
	defer c.Unlock()
	for _, n := range c.nodes {
		out = append(out, n)
	}
	return out, !c.unheard
}

// edit changes the objects, and tells all that follow them.
func (c *clusterNodes) edit(f func(nodes map[string]hostroutes.Node)) {
	c.Lock()
	defer c.Unlock()
	f(c.nodes)
	for _, changed := range c.changed {
		changed()
	}
}

func nodeOf(name string, age int, cidr4, cidr6 string, ips ...string) hostroutes.Node {
	n := hostroutes.Node{Name: name, Created: time.Unix(int64(age), 0), PodCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr4), netip.MustParsePrefix(cidr6)}}
	for _, ip := range ips {
		n.InternalIPs = append(n.InternalIPs, netip.MustParseAddr(ip))
	}
	return n
}

// podHost is a network namespace that stands for a node whose pods plumbline gives their
// network.
type podHost struct {
	*lane
	name   string
	server *primary.Server
	routes *hostroutes.Keeper
	// changed: the topology that selects the node.
	changed table.Changes
	stop    func()
}

func newPodHost(t *testing.T, name string, podCIDRs ...netip.Prefix) *podHost {
	t.Helper()
	n := &podHost{name: name, lane: laneOn(t, kernel.Options{Netns: "/run/netns/" + name})}
	n.devices = []string{}
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := primaryTopology(t, `{name: eth, type: bridge, config: {bridge: cni0, isDefaultGateway: true, ipMasq: true, dad: "off"}}`)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	a, err := addresses.Open(addresses.Options{
		NodeName: name, File: filepath.Join(filepath.Dir(n.dir), "addresses"), Recorded: func() []addresspool.Grant { return nil }, Log: log, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	cluster := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}
	n.server = primary.New(primary.Options{
		Engine: n.engine(nil), Addresses: a, Contracts: reg, Network: func() (primary.Network, error) {
			return primary.Network{Topology: top, PodCIDRs: podCIDRs, ClusterCIDRs: cluster}, nil
		},
		NetnsDir: "/var/run/netns", HostNetns: n.host.NetnsID(), BootID: n.host.BootID(), Log: log, Now: time.Now,
	})
	return n
}

// start runs an agent's keeper of routes.
func (n *podHost) start(c *clusterNodes) {
	path := "/run/netns/" + n.name
	p := &published{}
	n.routes = hostroutes.New(hostroutes.Options{
		NodeName: n.name, Host: n.host, Leases: leasesFor{p, n.name}, Nodes: nodesFor{c, n.name},
		PodNetwork: func() hostroutes.PodNetwork {
			c.Lock()
			defer c.Unlock()
			return hostroutes.PodNetwork{Used: !c.ended, Known: true}
		},
		WokenBy: []table.Source{&n.changed},
		Claims:  func() []claims.Entry { return nil },
		Watch:   func(changed, failed func()) (io.Closer, error) { return watch.Routing(path, changed, failed) },
		Log:     slog.New(slog.NewTextHandler(n.t.Output(), nil)), Now: time.Now,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.routes.Run(ctx) })
	n.stop = func() {
		cancel()
		wg.Wait()
	}
}

// pod starts one, and returns its namespace and addresses.
func (n *podHost) pod(container string) (ns, v4, v6 string) {
	n.t.Helper()
	path := newNetns(n.t)
	call := func(command cnisocket.Command) cnisocket.Reply {
		return n.server.Do(ctxFor(n.t), cnisocket.Request{Command: command, Container: container, IfName: "eth0", Netns: path, Config: json.RawMessage(`{"name": "plumbline"}`)})
	}
	reply := call(cnisocket.Add)
	if reply.Error != nil {
		n.t.Fatal(reply.Error)
	}
	r := types100.Result{}
	if err := json.Unmarshal(reply.Result, &r); err != nil || len(r.IPs) != 2 {
		n.t.Fatalf("ADD: %v, %s", err, reply.Result)
	}
	return filepath.Base(path), r.IPs[0].Address.IP.String(), r.IPs[1].Address.IP.String()
}

// TestPodRoutes: pods of two nodes, with addresses of the nodes' pod CIDRs, reach one another in
// both families with their own addresses; hosts reach pods of the other node, and a machine
// outside sees the addresses of the nodes. Routes that are deleted come back; they follow
// nodes that move, go and are replaced, and go with the network. Foreign routes in the table stay.
func TestPodRoutes(t *testing.T) {
	s := &foreignWriter{t: t}
	clean := func() {
		_, _ = s.try("for n in podhost-a podhost-b podhost-x podhost-sw; do ip netns delete $n; done 2>/dev/null")
	}
	clean()
	t.Cleanup(clean)
	s.run("ip netns add podhost-sw; ip -n podhost-sw link add sw type bridge; ip -n podhost-sw link set sw up")
	for i, n := range []string{"a", "b", "x"} {
		s.run(strings.NewReplacer("NS", "podhost-"+n, "ADDR4", fmt.Sprintf("10.0.1.%d/24", i+1), "ADDR6", fmt.Sprintf("fd00:a::%d/64", i+1), "PORT", "to-"+n).Replace(`
ip netns add NS; ip -n NS link set lo up
ip -n NS link add eth0 type veth peer PORT netns podhost-sw
ip -n podhost-sw link set PORT master sw up
ip -n NS link set eth0 up; ip -n NS address add ADDR4 dev eth0; ip -n NS address add ADDR6 dev eth0 nodad
ip netns exec NS sh -ec 'echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 >$f; done'`))
	}
	a := newPodHost(t, "podhost-a", netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:0:1::/64"))
	b := newPodHost(t, "podhost-b", netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("fd00:244:0:2::/64"))
	podA, a4, a6 := a.pod("pod-a")
	podB, b4, b6 := b.pod("pod-b")

	// A pod accepts what has the other one's own address, and nothing else.
	only := func(ns, from4, from6 string) {
		s.run(fmt.Sprintf("ip netns exec %s nft 'table inet t { chain c { type filter hook input priority 0; ip saddr { %s, 10.0.1.0/24 } accept; ip6 saddr { %s, fd00:a::/64 } accept; icmp type echo-request drop; icmpv6 type echo-request drop; }; }'", ns, from4, from6))
	}
	only(podA, b4, b6)
	only(podB, a4, a6)
	ping := func(from string, to ...string) error {
		for _, to := range to {
			if out, err := s.try(fmt.Sprintf("ip netns exec %s ping -c 1 -W 2 %s", from, to)); err != nil {
				return fmt.Errorf("%s does not reach %s: %w: %s", from, to, err, out)
			}
		}
		return nil
	}
	if ping(podA, b4) == nil || ping(podA, b6) == nil {
		t.Fatal("pods reach one another without routes, so that they prove nothing")
	}
	table := func(node string) string {
		return s.run(fmt.Sprintf("for f in -4 -6; do ip -n %s $f route show table 28781 2>/dev/null | sed 's/ *$//;s/ pref medium//' | sort; ip -n %s $f rule | grep 28781 || true; done", node, node))
	}
	const (
		rule4 = "28781:\tfrom all lookup 28781 proto 112\n"
		rule6 = rule4
		wantA = "10.244.2.0/24 via 10.0.1.2 dev eth0 proto 112 metric 1024\n" + rule4 + "fd00:244:0:2::/64 via fd00:a::2 dev eth0 proto 112 metric 1024\n" + rule6
	)
	is := func(node, want string) {
		t.Helper()
		eventually.Succeeds(t, patience, "the network is as wanted", func() error {
			if have := table(node); have != want {
				return fmt.Errorf("node %s has\n%swant\n%s", node, have, want)
			}
			return nil
		})
	}
	c := &clusterNodes{changed: map[string]func(){}, nodes: map[string]hostroutes.Node{
		"podhost-a": nodeOf("podhost-a", 1, "10.244.1.0/24", "fd00:244:0:1::/64", "10.0.1.1", "fd00:a::1"),
		"podhost-b": nodeOf("podhost-b", 2, "10.244.2.0/24", "fd00:244:0:2::/64", "10.0.1.2", "fd00:a::2"),
	}}
	a.start(c)
	defer func() { a.stop() }()
	b.start(c)
	defer b.stop()
	is("podhost-a", wantA)
	is("podhost-b", strings.NewReplacer("10.244.2", "10.244.1", "0:2::", "0:1::", "10.0.1.2", "10.0.1.1", "a::2", "a::1").Replace(wantA))
	reach := func(toB4, toB6 string) {
		t.Helper()
		eventually.Succeeds(t, patience, "the network is as wanted", func() error {
			for from, to := range map[string][]string{podA: {toB4, toB6}, podB: {a4, a6}, "podhost-a": {toB4, toB6}, "podhost-b": {a4, a6}} {
				if err := ping(from, to...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	reach(b4, b6)
	// The machine outside has no route to a pod: it has seen the address of the node.
	if err := ping(podA, "10.0.1.3", "fd00:a::3"); err != nil {
		t.Error(err)
	}

	// Drift: what is ours comes back, what is not stays.
	s.run("ip -n podhost-a route add 203.0.113.0/24 via 10.0.1.2 table 28781")
	withForeign := strings.Replace(wantA, rule4, "203.0.113.0/24 via 10.0.1.2 dev eth0\n"+rule4, 1)
	is("podhost-a", withForeign)
	deleted := time.Now()
	s.run("ip -n podhost-a route del 10.244.2.0/24 table 28781; ip -n podhost-a -6 route del fd00:244:0:2::/64 table 28781; ip -n podhost-a rule del priority 28781; ip -n podhost-a -6 rule del priority 28781; ip -n podhost-a route add 10.244.77.0/24 via 10.0.1.9 dev eth0 table 28781 proto 112 metric 1024")
	is("podhost-a", withForeign)
	t.Logf("what was deleted was there again after %s", time.Since(deleted).Round(time.Millisecond))
	s.run("ip -n podhost-a route del 203.0.113.0/24 table 28781")
	s.run("ip -n podhost-a link set eth0 down; ip -n podhost-a link set eth0 up; ip -n podhost-a address replace fd00:a::1/64 dev eth0 nodad") // the kernel removes its routes
	is("podhost-a", wantA)
	reach(b4, b6)

	// Another agent, to which the API server does not answer: it removes nothing, and
	// repairs nothing that it does not know.
	a.stop()
	c.Lock()
	c.unheard = true
	c.Unlock()
	created := a.routes.State().Created
	a.start(c)
	eventually.Succeeds(t, patience, "the network is as wanted", func() error {
		if s := a.routes.State(); s.Routes != 2 {
			return fmt.Errorf("%d routes", s.Routes)
		}
		return nil
	})
	if have := table("podhost-a"); have != wantA {
		t.Errorf("without an API server:\n%s", have)
	}
	c.edit(func(map[string]hostroutes.Node) { c.unheard = false })
	is("podhost-a", wantA)
	if now := a.routes.State(); now.Created != 0 || now.Deleted != 0 || created < 6 {
		t.Errorf("the next agent has changed what was right: %+v; the one before has created %d", now, created)
	}

	// A hostile node: its own pods lose, and nobody else.
	c.edit(func(n map[string]hostroutes.Node) {
		n["hostile"] = nodeOf("hostile", 3, "10.244.2.0/25", "fd00:244:0:3::/64", "10.0.1.2", "fd00:a::1")
		n["routed"] = nodeOf("routed", 4, "10.244.4.0/24", "fd00:244:0:4::/64", "192.0.2.4", "2001:db8::4")
	})
	eventually.Succeeds(t, patience, "the network is as wanted", func() error {
		if s := a.routes.State(); s.Routes != 2 || s.Refused != 4 || s.Missing != 0 {
			return fmt.Errorf("beside a hostile node: %+v", s)
		}
		return nil
	})
	is("podhost-a", wantA)
	c.edit(func(n map[string]hostroutes.Node) { delete(n, "hostile"); delete(n, "routed") })

	// The other node gets another address.
	s.run("ip -n podhost-b address add 10.0.1.7/24 dev eth0; ip -n podhost-b address del 10.0.1.2/24 dev eth0; ip -n podhost-b address replace 10.0.1.7/24 dev eth0")
	c.edit(func(n map[string]hostroutes.Node) {
		n["podhost-b"] = nodeOf("podhost-b", 2, "10.244.2.0/24", "fd00:244:0:2::/64", "10.0.1.7", "fd00:a::2")
	})
	is("podhost-a", strings.ReplaceAll(wantA, "10.0.1.2 ", "10.0.1.7 "))
	reach(b4, b6)

	// It goes, and another one with its name, and other pods, joins.
	c.edit(func(n map[string]hostroutes.Node) { delete(n, "podhost-b") })
	is("podhost-a", "")
	c.edit(func(n map[string]hostroutes.Node) {
		n["podhost-b"] = nodeOf("podhost-b", 9, "10.244.9.0/24", "fd00:244:0:9::/64", "10.0.1.7", "fd00:a::2")
	})
	is("podhost-a", strings.NewReplacer("10.0.1.2 ", "10.0.1.7 ", "10.244.2", "10.244.9", "0:2::", "0:9::").Replace(wantA))

	// No topology selects the nodes any more.
	c.edit(func(map[string]hostroutes.Node) { c.ended = true })
	for _, n := range []*podHost{a, b} {
		n.changed.Changed()
		is(n.name, "")
		if s := n.routes.State(); s.Routes != 0 || s.Missing != 0 || s.Refused != 0 {
			t.Errorf("counts after the end: %+v", s)
		}
	}
}
