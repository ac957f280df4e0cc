package kernel

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// published has the leases that nodes have written of one pool.
type published struct {
	sync.Mutex
	pool    v1alpha1.AddressPool
	leases  map[string]v1alpha1.AddressLease // by node
	unheard bool
	changed map[string]func() // by who follows them
}

// leasesFor is one node's view of it.
type leasesFor struct {
	*published
	node string
}

func (p leasesFor) Follow(_ context.Context, pools []string, changed func()) {
	p.Lock()
	defer p.Unlock()
	if delete(p.changed, p.node); len(pools) > 0 {
		p.changed[p.node] = changed
	}
}

func (p leasesFor) Of(string) (out []*v1alpha1.AddressLease, known bool) {
	p.Lock()
	defer p.Unlock()
	for _, l := range p.leases {
		out = append(out, l.DeepCopy())
	}
	return out, !p.unheard
}

func (p leasesFor) Pools() ([]v1alpha1.AddressPool, error) {
	return []v1alpha1.AddressPool{p.pool}, nil
}

func (p *published) set(l v1alpha1.AddressLease) {
	p.Lock()
	defer p.Unlock()
	p.leases[l.Spec.Node] = l
	for _, f := range p.changed {
		f()
	}
}

// wiredNode is a network namespace that stands for a machine, with a pod of mode l3 or l3s.
type wiredNode struct {
	t      *testing.T
	name   string
	number int
	mu     sync.Mutex
	claims []claims.Entry
	routes *hostroutes.Keeper
	ended  table.Changes // of claims
	stop   func()
}

func (n *wiredNode) entries() []claims.Entry {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.claims
}

// start runs an agent's keeper of routes.
func (n *wiredNode) start(p *published) {
	path := "/run/netns/" + n.name
	host, err := kernel.Open(kernel.Options{Netns: path})
	if err != nil {
		n.t.Fatal(err)
	}
	var found hostroutes.Addresses
	changed := table.Woken(&found)
	n.routes = hostroutes.New(hostroutes.Options{
		NodeName: n.name, Host: host, Leases: leasesFor{p, n.name}, Claims: n.entries, WokenBy: []table.Source{&n.ended}, Addresses: &found,
		Watch: func(changed, failed func()) (io.Closer, error) { return watch.Routing(path, changed, failed) },
		Log:   slog.New(slog.NewTextHandler(n.t.Output(), nil)), Now: time.Now,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.routes.Run(ctx) })
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			hosts, _ := found.Of("multi-nic")
			l := v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{Pool: "multi-nic", Block: fmt.Sprintf("192.168.%d.0/24", n.number), Node: n.name, HostAddresses: hosts}}
			l.Name = addresspool.LeaseName("multi-nic", netip.MustParsePrefix(l.Spec.Block))
			p.set(l)
		}
	})
	n.stop = func() {
		cancel()
		wg.Wait()
		host.Close()
	}
}

