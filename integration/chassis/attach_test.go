package chassis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/chassis"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
)

// worker is the engine of one node, which is a chassis.
type worker struct {
	*bench
	engine   *reconcile.Reconciler
	registry *ops.Registry
}

// newWorker returns the engine with the domains of OVN. Databases answer at the endpoints.
func newWorker(b *bench, nb, ovs string) *worker {
	b.Helper()
	return newWorkerOf(b, kernel.Options{}, []string{nb}, ovs)
}

// newWorkerOf is that of a node with a namespace of its own, or a Northbound database of several servers.
func newWorkerOf(b *bench, of kernel.Options, nb []string, ovs string, more ...reconcile.ExternalDomain) *worker {
	b.Helper()
	registry, err := all.Registry()
	b.ok(err)
	store, err := journal.Open(filepath.Join(b.TempDir(), "journal"))
	b.ok(err)
	host, err := kernel.Open(of)
	b.ok(err)
	b.Cleanup(func() { host.Close() })
	vswitch, err := openvswitch.NewSwitch(openvswitch.Server{Endpoints: []string{ovs}, Timeout: time.Minute})
	b.ok(err)
	b.Cleanup(vswitch.Close)
	northbound, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: nb, Timeout: time.Minute})
	b.ok(err)
	b.Cleanup(northbound.Close)
	r := reconcile.New(reconcile.Options{
		Registry: registry, Store: store, BootID: host.BootID(), Patience: 3 * time.Minute,
		External: append(more, northbound.Domain(), vswitch.Domain()),
		Open: func(path string) (reconcile.Domain, error) {
			if path == "" {
				return host.WithoutSandbox(), nil
			}
			return host.Sandbox(path)
		},
	})
	return &worker{b, r, registry}
}

// sandbox is a topology of one step in a namespace, which it makes.
func (n *worker) sandbox(name, config string) reconcile.Sandbox {
	n.Helper()
	pod, err := traffic.Bare(name)
	n.ok(err)
	n.Cleanup(func() { pod.Close() })
	return reconcile.Sandbox{ID: reconcile.IDByHand(name, "net"), Netns: pod.Netns, Topology: n.topology(config)}
}

func (n *worker) topology(config string) *topology.Topology {
	n.Helper()
	t, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: net}\nspec:\n  steps:\n  - {name: blue, type: ovn-k8s-cni-overlay, config: " + config + "}\n"))
	n.ok(err)
	n.ok(topology.Validate(n.Context(), t, n.registry))
	return t
}

func (n *worker) apply(s reconcile.Sandbox) reconcile.Report {
	n.Helper()
	rep, err := n.engine.Ensure(n.Context(), s)
	n.ok(err)
	st, err := n.engine.Check(n.Context(), s.ID)
	n.ok(err)
	if st.State != reconcile.InSync {
		n.Fatalf("%s: applied, and then %s: %v %s", s.ID, st.State, st.Drift, st.Failure)
	}
	return rep
}

func (n *worker) release(s reconcile.Sandbox) {
	n.Helper()
	_, err := n.engine.Release(n.Context(), s.ID)
	n.ok(err)
}

// reached exchanges bytes over TCP between two namespaces.
func reached(ctx context.Context, from, to, address string) error {
	var listener net.Listener
	if err := kernel.Within(to, func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(address, "7"))
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	go func() {
		if in, err := listener.Accept(); err == nil {
			_, _ = in.Write([]byte("yes"))
			in.Close()
		}
	}()
	var conn net.Conn
	if err := kernel.Within(from, func() (err error) {
		conn, err = net.DialTimeout("tcp", net.JoinHostPort(address, "7"), 5*time.Second)
		return err
	}); err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	answer := make([]byte, 3)
	if _, err := conn.Read(answer); err != nil {
		return err
	}
	if string(answer) != "yes" {
		return fmt.Errorf("answered %q", answer)
	}
	return ctx.Err()
}

func (n *worker) reach(from, to, address string) {
	n.Helper()
	n.ok(chassis.Eventually(n.Context(), address+" is reached", func() error { return reached(n.Context(), from, to, address) }))
}

// repair repairs a sandbox until it stays in sync: ovn-controller may not have seen yet that the port was gone, and
// installs it again.
func (n *worker) repair(s reconcile.Sandbox) {
	n.Helper()
	n.ok(chassis.Eventually(n.Context(), "repaired", func() error {
		if _, err := n.engine.Repair(n.Context(), s.ID); err != nil {
			return err
		}
		st, err := n.engine.Check(n.Context(), s.ID)
		if err == nil && st.State != reconcile.InSync {
			err = fmt.Errorf("%s: %v", st.State, st.Drift)
		}
		return err
	}))
}

