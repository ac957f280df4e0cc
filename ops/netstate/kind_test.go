package netstate_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// examples has an object of every kind, with a field set.
var examples = []netstate.Object{
	netstate.Link{Name: "data0", LinkKind: "vlan", Parent: new("bond0"), VLAN: &netstate.VLAN{ID: new(uint16(7))}},
	netstate.Addr{Link: "net1", Address: "192.0.2.1/24", NoDAD: new(true)},
	netstate.Route{Link: "net1", Dst: "192.0.2.0/24", Table: 254, MTU: new(uint32(1400))},
	netstate.Sysctl{Path: "net/ipv4/conf/net1/rp_filter", Value: new("2")},
	netstate.Ethtool{Link: "net1", Class: "feature", Name: "rx-gro", Value: new("on")},
	netstate.BridgeVLAN{Link: "net1", VID: 7, PVID: new(true)},
	netstate.Device{ID: "0000:01:10.0", At: new("net1"), MTU: new(uint32(1500))},
	netstate.VF{ID: "0000:01:10.0", VLAN: new(uint16(7))},
	netstate.Rule{Family: netstate.IPv4, Priority: 1000, From: "192.0.2.0/24", Mark: 1, Mask: 0xff, Table: 7, SuppressPrefixLength: new(uint32(0))},
	netstate.Unreachable{Dst: "0.0.0.0/0", Table: 1001, Metric: 4278198272},
	netstate.Binding{ID: "0000:01:10.0", Driver: new("vfio-pci"), Override: new("")},
	netstate.Neighbor{Link: "net1", Address: "192.0.2.9", MAC: new("02:00:00:00:00:09")},
	netstate.Clsact{Link: "net1"},
	netstate.Filter{Link: "net1", Pref: 20000, Handle: 1, Family: new(netstate.IPv4), To: new("192.0.2.0/24"), DSCP: new(uint8(26)), Rate: new(uint64(1250000))},
	netstate.FDB{Link: "vxlan7", Remote: "192.0.2.9", Via: "net1"},
	netstate.Masquerade{Source: "192.0.2.1", Except: []string{"192.0.2.0/24"}},
	netstate.PortMapping{Host: "0.0.0.0:8080/tcp", To: new("192.0.2.1:80"), Network: new("192.0.2.0/24")},
	netstate.PortGuard{Port: "pl1", Bridge: new("br0"), MACs: []string{"02:00:00:00:00:01"}, Addresses: []string{}, RAGuard: new(true)},
	netstate.DHCPLease{Link: "net1", ClientID: new("00ab"), Active: new(true)},
	netstate.RDMALink{Link: "net1", Name: new("pl0"), Type: new("rxe")},
	netstate.RDMAPort{Device: "mlx5_2", Link: "net1", State: new("ACTIVE"), GIDs: []netstate.RDMAGID{{Index: 3, GID: "192.0.2.1", Type: "RoCEv2"}}},
	netstate.RDMANetns{ID: "0000:01:10.0", Netns: new(netstate.RDMAOfSandbox), Name: new("mlx5_2")},
	netstate.Chassis{ID: "local", Name: new("node-1"), Int: new("br-int"), Networks: []string{"localnet1"}},
	netstate.LogicalPort{Name: "plumbline:node-1:pl1", Switch: new("plumbline:layer2:blue"), Addresses: []string{"02:00:00:00:00:01 192.0.2.1"}},
	netstate.LogicalRule{Port: "plumbline:node-1:pl1", Rule: "ai/storage[0]", Priority: new(uint16(29000)), Match: new("ip4"), DSCP: new(uint8(26)), Rate: new(uint32(10000))},
	netstate.Representor{ID: "0000:01:10.0", Link: new("host:enp1s0f0r0"), PF: "0000:01:00.0", Switchdev: true},
	netstate.OVSPort{Link: "host:pl1", Bridge: new("br-int"), LogicalPort: new("plumbline:node-1:pl1")},
}

