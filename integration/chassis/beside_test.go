package chassis_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/chassis"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/topology/fault"
)

// ovnKubernetes writes what ovn-kubernetes does: networks, and ports of pods on them.
type ovnKubernetes struct {
	*worker
	northbound *openvswitch.Northbound
	id         string // of the chassis
}

// attached has ovn-kubernetes attach the node.
func attached(n *worker) *ovnKubernetes {
	n.Helper()
	northbound, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: []string{n.chassis.Endpoint()}, Timeout: time.Minute})
	n.ok(err)
	n.Cleanup(northbound.Close)
	n.run("ovs-vsctl", "add-port", "br-int", "ovn-k8s-mp0", "--", "set", "Interface", "ovn-k8s-mp0", "type=internal", "external_ids:iface-id=k8s-node-1")
	network := func(of, name, topology string) {
		n.run("ovn-nbctl", "ls-add", of, "--", "set", "Logical_Switch", of, "external_ids:k8s.ovn.org/network="+name, "external_ids:k8s.ovn.org/topology="+topology, "external_ids:k8s.ovn.org/role=secondary")
	}
	network("tenant.blue_ovn_layer2_switch", "tenant-blue", "layer2")
	network("local.blue_ovn_localnet_switch", "local-blue", "localnet")
	n.run("ovn-nbctl", "lsp-add", "local.blue_ovn_localnet_switch", "local.blue_ovn_localnet_port",
		"--", "lsp-set-addresses", "local.blue_ovn_localnet_port", "unknown", "--", "lsp-set-type", "local.blue_ovn_localnet_port", "localnet",
		"--", "set", "Logical_Switch_Port", "local.blue_ovn_localnet_port", "options:network_name=localnet1", "tag_request=200")
	return &ovnKubernetes{n, northbound, strings.Trim(n.run("ovs-vsctl", "get", "Open_vSwitch", ".", "external_ids:system-id"), `"`)}
}

// add makes the port of a pod, with addresses as MAC IP...
func (o *ovnKubernetes) add(of, attachment, topology, pod, addresses string) string {
	o.Helper()
	name := openvswitch.PodPortName(attachment, "ai", pod)
	o.run("ovn-nbctl", "lsp-add", of, name, "--", "lsp-set-addresses", name, addresses, "--", "lsp-set-port-security", name, addresses,
		"--", "set", "Logical_Switch_Port", name, "options:iface-id-ver=uid-"+pod, "options:requested-chassis="+o.id, "external_ids:pod=true", "external_ids:namespace=ai",
		`external_ids:k8s.ovn.org/nad="`+attachment+`"`, "external_ids:k8s.ovn.org/network=net", "external_ids:k8s.ovn.org/topology="+topology)
	return name
}

// given is the port as the agent finds it.
func (o *ovnKubernetes) given(name, pod string, lengths ...string) ops.Givens {
	o.Helper()
	p, found, err := o.northbound.PodPort(o.Context(), name)
	o.ok(err)
	if !found || len(p.Addresses) != len(lengths) {
		o.Fatalf("port %q: %v %+v", name, found, p)
	}
	out := ops.Given{Port: &ops.Port{
		Name: name, Holder: "uid-" + pod, MAC: p.MAC, Attachment: p.Attachment, Topology: p.Topology, PhysicalNetwork: p.PhysicalNetwork, VLAN: p.VLAN, Addressed: len(p.Addresses) > 0,
	}}
	for i, a := range p.Addresses {
		out.Addresses = append(out.Addresses, netip.MustParsePrefix(a.String()+lengths[i]))
	}
	return ops.Givens{"blue": out}
}

// rows are those of ovn-kubernetes, without what OVN writes.
func (o *ovnKubernetes) rows() string {
	o.Helper()
	return o.run("ovn-nbctl", "--columns=_uuid,name,ports,external_ids", "list", "Logical_Switch") +
		o.run("ovn-nbctl", "--columns=_uuid,name,type,options,addresses,port_security,tag_request,external_ids", "list", "Logical_Switch_Port")
}