// nothing holds that no row of ours is left.
func (n *worker) nothing() {
	n.Helper()
	for _, table := range []string{"Logical_Switch", "Logical_Switch_Port"} {
		if left := n.run("ovn-nbctl", "--bare", "--columns=name", "list", table); left != "" {
			n.Errorf("%s: left are %q", table, left)
		}
	}
	for port := range strings.SplitSeq(n.run("ovs-vsctl", "list-ports", "br-int"), "\n") {
		if strings.HasPrefix(port, "pl") {
			n.Errorf("port %q is left", port)
		}
	}
}

// TestLayer2: two pods on one network reach each other, packets that are not from a pod's own
// address are dropped, and the last one leaves nothing.
func TestLayer2(t *testing.T) {
	b := start(t)
	n := newWorker(b, b.chassis.Endpoint(), b.chassis.Endpoint())
	one := n.sandbox("one", `{topology: layer2, netAttachDefName: default/tenant-blue, subnets: "172.31.0.0/24,fd00::/64", addresses: [172.31.0.5/24, "fd00::5/64"], dad: "off"}`)
	two := n.sandbox("two", `{topology: layer2, netAttachDefName: default/tenant-blue, subnets: "172.31.0.0/24,fd00::/64", addresses: [172.31.0.6/24, "fd00::6/64"], dad: "off"}`)
	n.apply(one)
	n.apply(two)
	n.reach(one.Netns, two.Netns, "172.31.0.6")
	n.reach(two.Netns, one.Netns, "fd00::5")
	if got := n.run("ovn-nbctl", "--bare", "--columns=name", "list", "Logical_Switch"); got != "plumbline:layer2:default/tenant-blue" {
		t.Errorf("switches %q", got)
	}
	if rep := n.apply(one); !rep.Unchanged {
		t.Errorf("applied twice: %v", rep.Changes)
	}
	n.run("ip", "-n", "one", "addr", "add", "172.31.0.7/24", "dev", "net1")
	if err := kernel.Within(one.Netns, func() error {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("172.31.0.7")}, Timeout: 2 * time.Second}
		conn, err := dialer.Dial("tcp", "172.31.0.6:7")
		if err == nil {
			conn.Close()
			return nil
		}
		return err
	}); err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("from an address that the port does not have: %v", err)
	}
	n.run("ip", "-n", "one", "addr", "del", "172.31.0.7/24", "dev", "net1")
	n.release(two)
	n.apply(one)
	n.release(one)
	n.nothing()
}

// TestSubnets: pods that have an address of each subnet of their network, as an allocator gives them, reach each other, and send from
// these alone. What is excluded nobody has, and the pod for which no address is left has no port.
func TestSubnets(t *testing.T) {
	b := start(t)
	n := newWorker(b, b.chassis.Endpoint(), b.chassis.Endpoint())
	var h addresspool.Holdings
	var pods []reconcile.Sandbox
	for _, name := range []string{"one", "two", "three"} {
		s := n.sandbox(name, `{topology: layer2, netAttachDefName: default/tenant-blue, subnets: "172.31.0.0/29,fd00::/64", excludeSubnets: "172.31.0.0/30,172.31.0.5/32", dad: "off"}`)
		of, ok := topology.FromSubnets(&s.Topology.Steps[0])
		layout, err := addresspool.Of(addresspool.OfSubnets(of))
		if b.ok(err); !ok {
			t.Fatal("the subnets give no addresses")
		}
		got, err := h.Example(layout, addresspool.Owner{Claim: name, Topology: "net", Step: "blue"}, 0)
		if name == "three" {
			if !errors.Is(err, addresspool.ErrNone) {
				t.Errorf("of two addresses a third pod has %v, %v", got, err)
			}
			if _, err := n.engine.Ensure(t.Context(), s); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), of.Pool) {
				t.Errorf("without an address: %v", err)
			}
			continue
		}
		b.ok(err)
		s.Given = ops.Givens{"blue": ops.Allocated(layout, got)}
		n.apply(s)
		pods = append(pods, s)
	}
	for i, s := range pods {
		to := pods[1-i]
		for _, a := range to.Given["blue"].Addresses {
			n.reach(s.Netns, to.Netns, a.Addr().String())
		}
		text := fmt.Sprint(s.Given["blue"].Addresses)
		if want := []string{"[172.31.0.4/29 fd00::1/64]", "[172.31.0.6/29 fd00::2/64]"}[i]; text != want {
			t.Errorf("pod %d has %s, want %s", i, text, want)
		}
		security := n.run("ovn-nbctl", "--bare", "--columns=port_security", "find", "Logical_Switch_Port", "external_ids:dra.networking/owner=plumbline")
		for _, a := range s.Given["blue"].Addresses {
			if !strings.Contains(security, " "+a.Addr().String()) {
				t.Errorf("no port may send from %s, but only %s", a.Addr(), security)
			}
		}
	}
	n.run("ip", "-n", "one", "addr", "add", "172.31.0.5/29", "dev", "net1")
	if err := kernel.Within(pods[0].Netns, func() error {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("172.31.0.5")}, Timeout: 2 * time.Second}
		conn, err := dialer.Dial("tcp", "172.31.0.6:7")
		if err == nil {
			conn.Close()
		}
		return err
	}); err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("from an address that is excluded: %v", err)
	}
	n.run("ip", "-n", "one", "addr", "del", "172.31.0.5/29", "dev", "net1")
	for _, s := range pods {
		n.release(s)
	}
	n.nothing()
}