// TestKinds walks all kinds: what is said of each is complete, and its objects
// survive a record.
func TestKinds(t *testing.T) {
	for _, k := range declaredKinds(t) {
		i := slices.IndexFunc(examples, func(o netstate.Object) bool { return o.Key().Kind == k })
		if i < 0 || !slices.Contains(netstate.Kinds(), k) {
			t.Errorf("kind %q has no example here, or is not in the list of kinds", k)
			continue
		}
		o := examples[i]
		traits := o.Traits()
		if traits != o.Traits() || traits.Cost == 0 || !slices.Contains(netstate.Phases(), traits.Phase) {
			t.Errorf("%s: traits %+v: want those of the kind, with a cost and a phase", k, traits)
		}
		if traits.Setting && strings.HasPrefix(netstate.Absent(o).Error(), "there is no") {
			t.Errorf("%s: a setting needs an error for one that does not exist", k)
		}
		survives(t, o)
		carried(t, o)
	}
	carried(t, netstate.Sysctl{Path: "net/ipv4/conf/conf/forwarding"}) // a link has any name
}

// declaredKinds reads the constants of type Kind from the source, so that one
// which is in no list is found.
func declaredKinds(t *testing.T) []netstate.Kind {
	src, err := os.ReadFile("kind.go")
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "kind.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []netstate.Kind
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		name, isName := v.Type.(*ast.Ident)
		lit, isLit := v.Values[0].(*ast.BasicLit)
		if isName && isLit && name.Name == "Kind" {
			word, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, netstate.Kind(word))
		}
		return true
	})
	if len(out) != len(netstate.Kinds()) {
		t.Fatalf("%d kinds are declared: %v, the list has %v", len(out), out, netstate.Kinds())
	}
	return out
}

// survives holds that an object is read from a record as it was written.
func survives(t *testing.T, o netstate.Object) {
	t.Helper()
	for _, c := range []netstate.Change{{After: o}, {Before: o}, {Before: o, After: o}} {
		data, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var got netstate.Change
		if err := json.Unmarshal(data, &got); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%s: %v: read as %+v (%v), want %+v", o.Key(), string(data), got, err, c)
		}
	}
}

// carried holds that what an object lives on is of a known kind, and that it can
// be put on another.
func carried(t *testing.T, o netstate.Object) {
	t.Helper()
	on := o.LivesOn()
	if on == (netstate.Key{}) {
		if got := netstate.On(o, netstate.LinkKey("x")); !reflect.DeepEqual(got, o) {
			t.Errorf("%s lives on nothing, but becomes %v on another link", o.Key(), got)
		}
		return
	}
	other := netstate.Key{Kind: on.Kind, ID: "other"}
	moved := netstate.On(o, other)
	if !slices.Contains(netstate.Kinds(), on.Kind) || moved.LivesOn() != other {
		t.Errorf("%s lives on %s; moved to %s it lives on %s", o.Key(), on, other, moved.LivesOn())
	}
	if back := netstate.On(moved, on); !reflect.DeepEqual(back, o) {
		t.Errorf("%s: moved and back it is %+v", o.Key(), back)
	}
}

// TestLinkKinds holds that options are those of one kind, and tell it.
func TestLinkKinds(t *testing.T) {
	for _, kind := range netstate.LinkKinds() {
		traits := netstate.LinkTraitsOf(kind)
		if (traits.ParentMAC || traits.ParentMTU || traits.ParentState) && !traits.Stacked {
			t.Errorf("%s follows a parent, which it does not have: %+v", kind, traits)
		}
		if traits.Stacked && traits.DefaultMTU != 0 {
			t.Errorf("%s: a stacked link has its parent's MTU: %+v", kind, traits)
		}
		if traits.Tunnel && (traits.Stacked || traits.Overhead == nil) || traits.Overhead != nil && !traits.Encapsulates || traits.FixedMAC && !traits.ParentMAC && !traits.OfDevice {
			t.Errorf("%s contradicts itself: %+v", kind, traits)
		}
		for _, master := range traits.Masters {
			if m := netstate.LinkTraitsOf(master); !m.TakesPorts() && !m.L3Master {
				t.Errorf("%s can be in a %s, which takes nothing in", kind, master)
			}
		}
	}
	link := reflect.TypeFor[netstate.Link]()
	for i := range link.NumField() {
		options := link.Field(i)
		name, _, _ := strings.Cut(options.Tag.Get("json"), ",")
		if options.Tag.Get("plan") != "nested" || name == "port" { // which any link can be
			continue
		}
		l := reflect.New(link).Elem()
		l.Field(i).Set(reflect.New(options.Type.Elem()))
		if got := l.Interface().(netstate.Link).OptionsKind(); got != name {
			t.Errorf("options %q of a link are those of kind %q: its row in linkKinds says which it has", name, got)
		}
	}
}

