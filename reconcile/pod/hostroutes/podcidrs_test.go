package hostroutes

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// nodeAt is a node "NAME CIDR... at INTERNAL-IP...", later ones in a list being younger.
func nodeAt(text string) Node {
	f := strings.Fields(text)
	n := Node{Name: f[0]}
	at := false
	for _, s := range f[1:] {
		switch {
		case s == "at":
			at = true
		case at:
			ip, _ := netip.ParseAddr(s)
			n.InternalIPs = append(n.InternalIPs, ip)
		default:
			p, _ := netip.ParsePrefix(s)
			n.PodCIDRs = append(n.PodCIDRs, p)
		}
	}
	return n
}

func nodesAt(texts ...string) (out []Node) {
	for i, text := range texts {
		n := nodeAt(text)
		n.Created = time.Unix(int64(i), 0)
		out = append(out, n)
	}
	return out
}

// hostAt are the addresses of a node a with pods of type bridge.
func hostAt(more ...string) []addressOfHost {
	var all []netstate.Addr
	for _, text := range append([]string{
		"lo 127.0.0.1/8", "lo ::1/128", "eth0 10.0.1.1/24", "eth0 fd00:a::1/64", "eth0 fe80::1/64", "eth1 10.0.2.1/24", "docker0 172.17.0.1/16",
		"cni0 10.244.1.1/24", "cni0 fd00:244:0:1::1/64",
	}, more...) {
		f := strings.Fields(text)
		all = append(all, netstate.Addr{Link: netstate.HostName(f[0]), Address: f[1]})
	}
	return attachedTo(all)
}

const self = "a 10.244.1.0/24 fd00:244:0:1::/64 at 10.0.1.1 fd00:a::1"