// TestHostRoutes is the example of multi-nic-cni on two nodes that are wired together with two
// networks: pods in mode l3 and l3s reach one another over both at the same time, with their
// own addresses. Routes that are deleted come back, also with another agent; they follow an
// address of a host that moves, and go with the last pod. Foreign routes in the table stay.
func TestHostRoutes(t *testing.T) {
	for _, mode := range effort.Sample(t, 2, []string{"l3", "l3s"}) {
		t.Run(mode, func(t *testing.T) {
			s := &foreignWriter{t: t}
			p := &published{leases: map[string]v1alpha1.AddressLease{}, changed: map[string]func(){}}
			p.pool.Name = "multi-nic"
			p.pool.Spec = v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.168.0.0/16"}}, HostBlock: new(int32(6)), InterfaceBlock: new(int32(2))}
			topology := v1alpha1.NetworkTopology{}
			topology.Name, topology.UID, topology.Generation = "multi-nic", "uid", 1
			topology.Spec.Steps = []v1alpha1.Step{{Name: "net1", Type: "ipvlan"}}
			topology.Spec.Steps[0].Config = &runtime.RawExtension{Raw: []byte(`{"masterNets": ["10.0.1.0/24", "10.0.2.0/24"], "ipam": {"type": "multi-nic-ipam", "hostBlock": 6, "interfaceBlock": 2, "vlanMode": "` + mode + `"}}`)}

			nodes := []*wiredNode{{t: t, name: "route-a", number: 0}, {t: t, name: "route-b", number: 1}}
			clean := func() {
				_, _ = s.try("for n in route-a route-b; do ip netns delete $n-pod; ip netns delete $n; done 2>/dev/null")
			}
			clean()
			t.Cleanup(clean)
			s.run("ip netns add route-a; ip netns add route-b; ip netns add route-a-pod; ip netns add route-b-pod")
			for i := 1; i <= 2; i++ {
				s.run(fmt.Sprintf("ip -n route-a link add eth%d type veth peer eth%d netns route-b", i, i))
			}
			// Strict, and no router: nothing of the host has to be changed.
			s.run("for n in route-a route-b; do ip netns exec $n sh -ec 'for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 >$f; done; echo 0 >/proc/sys/net/ipv4/ip_forward'; done")
			for i, n := range nodes {
				for e := 1; e <= 2; e++ {
					s.run(fmt.Sprintf("ip -n %s link set eth%d up; ip -n %s address add 10.0.%d.%d/24 dev eth%d", n.name, e, n.name, e, i+1, e))
					s.run(fmt.Sprintf("ip -n %s link add net1-%d link eth%d netns %s-pod type ipvlan mode %s; ip -n %s-pod link set net1-%d up; ip -n %s-pod address add 192.168.%d.1/18 dev net1-%d",
						n.name, e-1, e, n.name, mode, n.name, e-1, n.name, i+64*(e-1), e-1))
				}
			}
			table := func(node string) string {
				return s.run(fmt.Sprintf("ip -n %s -4 route show table 28780 2>/dev/null | sed 's/ *$//' | sort; ip -n %s rule | grep 28780 || true", node, node))
			}
			const wantA = "192.168.1.0/24 via 10.0.1.2 dev eth1 proto 112 metric 1024\n192.168.65.0/24 via 10.0.2.2 dev eth2 proto 112 metric 1024\n28780:\tfrom 192.168.0.0/16 lookup 28780 proto 112\n"
			is := func(node, want string) {
				t.Helper()
				eventually.Succeeds(t, patience, "the network is as wanted", func() error {
					if have := table(node); have != want {
						return fmt.Errorf("node %s has\n%swant\n%s", node, have, want)
					}
					return nil
				})
			}
			before := table("route-a")
			if out, err := s.try("ip netns exec route-a-pod ping -c 1 -W 2 -I net1-0 192.168.1.1"); err == nil {
				t.Fatalf("pods reach one another without routes, so that they prove nothing:\n%s", out)
			}

			running := claims.Entry{Claim: claims.Claim{UID: "claim", Topologies: []claims.Topology{{Object: topology}}}}
			for _, n := range nodes {
				n.claims = []claims.Entry{running}
				n.start(p)
			}
			a := nodes[0]
			defer func() { a.stop() }()
			defer nodes[1].stop()
			is("route-a", wantA)
			if err := a.routes.Await(t.Context(), &running.Topologies[0]); err != nil {
				t.Error(err)
			}
			reach := func() {
				t.Helper()
				eventually.Succeeds(t, patience, "the network is as wanted", func() error {
					out, err := s.try("ip netns exec route-a-pod sh -ec 'ping -c 3 -i 0.2 -W 2 -I net1-0 192.168.1.1 & p=$!; ping -c 3 -i 0.2 -W 2 -I net1-1 192.168.65.1; wait $p'")
					if err != nil {
						return fmt.Errorf("%w: %s", err, out)
					}
					return nil
				})
			}
			is("route-b", strings.NewReplacer("192.168.1.0", "192.168.0.0", "192.168.65.0", "192.168.64.0", "10.0.1.2", "10.0.1.1", "10.0.2.2", "10.0.2.1").Replace(wantA))
			reach()

			// A node publishes a next hop that the kernel refuses, here one for broadcasts: that is the
			// loss of its own pods.
			s.run("ip -n route-a address add 10.0.1.50/29 dev eth1")
			lying := v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{Pool: "multi-nic", Block: "192.168.2.0/24", Node: "liar", HostAddresses: []v1alpha1.HostAddress{{Network: "10.0.1.0/24", Address: "10.0.1.55"}}}}
			lying.Name = addresspool.LeaseName("multi-nic", netip.MustParsePrefix(lying.Spec.Block))
			p.set(lying)
			eventually.Succeeds(t, patience, "the network is as wanted", func() error {
				if s := a.routes.State(); s.Routes != 2 || s.Missing != 1 {
					return fmt.Errorf("beside a node that lies: %+v", s)
				}
				return a.routes.Await(t.Context(), &running.Topologies[0])
			})
			is("route-a", wantA)
			p.Lock()
			delete(p.leases, "liar")
			p.Unlock()
			s.run("ip -n route-a address del 10.0.1.50/29 dev eth1")

			// Drift: what is ours comes back, what is not stays.
			s.run("ip -n route-a route add 203.0.113.0/24 via 10.0.1.2 table 28780")
			s.run("ip -n route-a route del 192.168.1.0/24 table 28780; ip -n route-a rule del priority 28780; ip -n route-a route add 192.168.9.0/24 via 10.0.1.9 dev eth1 table 28780 proto 112 metric 1024")
			withForeign := strings.Replace(wantA, "28780:", "203.0.113.0/24 via 10.0.1.2 dev eth1\n28780:", 1)
			is("route-a", withForeign)
			s.run("ip -n route-a route del 203.0.113.0/24 table 28780")
			s.run("ip -n route-a link set eth1 down; ip -n route-a link set eth1 up") // the kernel removes its routes
			is("route-a", wantA)
			reach()

			// Another agent, to which the API server does not answer: it removes nothing.
			a.stop()
			p.Lock()
			p.unheard = true
			p.Unlock()
			a.start(p)
			if err := a.routes.Await(t.Context(), &running.Topologies[0]); err == nil {
				t.Error("a pod starts before the leases are known")
			}
			if have := table("route-a"); have != wantA {
				t.Errorf("without an API server:\n%s", have)
			}
			p.Lock()
			p.unheard = false
			p.Unlock()
			is("route-a", wantA)

			// The address of the other host moves.
			s.run("ip -n route-b address add 10.0.1.7/24 dev eth1; ip -n route-b address del 10.0.1.2/24 dev eth1; ip -n route-b address replace 10.0.1.7/24 dev eth1")
			is("route-a", strings.ReplaceAll(wantA, "10.0.1.2 ", "10.0.1.7 "))
			reach()

			// The last pod of a node ends.
			nodes[1].mu.Lock()
			nodes[1].claims = nil
			nodes[1].mu.Unlock()
			nodes[1].ended.Changed()
			is("route-b", "")
			is("route-a", "28780:\tfrom 192.168.0.0/16 lookup 28780 proto 112\n")
			a.mu.Lock()
			a.claims = nil
			a.mu.Unlock()
			a.ended.Changed()
			is("route-a", before)
			if s := a.routes.State(); s.Routes != 0 || s.Missing != 0 {
				t.Errorf("counts after the last pod: %+v", s)
			}
		})
	}
}