// TestReplaced holds that what cannot be changed of a kind's options tells a link from
// another of its name, so that a foreign one is not deleted for ours.
func TestReplaced(t *testing.T) {
	exempt := map[string]string{"veth.peer": "the name that the other end has at the moment"}
	for options := range reflect.TypeFor[netstate.Link]().Fields() {
		if options.Tag.Get("plan") != "nested" {
			continue
		}
		for field := range options.Type.Elem().Fields() {
			kind, _, _ := strings.Cut(options.Tag.Get("json"), ",")
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			tags := strings.Split(field.Tag.Get("plan"), ",")
			if _, ok := exempt[kind+"."+name]; !ok && slices.Contains(tags, "replace") != slices.Contains(tags, "identity") {
				t.Errorf("%s.%s has the tags %v: replace needs identity", kind, name, tags)
			}
		}
	}
}

// TestIdentity holds what tells a link from another of its name: not what can be
// changed, nor where it is.
func TestIdentity(t *testing.T) {
	l := netstate.Link{
		Name: "data0", LinkKind: "vlan", Parent: new("bond0"), MTU: new(uint32(9000)),
		VLAN: &netstate.VLAN{ID: new(uint16(7)), Protocol: new("802.1q")}, Bond: &netstate.Bond{Mode: new("802.3ad")},
	}
	want := netstate.Link{Name: "data0", VLAN: l.VLAN}
	if got := l.Identity(); !reflect.DeepEqual(got, want) {
		t.Errorf("identity %+v, want %+v", got, want)
	}
}

// TestKnownByCarrier holds that nothing on a link that has just appeared, or that the sandbox does not
// have, has to be observed, and everything on demand on another. Objects of another domain can be there
// without the link.
func TestKnownByCarrier(t *testing.T) {
	s := netstate.NewSnapshot(netstate.Link{Name: "old0", LinkKind: "dummy"})
	s.Apply(netstate.Change{After: netstate.Link{Name: "new0", LinkKind: "dummy"}})
	for _, o := range examples {
		if o.LivesOn() == (netstate.Key{}) || o.Key().Kind == netstate.KindLink {
			continue
		}
		if !s.Known(netstate.On(o, netstate.LinkKey("new0"))) {
			t.Errorf("%s on a new link is not known", o.Key().Kind)
		}
		if got, want := s.Known(netstate.On(o, netstate.LinkKey("old0"))), o.Traits().Whole; got != want {
			t.Errorf("%s on a link of the sandbox: known %v, want %v", o.Key().Kind, got, want)
		}
		if got, want := s.Known(netstate.On(o, netstate.LinkKey("none0"))), !o.Traits().Elsewhere; got != want {
			t.Errorf("%s on a link that the sandbox does not have: known %v, want %v", o.Key().Kind, got, want)
		}
		if s.Known(netstate.On(o, netstate.LinkKey("host:eth0"))) {
			t.Errorf("%s on a link of the host is known", o.Key().Kind)
		}
	}
}

// leaf is an object two levels above a link, such as a filter on a queueing
// discipline.
type leaf struct{ Neighbor netstate.Neighbor }

func (l leaf) Key() netstate.Key     { return netstate.Key{Kind: "leaf", ID: l.Neighbor.Key().ID} }
func (l leaf) LivesOn() netstate.Key { return l.Neighbor.Key() }

func (leaf) Traits() *netstate.Traits { return &netstate.Traits{Phase: netstate.PhaseRules, Cost: 1} }

// TestCarriedOverLevels: what stands on something else is gone with the link under
// both.
func TestCarriedOverLevels(t *testing.T) {
	n := netstate.Neighbor{Link: "a0", Address: "192.0.2.9"}
	l := leaf{n}
	s := netstate.NewSnapshot(netstate.Link{Name: "a0"}, netstate.Link{Name: "b0"}, n, l)
	if got := s.LinkUnder(l); got != "a0" {
		t.Fatalf("it is on %q", got)
	}
	s.Apply(netstate.Change{Before: netstate.Link{Name: "b0"}})
	if _, there := s.Get(l.Key()); !there {
		t.Error("gone with another link")
	}
	implied := s.Apply(netstate.Change{Before: netstate.Link{Name: "a0"}})
	_, neighbor := s.Get(n.Key())
	if _, there := s.Get(l.Key()); there || neighbor || len(implied) != 2 {
		t.Errorf("left: it %v, its carrier %v; implied %v", there, neighbor, implied)
	}
}