func TestPodRoutes(t *testing.T) {
	for _, c := range []struct {
		name    string
		nodes   []string
		host    []string
		cluster []string
		want    []string
		refused []string // parts of the reasons
	}{
		{name: "both families", nodes: []string{self, "b 10.244.2.0/24 fd00:244:0:2::/64 at 10.0.1.2 fd00:a::2"}, want: []string{
			"10.244.2.0/24 via 10.0.1.2 dev host:eth0", "fd00:244:0:2::/64 via fd00:a::2 dev host:eth0",
		}},
		{name: "this node alone", nodes: []string{self}},
		{name: "a node without pod CIDRs yet", nodes: []string{self, "b at 10.0.1.2"}},
		{name: "this node without pod CIDRs yet", nodes: []string{"a at 10.0.1.1", "b 10.244.2.0/24 at 10.0.1.2"}, want: []string{"10.244.2.0/24 via 10.0.1.2 dev host:eth0"}},
		{name: "another network of the host", nodes: []string{self, "b 10.244.2.0/24 at 10.0.2.2"}, want: []string{"10.244.2.0/24 via 10.0.2.2 dev host:eth1"}},
		{name: "the first address that is on a network of the host", nodes: []string{self, "b 10.244.2.0/24 at 192.0.2.2 10.0.2.2 10.0.1.2"}, want: []string{"10.244.2.0/24 via 10.0.2.2 dev host:eth1"}},
		{name: "the network with the longest prefix", nodes: []string{self, "b 10.244.2.0/24 at 10.0.1.2"}, host: []string{"eth2 10.0.1.3/29"}, want: []string{"10.244.2.0/24 via 10.0.1.2 dev host:eth2"}},
		{
			name: "one family of two", nodes: []string{self, "b 10.244.2.0/24 fd00:244:0:2::/64 at 10.0.1.2"},
			want: []string{"10.244.2.0/24 via 10.0.1.2 dev host:eth0"}, refused: []string{`node "b": pod CIDR fd00:244:0:2::/64: its node has no InternalIP of that family`},
		},
		{name: "behind a router", nodes: []string{self, "b 10.244.2.0/24 at 10.9.0.2"}, refused: []string{"the router between them has to know the route"}},
		{name: "public addresses", nodes: []string{self, "b 198.51.100.0/24 2001:db8::/64 at 10.0.1.2 fd00:a::2"}, refused: []string{"not private", "not private"}},
		{name: "public addresses that are the cluster's", nodes: []string{self, "b 198.51.100.0/24 2001:db8::/64 at 10.0.1.2 fd00:a::2"}, cluster: []string{"198.51.0.0/16", "2001:db8::/48"}, want: []string{
			"198.51.100.0/24 via 10.0.1.2 dev host:eth0", "2001:db8::/64 via fd00:a::2 dev host:eth0",
		}},
		{name: "outside of the cluster's", nodes: []string{self, "b 10.96.0.0/24 at 10.0.1.2", "c 10.244.0.0/15 at 10.0.1.3"}, cluster: []string{"10.244.0.0/16"}, refused: []string{"--cluster-cidr", "--cluster-cidr"}},
		// What a kubelet may write into its node's status, or when it registers its node:
		{name: "this host as the next hop", nodes: []string{self, "b 10.244.2.0/24 at 10.0.2.1"}, refused: []string{"10.0.2.1 of its node is one of this host"}},
		{name: "a pod of this node as the next hop", nodes: []string{self, "b 10.244.2.0/24 at 10.244.1.9"}, refused: []string{"in a pod CIDR of this node"}},
		{name: "all hosts as the next hop", nodes: []string{self, "b 10.244.2.0/24 at 10.0.1.255", "c 10.244.3.0/24 at 10.0.1.0"}, refused: []string{"not that of another host", "not that of another host"}},
		{name: "no host as the next hop", nodes: []string{self, "b 10.244.2.0/24 fd00:244:0:2::/64 at 127.0.0.2 x 224.0.0.5 fe80::2 ff02::1 ::ffff:10.0.1.2 fe80::2%eth0"}, refused: []string{"InternalIP", "InternalIP"}},
		{name: "the address of another node", nodes: []string{self, "b 10.244.2.0/24 at 10.0.1.2", "c 10.244.3.0/24 at 10.0.1.2"}, want: []string{
			"10.244.2.0/24 via 10.0.1.2 dev host:eth0", "10.244.3.0/24 via 10.0.1.2 dev host:eth0",
		}},
		{name: "default routes", nodes: []string{self, "b 0.0.0.0/0 ::/0 at 10.0.1.2 fd00:a::2"}, refused: []string{"prefix length below 8", "prefix length below 16"}},
		{name: "parts of a default route", nodes: []string{self, "b 0.0.0.0/1 8000::/1 at 10.0.1.2 fd00:a::2", "c 128.0.0.0/1 ::/1 at 10.0.1.2 fd00:a::2"}, refused: []string{"below", "below", "below", "below"}},
		{name: "no CIDR", nodes: []string{self, "b 10.244.2.1/24 ::ffff:10.244.2.0/120 at 10.0.1.2 fd00:a::2", "c x at 10.0.1.3"}, refused: []string{"not a CIDR", "not a CIDR", `node "c": pod CIDR: it is not a CIDR`}},
		{
			name: "addresses with a meaning", nodes: []string{self, "b 169.254.0.0/16 fe80::/64 at 10.0.1.2 fd00:a::2", "c 127.0.0.0/8 ff00::/16 at 10.0.1.2 fd00:a::2", "d 224.0.0.0/8 ::/96 at 10.0.1.2 fd00:a::2"},
			cluster: []string{"0.0.0.0/0", "::/0"}, refused: []string{"no pod", "no pod", "no pod", "no pod", "no pod", "no pod"},
		},
		{
			name: "networks of the host", nodes: []string{self, "b 10.0.1.0/24 fd00:a::/64 at 10.0.2.2 fd00:a::2", "c 172.17.3.0/24 at 10.0.1.3", "d 10.0.0.0/16 at 10.0.1.4", "e 10.0.1.128/25 at 10.0.1.5"},
			refused: []string{"of the interface \"eth0\"", "of the interface \"eth0\"", "172.17.0.0/16 of the interface \"docker0\"", "of the interface", "of the interface \"eth0\""},
		},
		{name: "addresses of the host without a network", nodes: []string{self, "b 10.244.9.0/24 at 10.0.1.2"}, host: []string{"veth1 10.244.9.1/32"}, refused: []string{`10.244.9.1/32 of the interface "veth1"`}},
		{name: "the pods of this node", nodes: []string{"b 10.244.1.0/24 fd00:244::/48 at 10.0.1.2 fd00:a::2", "c 10.244.0.0/16 at 10.0.1.3", self}, refused: []string{"overlaps a pod CIDR of this node", "overlaps a pod CIDR of this node", "overlaps a pod CIDR of this node"}},
		{
			name: "the pods of an older node", nodes: []string{self, "b 10.244.2.0/24 10.245.2.0/24 at 10.0.1.2", "c 10.244.2.0/24 10.244.2.128/25 at 10.0.1.3", "d 10.245.0.0/16 at 10.0.1.4"},
			want:    []string{"10.244.2.0/24 via 10.0.1.2 dev host:eth0", "10.245.2.0/24 via 10.0.1.2 dev host:eth0"},
			refused: []string{`overlaps 10.244.2.0/24 of the node "b"`, `overlaps 10.244.2.0/24 of the node "b"`, `overlaps 10.245.2.0/24 of the node "b", which is older`},
		},
		{name: "the pods of an older node that cannot be reached", nodes: []string{self, "b 10.244.2.0/24 at 10.9.0.2", "c 10.244.2.0/24 at 10.0.1.3"}, refused: []string{"router", `of the node "b", which is older`}},
		{
			name: "a node that is refused takes nothing from later ones", nodes: []string{self, "b 10.244.2.0/24 at 10.0.1.2", "c 10.244.2.0/23 at 10.0.1.3", "d 10.244.3.0/24 at 10.0.1.4"},
			want:    []string{"10.244.2.0/24 via 10.0.1.2 dev host:eth0", "10.244.3.0/24 via 10.0.1.4 dev host:eth0"},
			refused: []string{`node "c"`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes := nodesAt(c.nodes...)
			slices.Reverse(nodes) // the order in a cache is any
			var cluster []netip.Prefix
			for _, s := range c.cluster {
				cluster = append(cluster, prefix(s))
			}
			routes, rules, refused, known := podRoutesOf("a", nodes, hostAt(c.host...), cluster)
			if !known {
				t.Fatal("this node is not found")
			}
			var have []string
			families := map[string]bool{}
			for _, r := range routes {
				text, ok := strings.CutSuffix(r.Key().ID, " table 28781 metric 1024")
				if !ok {
					t.Errorf("%s is not in the table of routes to pods", r.Key())
				}
				have = append(have, text)
				families[netstate.IPv4] = families[netstate.IPv4] || !r.IPv6()
				families[netstate.IPv6] = families[netstate.IPv6] || r.IPv6()
			}
			if diff := cmp.Diff(c.want, have); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, family := range []string{netstate.IPv4, netstate.IPv6} {
				i := slices.IndexFunc(rules, func(r netstate.Rule) bool { return r.Family == family })
				if (i >= 0) != families[family] || i >= 0 && rules[i].Key().ID != family+" priority 28781 table 28781" {
					t.Errorf("rules %v for the families %v", rules, families)
				}
			}
			if len(refused) != len(c.refused) {
				t.Fatalf("refused: %s\nwant %q", textOf(refused), c.refused)
			}
			for i, r := range refused {
				if !strings.Contains(r.String(), c.refused[i]) {
					t.Errorf("refused: %s\nwant %q", r, c.refused[i])
				}
			}
		})
	}
}

