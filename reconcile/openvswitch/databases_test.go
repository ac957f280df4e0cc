package openvswitch_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/ovsdb"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/topology/fault"
)

// server is one that runs, with the domains that use it.
type server struct{ *ovsdb.Server }

func newServer(t testing.TB, schema string) *server {
	t.Helper()
	return &server{ovsdb.New(t, schema)}
}

// transact runs a transaction of the protocol on Open vSwitch.
func (s *server) transact(operations string) string {
	s.Helper()
	out := s.Must("ovsdb-client", "transact", s.Endpoint, `["Open_vSwitch",`+operations+`]`)
	if strings.Contains(out, `"error"`) {
		s.Fatal(out)
	}
	return out
}

func (s *server) northbound() reconcile.External { return s.northboundWithin(time.Minute) }

// northboundWithin has a timeout of its calls.
func (s *server) northboundWithin(timeout time.Duration) reconcile.External {
	s.Helper()
	n, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: []string{s.Endpoint}, Timeout: timeout})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(n.Close)
	return s.opened(n.Domain())
}

func (s *server) vswitch() reconcile.External {
	s.Helper()
	v, err := openvswitch.NewSwitch(openvswitch.Server{Endpoints: []string{s.Endpoint}, Timeout: time.Minute})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(v.Close)
	return s.opened(v.Domain())
}

func (s *server) opened(d reconcile.ExternalDomain) reconcile.External {
	s.Helper()
	out, err := d.Open(s.Context(), reconcile.Sandbox{})
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// observed reads an object, nil if there is none.
func observed(t *testing.T, in reconcile.External, o netstate.Object) netstate.Object {
	t.Helper()
	s := netstate.NewSnapshot()
	if err := in.Extend(t.Context(), s, []netstate.Object{o}); err != nil {
		t.Fatal(err)
	}
	if !s.Known(o) {
		t.Fatalf("%s was queried, and is not known", o.Key())
	}
	out, _ := s.Get(o.Key())
	return out
}

// applied makes a change, and holds that the object is then as it was to be.
func applied(t *testing.T, in reconcile.External, c netstate.Change) {
	t.Helper()
	if err := in.Apply(t.Context(), c); err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	switch have := observed(t, in, c.Object()); {
	case c.After == nil && have != nil:
		t.Fatalf("%s: is %+v", c, have)
	case c.After != nil && have == nil:
		t.Fatalf("%s: does not exist", c)
	case c.After != nil && len(netstate.Diff(c.After, have)) > 0:
		t.Fatalf("%s: differs in %+v", c, netstate.Diff(c.After, have))
	}
}

func logicalPort(name, of, physical string, vlan uint16) netstate.LogicalPort {
	addresses := []string{"02:00:00:00:00:01 192.0.2.1"}
	return netstate.LogicalPort{
		Name: name, Switch: &of, PhysicalNetwork: &physical, VLAN: &vlan, Addresses: addresses, PortSecurity: addresses, Holder: new("pod/t/blue"), Chassis: new("node-1"),
	}
}

// TestLogicalPorts: a switch comes with its first port and goes with its last, whatever is changed
// by others is seen and restored, and nothing foreign is touched.
func TestLogicalPorts(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	nb := s.northbound()
	s.Nbctl("ls-add", "foreign", "--", "lsp-add", "foreign", "taken", "--", "ls-add", "sw-taken", "--", "lsp-add", "sw-taken", "theirs")
	before := s.Nbctl("show")
	one, two := logicalPort("one", "sw", "phys", 200), logicalPort("two", "sw", "phys", 200)
	applied(t, nb, netstate.Change{After: one})
	applied(t, nb, netstate.Change{After: one}) // as after a crash
	applied(t, nb, netstate.Change{After: two})
	if got := s.Nbctl("--bare", "--columns=type,tag,tag_request,options,addresses", "find", "Logical_Switch_Port", `name="sw:localnet"`); got != "localnet\n200\n200\nnetwork_name=phys\nunknown" {
		t.Errorf("localnet port %q", got)
	}
	if got := s.Nbctl("--bare", "--columns=options", "find", "Logical_Switch_Port", "name=one"); got != "iface-id-ver=pod/t/blue requested-chassis=node-1" {
		t.Errorf("options %q", got)
	}
	if got := s.Nbctl("show"); strings.Contains(got, "k8s.ovn.org") || strings.Contains(got, "pod=true") {
		t.Errorf("has keys of ovn-kubernetes: %s", got)
	}
	for _, change := range [][]string{
		{"set", "Logical_Switch_Port", "one", "addresses=unknown"},
		{"lsp-set-port-security", "one"},
		{"lsp-set-options", "one", "iface-id-ver=x"},
		{"set", "Logical_Switch_Port", "sw:localnet", "tag=7"},
		{"lsp-del", "sw:localnet"},
		{"lsp-set-options", "sw:localnet", "network_name=other"},
	} {
		s.Nbctl(change...)
		update, differs := netstate.NewUpdate[netstate.Object]("", observed(t, nb, one), one)
		if !differs {
			t.Errorf("%q: no difference", change)
			continue
		}
		applied(t, nb, update)
		if rest := netstate.Diff(one, observed(t, nb, one)); len(rest) > 0 {
			t.Errorf("%q: left %+v", change, rest)
		}
	}
	moved := logicalPort("one", "sw2", "", 0)
	applied(t, nb, netstate.Change{Before: one, After: moved, Recreate: true})
	applied(t, nb, netstate.Change{Before: moved})
	applied(t, nb, netstate.Change{Before: two})
	applied(t, nb, netstate.Change{Before: two})
	for _, c := range []struct {
		port netstate.LogicalPort
		says string
	}{
		{logicalPort("taken", "sw", "", 0), `logical switch port "taken", which is not plumbline's`},
		{logicalPort("one", "sw-taken", "", 0), `logical switch "sw-taken" exists and is not plumbline's`},
	} {
		if err := nb.Apply(t.Context(), netstate.Change{After: c.port}); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), c.says) {
			t.Errorf("said %v", err)
		}
		if got := observed(t, nb, c.port); got != nil {
			t.Errorf("foreign, and read as %+v", got)
		}
		applied(t, nb, netstate.Change{Before: c.port}) // nothing of ours
	}
	if got := s.Nbctl("show"); got != before {
		t.Errorf("left\n%s\nwas\n%s", got, before)
	}

	s.Nbctl("lr-add", "ovn_cluster_router", "--", "set", "Logical_Router", "ovn_cluster_router", "external_ids:k8s-cluster-router=yes")
	if err := nb.Apply(t.Context(), netstate.Change{After: one}); fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), "ovn-kubernetes") {
		t.Errorf("beside ovn-kubernetes: %v", err)
	}
}

