package kernel

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestUpperProbe: the result of the program for a device without a link on it, and for one
// with a link of each kind that outlives its move, in another namespace. The search that
// takes its place on other kernels finds the same.
func TestUpperProbe(t *testing.T) {
	InMachine(t)
	open := func(o Options) *Host {
		h, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		return h
	}
	space := func() (path string, ns int, links *netlink.Handle) {
		away, err := open(Options{}).scratchSpace()
		if err != nil {
			t.Fatal(err)
		}
		path = fmt.Sprintf("/proc/self/fd/%d", away.socket.ns.Fd())
		err = Within(path, func() (err error) {
			links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { links.Close() })
		return path, int(away.socket.ns.Fd()), links
	}
	here, _, outside := space()
	_, other, hidden := space()
	querying, searching := open(Options{Netns: here}), open(Options{Netns: here})
	searching.upper.failed = errors.New("not on this kernel")
	device := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "lent0"}}
	if err := outside.LinkAdd(device); err != nil {
		t.Fatal(err)
	}
	below := netlink.LinkAttrs{Name: "up0", ParentIndex: device.Index}
	for _, tc := range []struct {
		name string
		link netlink.Link
		want map[string]string
	}{
		{"vlan", &netlink.Vlan{LinkAttrs: below, VlanId: 4094}, map[string]string{"upper.802.1q": "4094"}}, // loads 8021q
		{"nothing", nil, map[string]string{}},
		{"provider vlan", &netlink.Vlan{LinkAttrs: below, VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021AD}, map[string]string{"upper.802.1ad": "7"}},
		{"macvlan", &netlink.Macvlan{LinkAttrs: below, Mode: netlink.MACVLAN_MODE_BRIDGE}, map[string]string{upperReceiver: "macvlan"}},
		{"ipvlan", &netlink.IPVlan{LinkAttrs: below, Mode: netlink.IPVLAN_MODE_L2}, map[string]string{upperReceiver: "ipvlan or the like"}},
	} {
		if tc.link != nil {
			if err := outside.LinkAdd(tc.link); err != nil {
				t.Fatal(tc.name, err)
			}
			if err := outside.LinkSetNsFd(tc.link, other); err != nil {
				t.Fatal(tc.name, err)
			}
		}
		for name, host := range map[string]*Host{"asked": querying, "searched": searching} {
			s := host.WithoutSandbox()
			if _, err := host.upperProbe([]string{"vlan", "macvlan"}); err == nil && s.nothingStacked(s.outside, device.Index) != (tc.link == nil) {
				t.Errorf("%s: the program says that nothing is there: %v", tc.name, tc.link != nil)
			} else if err != nil && host == querying && os.Getenv("PLUMBLINE_LANE") == "qemu" {
				t.Fatal(tc.name, err)
			}
			w, err := s.outside.linkByIndex(t.Context(), device.Index)
			if err != nil {
				t.Fatal(err)
			}
			if found, err := s.uppersOf(t.Context(), w); err != nil || !maps.Equal(found, tc.want) {
				t.Errorf("%s, %s: found %v, %v", tc.name, name, found, err)
			}
		}
		if tc.link != nil {
			up, err := hidden.LinkByName("up0")
			if err != nil {
				t.Fatal(tc.name, err)
			}
			if err := hidden.LinkDel(up); err != nil {
				t.Fatal(tc.name, err)
			}
		}
	}
}

// TestSearchingIsReported: a host on which the program cannot be used reports it, once.
func TestSearchingIsReported(t *testing.T) {
	InMachine(t)
	var said []error
	h, err := Open(Options{Searching: func(why error) { said = append(said, why) }})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	h.sysfs.root = t.TempDir() // without the kernel's types
	s := h.WithoutSandbox()
	for range 2 {
		if s.nothingStacked(s.outside, 1) {
			t.Error("it is certain of what it cannot know")
		}
	}
	if len(said) != 1 || !strings.Contains(said[0].Error(), "read the kernel's types") {
		t.Errorf("said %q", said)
	}
}

// TestMemberOf: fields of net_device are grouped in structures and unions without a name.
func TestMemberOf(t *testing.T) {
	list := &btf.Struct{Name: "list", Size: 16, Members: []btf.Member{{Name: "next"}, {Name: "prev", Offset: 64}}}
	group := &btf.Union{Size: 24, Members: []btf.Member{{Name: "first"}, {
		Type: &btf.Struct{Size: 24, Members: []btf.Member{{Name: "flag", Offset: 32, BitfieldSize: 4}, {Name: "upper", Type: &btf.Typedef{Type: &btf.Const{Type: list}}, Offset: 64}}},
	}}}
	device := &btf.Struct{Members: []btf.Member{{Name: "f"}, {Type: group, Offset: 128}, {Name: "list", Type: &btf.Pointer{Target: list}, Offset: 320}}}
	m, ok := memberOf(device, "upper")
	if !ok || m.Offset != 128+64 {
		t.Errorf("in what has no name: %v, %v", m, ok)
	}
	if m, ok := memberOf(m.Type, "prev"); !ok || m.Offset != 64 {
		t.Errorf("behind a name for its type: %v, %v", m, ok)
	}
	for _, name := range []string{"next", "none"} {
		if m, ok := memberOf(device, name); ok {
			t.Errorf("%s: found %v, which is in another structure", name, m)
		}
	}
}