// TestLocalnet: a pod reaches a host on a VLAN of the physical network. Whatever is deleted from
// the databases by others comes back, programs that crash do not matter, and while a database is
// away nothing is concluded.
func TestLocalnet(t *testing.T) {
	b := start(t)
	n := newWorker(b, b.chassis.Endpoint(), b.chassis.Endpoint())
	host, err := traffic.Bare("server")
	b.ok(err)
	t.Cleanup(func() { host.Close() })
	b.ok(traffic.IP(t.Context(), "link add uplink type veth peer name eth1 netns server\nlink set uplink up"))
	b.ok(host.IP(t.Context(), "link set eth1 up\nlink add link eth1 name eth1.200 type vlan id 200\naddr add 192.168.100.1/24 dev eth1.200\nlink set eth1.200 up"))

	config := `{topology: localnet, role: secondary, physicalNetworkName: "localnet1", netAttachDefName: "default/localnet-blue", subnets: "192.168.100.0/24", vlanID: 200, addresses: [192.168.100.5/24]}`
	pod := n.sandbox("one", config)
	if _, err := n.engine.Ensure(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "ovn-bridge-mappings") {
		t.Fatalf("without a mapping: %v", err)
	}
	n.nothing()
	n.run("ovs-vsctl", "add-br", "br-phys", "--", "add-port", "br-phys", "uplink", "--", "set", "Open_vSwitch", ".", "external_ids:ovn-bridge-mappings=localnet1:br-phys")
	n.apply(pod)
	n.reach(pod.Netns, host.Netns, "192.168.100.1")

	repaired := func(t *testing.T) {
		t.Helper()
		n := &worker{b.in(t), n.engine, n.registry}
		n.repair(pod)
		n.reach(pod.Netns, host.Netns, "192.168.100.1")
	}
	port := n.run("ovn-nbctl", "--bare", "--columns=name", "find", "Logical_Switch_Port", `type=""`)
	link := port[strings.LastIndex(port, ":")+1:]
	const of = "plumbline:localnet:default/localnet-blue:localnet1:200"
	for name, command := range map[string][]string{
		"the port of Open vSwitch is deleted": {"ovs-vsctl", "del-port", link},
		"the logical port is deleted":         {"ovn-nbctl", "lsp-del", port},
		"the logical switch is deleted":       {"ovn-nbctl", "ls-del", of},
		"the localnet port is deleted":        {"ovn-nbctl", "lsp-del", of + ":localnet"},
		"the VLAN is changed":                 {"ovn-nbctl", "set", "Logical_Switch_Port", of + ":localnet", "tag=7", "tag_request=7"},
		"the addresses are changed":           {"ovn-nbctl", "lsp-set-port-security", port, "02:00:00:00:00:99"},
		"it is bound to another port":         {"ovs-vsctl", "set", "Interface", link, "external_ids:iface-id=other"},
		"the pair is deleted":                 {"ip", "link", "del", link},
	} {
		t.Run(name, func(t *testing.T) {
			n.run(command[0], command[1:]...)
			if st, err := n.engine.Check(t.Context(), pod.ID); err != nil || st.State != reconcile.Drifted {
				t.Fatalf("%s %v %v", st.State, st.Drift, err)
			}
			repaired(t)
		})
	}
	for _, name := range []string{chassis.Controller, chassis.VSwitch} {
		t.Run(name+" crashes", func(t *testing.T) {
			b.ok(b.chassis.Restart(t.Context(), name))
			repaired(t)
		})
	}
	t.Run("the databases are away", func(t *testing.T) {
		b.ok(b.chassis.Kill(chassis.Database))
		if st, err := n.engine.Check(t.Context(), pod.ID); err != nil || st.State != reconcile.Drifted {
			t.Errorf("%s %v %v", st.State, st.Drift, err)
		}
		if _, err := n.engine.Repair(t.Context(), pod.ID); fault.Of(err) != fault.NotReady {
			t.Errorf("repaired: %v", err)
		}
		b.ok(b.chassis.Start(t.Context(), chassis.Database))
		repaired(t)
	})
	n.release(pod)
	n.nothing()
}