// TestPodRoutesUnknown: without the node itself it is not known which pods are its own.
func TestPodRoutesUnknown(t *testing.T) {
	if routes, _, _, known := podRoutesOf("a", nodesAt("b 10.244.2.0/24 at 10.0.1.2"), hostAt(), nil); known || len(routes) > 0 {
		t.Errorf("known %t, routes %v", known, routes)
	}
}

// TestPodRoutesMany: the work does not grow with the square of the nodes, and the routes are bounded.
func TestPodRoutesMany(t *testing.T) {
	nodes := nodesAt("a 10.0.0.0/30 at 172.16.0.1")
	for i := range maxPodRoutes + 10 {
		n := Node{Name: fmt.Sprint("n", i), Created: time.Unix(int64(10+i), 0)}
		n.PodCIDRs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(1 + i>>14), byte(i >> 6), byte(i << 2)}), 30)}
		n.InternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(1 + i>>8), byte(i)})}
		nodes = append(nodes, n)
	}
	host := attachedTo([]netstate.Addr{{Link: "host:eth0", Address: "172.16.0.1/12"}})
	routes, _, refused, _ := podRoutesOf("a", nodes, host, nil)
	if len(routes) != maxPodRoutes || len(refused) != 10 || !strings.Contains(refused[0].why, "already") {
		t.Errorf("%d routes, refused: %s", len(routes), textOf(refused))
	}
	if text := textOf(refused); strings.Count(text, "node ") != 8 || !strings.HasSuffix(text, "and 2 more") {
		t.Errorf("reported: %s", text)
	}
}