// TestBesideOVNKubernetes: pods are bound to ports that ovn-kubernetes has made, whose rows nothing changes. What others
// delete from Open vSwitch is restored, a port that ovn-kubernetes deletes is reported, and programs that crash do not
// matter. Nothing that its cleaning looks for is left to it.
func TestBesideOVNKubernetes(t *testing.T) {
	b := start(t)
	n := newWorker(b, b.chassis.Endpoint(), b.chassis.Endpoint())
	b.ok(traffic.IP(t.Context(), "link add uplink type veth peer name uplink-peer\nlink set uplink up\nlink set uplink-peer up"))
	n.run("ovs-vsctl", "add-br", "br-phys", "--", "add-port", "br-phys", "uplink", "--", "set", "Open_vSwitch", ".", "external_ids:ovn-bridge-mappings=localnet1:br-phys")
	o := attached(n)
	const config = `{topology: layer2, role: secondary, netAttachDefName: default/tenant-blue, subnets: "172.31.0.0/24,fd00::/64", dad: "off"}`
	one, two := n.sandbox("one", config), n.sandbox("two", config)
	before := o.rows()

	if _, err := n.engine.Ensure(t.Context(), one); fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), "k8s.v1.cni.cncf.io/networks") {
		t.Errorf("without a port: %v", err)
	}
	if now := o.rows(); now != before {
		t.Errorf("refused, and the rows are\n%s\nwere\n%s", now, before)
	}

	port := o.add("tenant.blue_ovn_layer2_switch", "default/tenant-blue", "layer2", "one", "0a:58:ac:1f:00:05 172.31.0.5 fd00::5")
	o.add("tenant.blue_ovn_layer2_switch", "default/tenant-blue", "layer2", "two", "0a:58:ac:1f:00:06 172.31.0.6 fd00::6")
	local := n.sandbox("local", `{topology: localnet, role: secondary, physicalNetworkName: localnet1, netAttachDefName: default/local-blue, vlanID: 200, addresses: [192.168.100.5/24]}`)
	local.Given = o.given(o.add("local.blue_ovn_localnet_switch", "default/local-blue", "localnet", "local", "0a:58:00:00:00:01"), "local")
	one.Given, two.Given = o.given(port, "one", "/24", "/64"), o.given(openvswitch.PodPortName("default/tenant-blue", "ai", "two"), "two", "/24", "/64")
	before = o.rows()
	for _, pod := range []reconcile.Sandbox{one, two, local} {
		n.apply(pod)
	}
	reach := func(n *worker) {
		n.Helper()
		n.reach(one.Netns, two.Netns, "172.31.0.6")
		n.reach(two.Netns, one.Netns, "fd00::5")
	}
	reach(n)
	if rep := n.apply(one); !rep.Unchanged {
		t.Errorf("applied twice: %v", rep.Changes)
	}
	links := strings.Fields(n.run("ovs-vsctl", "--bare", "--columns=name", "find", "Interface", "external_ids:iface-id="+port))
	if len(links) != 1 {
		t.Fatalf("interfaces of the port: %q", links)
	}
	if got := n.run("ovs-vsctl", "--bare", "--columns=external_ids", "list", "Interface", links[0]); !strings.Contains(got, "iface-id-ver=uid-one") || !strings.Contains(got, "attached_mac=\"0a:58:ac:1f:00:05\"") && !strings.Contains(got, "attached_mac=0a:58:ac:1f:00:05") || strings.Contains(got, "sandbox") {
		t.Errorf("external_ids %q", got)
	}
	if stale := n.run("ovs-vsctl", "--bare", "--columns=name", "find", "Interface", "ofport=-1"); stale != "" {
		t.Errorf("ovn-kubernetes would delete %q", stale)
	}

	repaired := func(t *testing.T) {
		t.Helper()
		n := &worker{b.in(t), n.engine, n.registry}
		for _, pod := range []reconcile.Sandbox{one, two} {
			n.repair(pod)
		}
		reach(n)
	}
	t.Run("the port of Open vSwitch is deleted", func(t *testing.T) {
		n.run("ovs-vsctl", "del-port", links[0])
		if st, err := n.engine.Check(t.Context(), one.ID); err != nil || st.State != reconcile.Drifted {
			t.Fatalf("%s %v %v", st.State, st.Drift, err)
		}
		repaired(t)
	})
	// Before the crashes: OVN 25.03 goes on to report an interface as installed whose port is deleted while ovn-controller
	// has a new connection to its database.
	t.Run("ovn-kubernetes deletes a port", func(t *testing.T) {
		o := &ovnKubernetes{&worker{b.in(t), n.engine, n.registry}, o.northbound, o.id}
		o.run("ovn-nbctl", "--wait=hv", "lsp-del", port)
		b.ok(chassis.Eventually(t.Context(), "it is seen", func() error {
			st, err := n.engine.Check(t.Context(), one.ID)
			if err == nil && st.State == reconcile.InSync {
				err = fmt.Errorf("%s", st.State)
			}
			return err
		}))
		if _, err := n.engine.Repair(t.Context(), one.ID); fault.Of(err) != fault.NotReady || !strings.Contains(fmt.Sprint(err), "has not installed it") {
			t.Errorf("repaired: %v", err)
		}
		if got := o.run("ovn-nbctl", "--bare", "--columns=name", "find", "Logical_Switch_Port", "name="+port); got != "" {
			t.Errorf("%q was recreated", got)
		}
		o.add("tenant.blue_ovn_layer2_switch", "default/tenant-blue", "layer2", "one", "0a:58:ac:1f:00:05 172.31.0.5 fd00::5")
		before = o.rows()
		repaired(t)
	})
	for _, name := range []string{chassis.Controller, chassis.VSwitch, chassis.Database} {
		t.Run(name+" crashes", func(t *testing.T) {
			b.ok(b.chassis.Restart(t.Context(), name))
			repaired(t)
		})
	}
	if now := o.rows(); now != before {
		t.Errorf("the rows are\n%s\nwere\n%s", now, before)
	}
	for _, pod := range []reconcile.Sandbox{one, two, local} {
		n.release(pod)
	}
	if now := o.rows(); now != before {
		t.Errorf("released, and the rows are\n%s\nwere\n%s", now, before)
	}
	for port := range strings.SplitSeq(n.run("ovs-vsctl", "list-ports", "br-int"), "\n") {
		if strings.HasPrefix(port, "pl") {
			t.Errorf("port %q is left", port)
		}
	}
}