// TestManyNodes: nodes that share a database add and remove ports of one switch at the same time. There
// is never a second switch, each port works, and the last one takes the switch with it.
func TestManyNodes(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	var nodes sync.WaitGroup
	for i := range 4 {
		nb := s.northbound()
		nodes.Go(func() {
			for round := range 12 {
				port := logicalPort(fmt.Sprintf("port-%d-%d", i, round), "sw", "phys", 7)
				if err := nb.Apply(t.Context(), netstate.Change{After: port}); err != nil {
					t.Error(err)
					return
				}
				snapshot := netstate.NewSnapshot()
				if err := nb.Extend(t.Context(), snapshot, []netstate.Object{port}); err != nil {
					t.Error(err)
				}
				if have, ok := snapshot.Get(port.Key()); !ok || len(netstate.Diff(port, have)) > 0 {
					t.Errorf("%s: %+v", port.Name, have)
				}
				if err := nb.Apply(t.Context(), netstate.Change{Before: port}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	nodes.Wait()
	if got := s.Nbctl("show"); got != "" {
		t.Errorf("left is %s", got)
	}
}

// TestAway: a database that is away, hangs or comes back is an error within the timeout, and then
// none.
func TestAway(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	nb, port := s.northboundWithin(5*time.Second), logicalPort("one", "sw", "", 0)
	back(t, nb, port)
	applied(t, nb, netstate.Change{After: port})
	s.Kill()
	if err := nb.Extend(t.Context(), netstate.NewSnapshot(), []netstate.Object{port}); fault.Of(err) != fault.NotReady {
		t.Errorf("killed: %v", err)
	}
	if err := nb.Apply(t.Context(), netstate.Change{Before: port}); fault.Of(err) != fault.NotReady {
		t.Errorf("killed: %v", err)
	}
	s.Start()
	back(t, nb, port)
	if observed(t, nb, port) == nil {
		t.Error("the port is gone")
	}
	s.Signal(syscall.SIGSTOP)
	// It never answers, so this returns only because the client has a limit.
	if err := nb.Extend(t.Context(), netstate.NewSnapshot(), []netstate.Object{port}); fault.Of(err) != fault.NotReady {
		t.Errorf("hangs: %v", err)
	}
	s.Signal(syscall.SIGCONT)
	back(t, nb, port)
}

// TestPortsOfOpenVSwitch: the life of a port beside foreign ones.
func TestPortsOfOpenVSwitch(t *testing.T) {
	s := newServer(t, ovsdb.VSwitch)
	v := s.vswitch()
	chassis := func() netstate.Chassis { return observed(t, v, netstate.ThisChassis).(netstate.Chassis) }
	if got := chassis(); *got.Name != "" || *got.Int != "" {
		t.Errorf("empty, and %+v", got)
	}
	s.transact(`{"op":"insert","table":"Open_vSwitch","row":{"bridges":["set",[["named-uuid","b"],["named-uuid","p"]]],
		"external_ids":["map",[["system-id","node-1"],["ovn-bridge-mappings","phys:br-phys,lost:br-lost"],["ovn-bridge-node-1","br-mine"]]]}},
		{"op":"insert","table":"Bridge","uuid-name":"b","row":{"name":"br-mine","ports":["named-uuid","fp"]}},
		{"op":"insert","table":"Bridge","uuid-name":"p","row":{"name":"br-phys"}},
		{"op":"insert","table":"Port","uuid-name":"fp","row":{"name":"theirs","interfaces":["named-uuid","fi"]}},
		{"op":"insert","table":"Interface","uuid-name":"fi","row":{"name":"theirs","external_ids":["map",[["iface-id","their-port"]]]}}`)
	if got := chassis(); *got.Name != "node-1" || *got.Int != "br-mine" || strings.Join(got.Networks, " ") != "phys" || got.OVNKubernetes {
		t.Errorf("chassis %+v", got)
	}
	o := netstate.OVSPort{Link: "host:pl1", Bridge: new("br-mine"), LogicalPort: new("lp1"), Holder: new("pod/t/blue"), MAC: new("02:00:00:00:00:01"), Addresses: []string{"192.0.2.1/24", "fd00::1/64"}}
	applied(t, v, netstate.Change{After: o})
	applied(t, v, netstate.Change{After: o})
	if got := s.Must("ovsdb-client", "dump", s.Endpoint, "Open_vSwitch", "Port", "name", "other_config"); !strings.Contains(got, "transient=\"true\"") {
		t.Errorf("ports:\n%s", got)
	}
	if got := observed(t, v, o).(netstate.OVSPort); got.Installed {
		t.Error("installed, without ovn-controller")
	}
	s.transact(`{"op":"update","table":"Interface","where":[["name","==","pl1"]],"row":{"ofport":5,"external_ids":["map",[["iface-id","other"],["ovn-installed","true"],["theirs","kept"]]]}}`)
	if got := observed(t, v, o).(netstate.OVSPort); !got.Installed {
		t.Error("not installed")
	}
	numbers := func(of netstate.OVSPort) int {
		out, err := v.(interface {
			Numbers(ctx context.Context, of []netstate.OVSPort) (map[string]uint32, error)
		}).Numbers(t.Context(), []netstate.OVSPort{{Link: "host:none", LogicalPort: new("lp0")}, of})
		if err != nil || len(out) > 1 {
			t.Errorf("numbers %v, %v", out, err)
		}
		return int(out[of.Link])
	}
	if got := numbers(o); got != 0 { // as it is bound to another one
		t.Errorf("number %d", got)
	}
	update, _ := netstate.NewUpdate("", observed(t, v, o).(netstate.OVSPort), o)
	applied(t, v, update)
	if got := s.transact(`{"op":"select","table":"Interface","where":[["name","==","pl1"]],"columns":["external_ids"]}`); !strings.Contains(got, `["theirs","kept"]`) || !strings.Contains(got, `["iface-id","lp1"]`) {
		t.Errorf("keys %s", got)
	}
	if got := numbers(o); got != 5 {
		t.Errorf("number %d, want 5", got)
	}
	s.transact(`{"op":"update","table":"Interface","where":[["name","==","pl1"]],"row":{"ofport":-1,"error":"could not open network device pl1"}}`)
	if got := observed(t, v, o).(netstate.OVSPort); got.Installed || got.Failure != "could not open network device pl1" {
		t.Errorf("without a link: %+v", got)
	}
	if got := numbers(o); got != 0 {
		t.Errorf("without a link: number %d", got)
	}
	// Another one of ours has the logical port, as after a reboot.
	again := o
	again.Link = "host:pl2"
	applied(t, v, netstate.Change{After: again})
	if observed(t, v, o) != nil {
		t.Error("two ports are bound to one logical port")
	}
	for _, c := range []struct {
		port netstate.OVSPort
		says string
	}{
		{netstate.OVSPort{Link: "host:theirs", Bridge: new("br-mine"), LogicalPort: new("lp3")}, `port "theirs" of bridge "br-mine" of Open vSwitch, which is not plumbline's`},
		{netstate.OVSPort{Link: "host:pl3", Bridge: new("br-mine"), LogicalPort: new("their-port")}, `interface "theirs" of Open vSwitch, which is not plumbline's, is bound to logical port "their-port"`},
	} {
		if err := v.Apply(t.Context(), netstate.Change{After: c.port}); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), c.says) {
			t.Errorf("said %v", err)
		}
		if got := observed(t, v, c.port); got != nil {
			t.Errorf("foreign, and read as %+v", got)
		}
	}
	if err := v.Apply(t.Context(), netstate.Change{After: netstate.OVSPort{Link: "host:theirs", Bridge: new("br-mine"), LogicalPort: new("lp3")}}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a foreign port has the name: %v", err)
	}
	if err := v.Apply(t.Context(), netstate.Change{After: netstate.OVSPort{Link: "host:pl3", Bridge: new("br-none"), LogicalPort: new("lp3")}}); fault.Of(err) != fault.NotReady {
		t.Errorf("no bridge: %v", err)
	}
	applied(t, v, netstate.Change{Before: again})
	applied(t, v, netstate.Change{Before: again})
	if got := s.Must("ovsdb-client", "dump", s.Endpoint, "Open_vSwitch", "Interface", "name"); strings.Contains(got, "pl") || !strings.Contains(got, "theirs") {
		t.Errorf("left:\n%s", got)
	}
}

// TestOVNKubernetes: a node of ovn-kubernetes has its management port, or the representor of one that is a function.
func TestOVNKubernetes(t *testing.T) {
	for name, want := range map[string]bool{"": false, "ovn-k8s-mp0": true, "ovn-k8s-mp0_0": true, "ovn-k8s-mp1": false} {
		s := newServer(t, ovsdb.VSwitch)
		v, err := openvswitch.NewSwitch(openvswitch.Server{Endpoints: []string{s.Endpoint}, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.Close)
		bridge := `{"op":"insert","table":"Bridge","uuid-name":"b","row":{"name":"br-int"}},{"op":"insert","table":"Open_vSwitch","row":{"bridges":["named-uuid","b"]}}`
		if name != "" {
			bridge = strings.Replace(bridge, `"name":"br-int"`, `"name":"br-int","ports":["named-uuid","m"]`, 1) +
				fmt.Sprintf(`,{"op":"insert","table":"Interface","uuid-name":"i","row":{"name":%[1]q}},{"op":"insert","table":"Port","uuid-name":"m","row":{"name":%[1]q,"interfaces":["named-uuid","i"]}}`, name)
		}
		s.transact(bridge)
		if got, err := v.OVNKubernetes(t.Context()); err != nil || got != want {
			t.Errorf("with port %q: %v %v, want %v", name, got, err, want)
		}
	}
}

// TestSilentMember: of the members of a cluster, one that answers nothing does not keep the others
// from being used.
func TestSilentMember(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "silent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	n, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: []string{"unix:" + silent.Addr().String(), s.Endpoint}, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	nb, port := s.opened(n.Domain()), logicalPort("one", "sw", "", 0)
	applied(t, nb, netstate.Change{After: port})
	if observed(t, nb, port) == nil {
		t.Error("the port is not there")
	}
}

// TestLargeTransaction: a server that hangs reads nothing, so that what does not fit into the buffers of its
// socket cannot be sent. That ends with the timeout, too, and keeps nobody from the next connection.
func TestLargeTransaction(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	n, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: []string{s.Endpoint}, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	nb, port := s.opened(n.Domain()), logicalPort("one", "sw", "", 0)
	applied(t, s.northbound(), netstate.Change{After: port})
	back(t, nb, port)
	s.Signal(syscall.SIGSTOP)
	large := port
	large.Name = strings.Repeat("x", 4<<20) // so is the first question
	done := make(chan error, 1)
	go func() { done <- nb.Extend(t.Context(), netstate.NewSnapshot(), []netstate.Object{large}) }()
	select {
	case err := <-done:
		if fault.Of(err) != fault.NotReady || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("hangs: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits to send for good")
	}
	s.Signal(syscall.SIGCONT)
	back(t, nb, port)
	n.Close()
}

// TestNamesOfOthers: what others do to the rows of names that were known is seen: another row of the name, and
// one of a name that had none.
func TestNamesOfOthers(t *testing.T) {
	s := newServer(t, ovsdb.Northbound)
	nb := s.northbound()
	for _, port := range []netstate.LogicalPort{logicalPort("one", "sw", "phys", 200), logicalPort("two", "sw2", "", 0)} {
		applied(t, nb, netstate.Change{After: port})
		for range 2 {
			s.Nbctl("lsp-del", port.Name, "--", "lsp-add", *port.Switch, port.Name)
			if have := observed(t, nb, port); have != nil {
				t.Errorf("the port of others is %+v", have)
			}
			s.Nbctl("lsp-del", port.Name)
			applied(t, nb, netstate.Change{After: port})
		}
	}
	s.Nbctl("lsp-add", "sw2", "sw2:localnet", "--", "lsp-set-type", "sw2:localnet", "localnet", "--", "lsp-set-options", "sw2:localnet", "network_name=other")
	found := false
	for range 16 {
		two, _ := observed(t, nb, netstate.LogicalPort{Name: "two"}).(netstate.LogicalPort)
		found = found || two.PhysicalNetwork != nil && *two.PhysicalNetwork == "other"
	}
	if !found {
		t.Error("16 checks have not found the localnet port of others")
	}

	// On a switch of others it is theirs.
	s.Nbctl("ls-add", "theirs", "--", "lsp-add", "theirs", "sw3:localnet", "--", "lsp-set-type", "sw3:localnet", "localnet", "--", "lsp-set-options", "sw3:localnet", "network_name=other")
	three := logicalPort("three", "sw3", "phys", 200)
	if err := nb.Apply(t.Context(), netstate.Change{After: three}); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `"sw3:localnet"`) {
		t.Errorf("a port whose localnet port has the name of another: %v", err)
	}
	plain := logicalPort("three", "sw3", "", 0)
	applied(t, nb, netstate.Change{After: plain})
	if have := observed(t, nb, plain); have == nil || len(netstate.Diff(plain, have)) > 0 {
		t.Errorf("beside it the port is %+v", have)
	}
	if err := nb.Apply(t.Context(), netstate.Change{Before: plain, After: three}); fault.Of(err) != fault.Conflict {
		t.Errorf("an update: %v", err)
	}
	applied(t, nb, netstate.Change{Before: plain})
	if have := s.Nbctl("--bare", "--columns=options", "find", "Logical_Switch_Port", "name=sw3\\:localnet"); strings.TrimSpace(have) != "network_name=other" {
		t.Errorf("that of others is %q", have)
	}
}