func TestTrimNode(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "b", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Unix(9, 0), Labels: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}}
	n.Spec.PodCIDRs = []string{"10.244.2.0/24", "x", "10.244.3.0/24"}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "b"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "no address"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1%" + strings.Repeat("z", 1<<10)}}
	for range 100 {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.1.2"})
	}
	out, err := trimNode(n)
	if err != nil {
		t.Fatal(err)
	}
	c, ok := out.(*cachedNode)
	if !ok {
		t.Fatalf("%T", out)
	}
	if diff := cmp.Diff(metav1.ObjectMeta{Name: "b", UID: "u", ResourceVersion: "7"}, c.ObjectMeta); diff != "" {
		t.Errorf("kept of the metadata (-want +got):\n%s", diff)
	}
	if c.Node.Name != "b" || !c.Created.Equal(time.Unix(9, 0)) || !slices.Equal(c.PodCIDRs, []netip.Prefix{prefix("10.244.2.0/24"), {}}) || len(c.InternalIPs) != maxInternalIPs || c.InternalIPs[0] != netip.MustParseAddr("10.0.1.2") {
		t.Errorf("kept %+v", c.Node)
	}
	other := c.Node
	other.InternalIPs = other.InternalIPs[1:]
	if sameNode(&c.Node, &other) || !sameNode(&c.Node, &c.Node) {
		t.Error("an address that is gone does not count as a change, or nothing does")
	}
}

// hostTable has the kernel's entries of our tables, for tests of decisions.
type hostTable struct {
	addresses []netstate.Addr
	routes    map[netstate.Key]netstate.Route
	rules     map[netstate.Key]netstate.Rule
	failing   error // of Addresses
}

func (h *hostTable) OnNetwork(context.Context, netip.Prefix) (link string, a netip.Addr, ok bool, err error) {
	return "", a, false, nil
}

func (h *hostTable) Master(context.Context, string) (link string, addresses []netip.Prefix, err error) {
	return "", nil, nil
}

func (h *hostTable) Addresses(context.Context) ([]netstate.Addr, error) {
	return h.addresses, h.failing
}

func (h *hostTable) Table(context.Context) (routes []netstate.Route, rules []netstate.Rule, err error) {
	for _, r := range h.routes {
		routes = append(routes, r)
	}
	for _, r := range h.rules {
		rules = append(rules, r)
	}
	return routes, rules, nil
}

