package chassis_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// card says which link represents a device, in place of devlink and sysfs: no emulated card has
// functions with representors.
type card struct{ representor netstate.Representor }

func (c *card) domain() reconcile.ExternalDomain {
	return reconcile.ExternalDomain{
		Name: "a card as data", Kinds: []netstate.Kind{netstate.KindRepresentor},
		Open: func(context.Context, reconcile.Sandbox) (reconcile.External, error) { return c, nil },
	}
}

func (c *card) Extend(_ context.Context, s *netstate.Snapshot, queried []netstate.Object) error {
	for _, o := range queried {
		if o.Key() == c.representor.Key() {
			s.Put(c.representor)
		} else {
			s.PutAbsent(o.Key())
		}
	}
	return nil
}

func (*card) Apply(_ context.Context, c netstate.Change) error { return fmt.Errorf("changed: %v", c) }

func (*card) Close() error { return nil }

// card makes such a function, and says nothing yet of what represents it. One end of a pair has the
// part of the virtual function, vf0, the other that of its representor, rep0.
func (b *bench) card() *card {
	b.Helper()
	b.ok(traffic.IP(b.Context(), "link add vf0 address 02:00:00:00:05:01 mtu 1450 type veth peer name rep0\n"))
	b.Cleanup(func() { // the one that has the name; the other goes with it
		_ = traffic.IP(context.Background(), "link del vf0")
	})
	return &card{netstate.Representor{ID: "if:vf0", Link: new(""), PF: "0000:03:00.0"}}
}

// withFunction is a sandbox that is given the function.
func (n *worker) withFunction(name string) reconcile.Sandbox {
	n.Helper()
	s := n.sandbox(name, `{topology: layer2, role: secondary, netAttachDefName: default/tenant-blue, subnets: 172.31.0.0/24, addresses: [172.31.0.5/24]}`)
	s.Given = ops.Givens{}.WithDevices(map[string]string{"blue": "if:vf0"})
	return s
}

// link is the host's state of a link.
func (b *bench) link(name string) string {
	b.Helper()
	return b.run("ip", "-o", "link", "show", "dev", name)
}

// TestFunction: a device is moved into a pod, and the link that represents it is the port of the
// bridge. Packets pass between it and a pod with a pair.
func TestFunction(t *testing.T) {
	b := start(t)
	c := b.card()
	n := newWorkerOf(b, kernel.Options{}, []string{b.chassis.Endpoint()}, b.chassis.Endpoint(), c.domain())
	one := n.withFunction("one")
	two := n.sandbox("two", `{topology: layer2, role: secondary, netAttachDefName: default/tenant-blue, subnets: 172.31.0.0/24, addresses: [172.31.0.6/24]}`)

	if _, err := n.engine.Ensure(t.Context(), one); fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), "devlink dev eswitch set pci/0000:03:00.0 mode switchdev") {
		t.Fatalf("in mode legacy: %v", err)
	}
	n.nothing()
	before, represented := n.link("vf0"), n.link("rep0")

	c.representor.Switchdev, c.representor.Link = true, new("host:rep0")
	n.apply(one)
	n.apply(two)
	n.reach(one.Netns, two.Netns, "172.31.0.6")
	n.reach(two.Netns, one.Netns, "172.31.0.5")
	if rep := n.apply(one); !rep.Unchanged {
		t.Errorf("applied twice: %v", rep.Changes)
	}
	mac := strings.Fields(n.run("ip", "-n", "one", "-br", "link", "show", "net1"))[2]
	port := n.run("ovs-vsctl", "get", "Interface", "rep0", "external_ids:iface-id")
	for key, want := range map[string]string{
		"attached_mac": mac, "vf-netdev-name": "vf0", "ovn-installed": "true", "iface-id-ver": string(one.ID) + "/blue",
	} {
		if got := strings.Trim(n.run("ovs-vsctl", "get", "Interface", "rep0", "external_ids:"+key), `"`); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if got := n.run("ovn-nbctl", "lsp-get-port-security", strings.Trim(port, `"`)); got != mac+" 172.31.0.5" {
		t.Errorf("port security %q, want MAC %s and its address", got, mac)
	}

	disturbed := func(name string, do func()) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			do()
			n := &worker{b.in(t), n.engine, n.registry}
			if st, err := n.engine.Check(t.Context(), one.ID); err != nil || st.State != reconcile.Drifted {
				t.Fatalf("%s %v %v", st.State, st.Drift, err)
			}
			n.repair(one)
			n.reach(two.Netns, one.Netns, "172.31.0.5")
		})
	}
	released := func() {
		t.Helper()
		n.release(one)
		if ports := strings.Fields(n.run("ovs-vsctl", "list-ports", "br-int")); len(ports) != 1 {
			t.Errorf("ports %q, want that of the pair", ports)
		}
		if after := strings.ReplaceAll(n.link("vf0"), "@rep9", "@rep0"); after != before {
			t.Errorf("the device was\n%s\nand is\n%s", before, after)
		}
	}
	for _, act := range []struct {
		name string
		do   func()
	}{
		{"the port is deleted", func() { n.run("ovs-vsctl", "del-port", "rep0") }},
		{"the representor is set down", func() { n.run("ip", "link", "set", "rep0", "down") }},
		{"its MTU is changed", func() { n.run("ip", "link", "set", "rep0", "mtu", "1300") }},
		{"the MAC in the pod is changed", func() { n.run("ip", "-n", "one", "link", "set", "net1", "address", "02:00:00:00:05:09") }},
		{"the logical port is deleted", func() { n.run("ovn-nbctl", "lsp-del", strings.Trim(port, `"`)) }},
	} {
		disturbed(act.name, act.do)
	}
	released()
	// A qdisc is there since it was up.
	if after := strings.ReplaceAll(n.link("rep0"), "qdisc noqueue", "qdisc noop"); after != represented {
		t.Errorf("the representor was\n%s\nand is\n%s", represented, after)
	}

	n.apply(one)
	disturbed("the representor is renamed", func() {
		n.run("ip", "link", "set", "rep0", "down")
		n.run("ip", "link", "set", "rep0", "name", "rep9")
		c.representor.Link = new("host:rep9")
	})
	released()
	if after := n.link("rep9"); !strings.Contains(after, "M-DOWN") {
		t.Errorf("the representor is %s, want it down", after)
	}
	n.release(two)
	n.nothing()
}