func (h *hostTable) ApplyTable(_ context.Context, changes []netstate.Change) error {
	for _, c := range changes {
		switch o := c.Object().(type) {
		case netstate.Route:
			if h.routes[o.Key()] = o; c.Action() == netstate.Delete {
				delete(h.routes, o.Key())
			}
		case netstate.Rule:
			if h.rules[o.Key()] = o; c.Action() == netstate.Delete {
				delete(h.rules, o.Key())
			}
		}
	}
	return nil
}

// cluster is the agent's view of other nodes.
type cluster struct {
	nodes    []Node
	known    bool
	followed bool
	network  PodNetwork
}

func (c *cluster) Follow(_ context.Context, on bool, _ func()) { c.followed = on }
func (c *cluster) All() ([]Node, bool)                         { return c.nodes, c.known }

// noLeases are those of a cluster without pools.
type noLeases struct{}

func (noLeases) Follow(context.Context, []string, func())           {}
func (noLeases) Of(string) (l []*v1alpha1.AddressLease, known bool) { return nil, false }
func (noLeases) Pools() ([]v1alpha1.AddressPool, error)             { return nil, nil }

type closer func()

func (c closer) Close() error { c(); return nil }

// TestPodRoutesFailSafe: what is there stays until it is known that it is not needed, and goes then.
func TestPodRoutesFailSafe(t *testing.T) {
	h := &hostTable{routes: map[netstate.Key]netstate.Route{}, rules: map[netstate.Key]netstate.Rule{}}
	for _, a := range hostAt() {
		h.addresses = append(h.addresses, netstate.Addr{Link: a.link, Address: a.at.String()})
	}
	c := &cluster{}
	watched := 0
	k := New(Options{
		NodeName: "a", Host: h, Leases: noLeases{}, Nodes: c, PodNetwork: func() PodNetwork { return c.network }, Claims: func() []claims.Entry { return nil },
		Watch: func(func(), func()) (io.Closer, error) { watched++; return closer(func() { watched-- }), nil },
		Log:   slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now,
	})
	both := nodesAt(self, "b 10.244.2.0/24 at 10.0.1.2", "c 10.244.3.0/24 at 10.9.0.3")
	for _, step := range []struct {
		what    string
		change  func()
		routes  int
		refused int
		fails   bool
	}{
		{"no own network", func() { c.network.Known = true }, 0, 0, false},
		{"the nodes are not known yet", func() { c.network.Used = true; c.nodes = both }, 0, 0, true},
		{"they are known", func() { c.known = true }, 1, 1, false},
		{"an agent that was started without an API server", func() { c.known = false }, 1, 1, true},
		{"an API server that has lost this node", func() { c.known = true; c.nodes = both[1:2] }, 1, 1, true},
		{"addresses that cannot be read", func() { c.nodes = both; h.failing = context.DeadlineExceeded }, 1, 1, true},
		{"another address of the node", func() { h.failing = nil; c.nodes = nodesAt(self, "b 10.244.2.0/24 at 10.0.1.7") }, 1, 0, false},
		{"a node that is gone", func() { c.nodes = both[:1] }, 0, 0, false},
		{"a node that was replaced", func() { c.nodes = nodesAt(self, "b 10.244.9.0/24 at 10.0.1.2") }, 1, 0, false},
		{"whether pods have the network is not known", func() { c.network.Used, c.network.Known = false, false }, 1, 0, false},
		{"the role has ended", func() { c.network.Known = true }, 0, 0, false},
	} {
		step.change()
		err := k.pass(t.Context())
		if (err != nil) != step.fails || len(h.routes) != step.routes || len(h.rules) != step.routes {
			t.Errorf("%s: %v, routes %v, rules %v, want %d", step.what, err, h.routes, h.rules, step.routes)
		}
		if s := k.State(); !step.fails && (s.Routes != step.routes || s.Refused != step.refused || s.Missing != 0) {
			t.Errorf("%s: counts %+v, want %d routes and %d refused", step.what, s, step.routes, step.refused)
		}
		if used := c.network.Used; c.followed != used || (watched == 1) != used {
			t.Errorf("%s: nodes followed %t, the host watched %d times", step.what, c.followed, watched)
		}
	}
}