// TestFunctionDeath: the process ends after any change of attaching a function, of repairing it and of its
// release. The next one continues: in the end the function is the pod's, or it and its representor are what they were.
func TestFunctionDeath(t *testing.T) {
	b := start(t)
	c := b.card()
	c.representor.Switchdev, c.representor.Link = true, new("host:rep0")
	n := newWorkerOf(b, kernel.Options{}, []string{b.chassis.Endpoint()}, b.chassis.Endpoint(), c.domain())
	dir := filepath.Join(t.TempDir(), "journal")
	alive := n.engineOf(dir, &life{}, c.domain())
	pod := n.withFunction("one")
	before := n.link("vf0")
	for act, do := range map[string]func(r *reconcile.Reconciler) error{
		"attach":  func(r *reconcile.Reconciler) error { _, err := r.Ensure(t.Context(), pod); return err },
		"repair":  func(r *reconcile.Reconciler) error { _, err := r.Repair(t.Context(), pod.ID); return err },
		"release": func(r *reconcile.Reconciler) error { _, err := r.Release(t.Context(), pod.ID); return err },
	} {
		t.Run(act, func(t *testing.T) {
			n, alive := &worker{b.in(t), n.engine, n.registry}, &worker{b.in(t), alive.engine, alive.registry}
			first, step := effort.Stride(t, 3)
			deaths := 0
			for at, reached := first, true; reached; at += step {
				if act != "attach" {
					alive.apply(pod)
				}
				if act == "repair" {
					n.run("ovs-vsctl", "del-port", "rep0")
					n.run("ip", "link", "set", "rep0", "down", "mtu", "1300")
					n.run("ip", "-n", "one", "link", "set", "net1", "address", "02:00:00:00:05:09")
				}
				of := &life{changes: at}
				err := do(n.engineOf(dir, of, c.domain()).engine)
				switch reached = of.dead; {
				case reached:
					deaths++
				case act == "repair" && fault.Of(err) == fault.NotReady:
					alive.repair(pod) // a repair waits only shortly for ovn-controller
				case err != nil:
					t.Fatal(err)
				}
				if act != "release" && at%2 == 0 {
					alive.apply(pod)
					n.run("ip", "-n", "one", "link", "show", "dev", "net1")
				}
				if _, known, _ := alive.engine.Record(pod.ID); known {
					alive.release(pod)
				}
				if after := n.link("vf0"); after != before {
					t.Errorf("dead after change %d (%v): the device was\n%s\nand is\n%s", at, err, before, after)
				}
				if after := n.link("rep0"); !strings.Contains(after, "M-DOWN") || !strings.Contains(after, "mtu 1500") {
					t.Errorf("dead after change %d (%v): the representor is %s, want it down, with MTU 1500", at, err, after)
				}
				if ports := n.run("ovs-vsctl", "list-ports", "br-int"); ports != "" {
					t.Errorf("dead after change %d (%v): ports %q are left", at, err, ports)
				}
				n.nothing()
			}
			if deaths == 0 {
				t.Error("no change was followed by an end of the process")
			}
		})
	}
}
