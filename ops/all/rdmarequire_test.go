package all_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestRDMARequirements plans a step with requirements of its RDMA device: what is not true is waited for, with the GIDs that
// there are in the reason; in a running sandbox it is drift.
func TestRDMARequirements(t *testing.T) {
	const function = "0000:03:00.2"
	host := netstate.HostName("enp3s0f0v0")
	table := []netstate.RDMAGID{{Index: 0, GID: "fe80::1", Type: "RoCEv1"}, {Index: 1, GID: "fe80::1", Type: "RoCEv2"}, {Index: 3, GID: "192.0.2.1", Type: "RoCEv2"}, {Index: 5, GID: "192.0.2.1", Type: "RoCEv2"}, {Index: 6, GID: "2001:db8::1", Type: "RoCEv2"}}
	port := netstate.RDMAPort{Device: "mlx5_2", Link: host, State: new("ACTIVE"), RateMbps: 100_000, GIDs: table}
	down, none, only := port, port, port
	only.GIDs = table[:1]
	down.State, none.GIDs = new("DOWN"), nil
	for name, tt := range map[string]struct {
		require string
		port    netstate.RDMAPort
		told    string // the index that containers were told in an earlier pass
		kept    bool
		index   int // -1: none
		wrong   string
	}{
		"nothing":                    {"", port, "", false, -1, ""},
		"any GID":                    {"gid: {}", port, "", false, 3, ""},
		"RoCE v2":                    {"gid: {type: RoCEv2}", port, "", false, 3, ""},
		"IPv4":                       {"gid: {type: RoCEv2, family: IPv4}", port, "", false, 3, ""},
		"routed":                     {"gid: {type: RoCEv2, scope: global, family: IPv6}", port, "", false, 6, ""},
		"link-local":                 {"gid: {type: RoCEv1, scope: linkLocal}", port, "", false, 0, ""},
		"link-local only":            {"gid: {}", only, "", false, -1, `no GID of "enp3s0f0v0" is global: it has 0 RoCEv1 fe80::1`},
		"as before":                  {"gid: {type: RoCEv2, family: IPv4}", port, "5", true, 5, ""},
		"as before, while attaching": {"gid: {type: RoCEv2, family: IPv4}", port, "5", false, 5, ""},
		"changed while attaching":    {"gid: {type: RoCEv2, family: IPv4}", port, "9", false, 3, ""},
		"changed":                    {"gid: {type: RoCEv2, family: IPv4}", port, "9", true, -1, "the GID that is RoCEv2, IPv4, global has index 3, and containers were told 9"},
		"no such GID":                {"gid: {type: RoCEv1, family: IPv4}", port, "", false, -1, `no GID of "enp3s0f0v0" is RoCEv1, IPv4, global: it has 0 RoCEv1 fe80::1, 1 RoCEv2 fe80::1, 3 RoCEv2 192.0.2.1, 5 RoCEv2 192.0.2.1, 6 RoCEv2 2001:db8::1`},
		"no GIDs":                    {"gid: {type: RoCEv1, family: IPv4}", none, "", false, -1, `is RoCEv1, IPv4, global: it has none. Has it an address, and is it up?`},
		"told another":               {"gid: {type: RoCEv2, family: IPv6}", port, "3", true, -1, "the GID that is RoCEv2, IPv6, global has index 6, and containers were told 3"},
		"lost":                       {"gid: {type: RoCEv1, family: IPv4}", none, "3", true, -1, `it has none`},
		"port":                       {"state: ACTIVE, minRate: 100Gbps, mtu: 1024", port, "", false, -1, ""},
		"port down":                  {"state: ACTIVE", down, "", false, -1, "its port is DOWN, not ACTIVE"},
		"slow and small":             {"minRate: 400Gbps, mtu: 4096", port, "", false, -1, `its port has 100Gbps, less than 400Gbps; the MTU 1500 of "enp3s0f0v0" is too small for packets with 4096 bytes of payload: set at least 4192`},
		"slow, kept":                 {"minRate: 400Gbps", port, "", true, -1, "its port has 100Gbps, less than 400Gbps"},
		"small, kept":                {"mtu: 4096", port, "", true, -1, `the MTU 1500 of "enp3s0f0v0" is too small for packets with 4096 bytes of payload: set at least 4192`},
		"down, kept":                 {"state: ACTIVE", down, "", true, -1, "its port is DOWN, not ACTIVE"},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: ib, type: rdma, config: {require: {"+tt.require+"}}}\n")
			chosen := ops.Choices{}
			if tt.told != "" {
				chosen[port.Key().String()+" gidIndex"] = tt.told
			}
			have := netstate.NewSnapshot(netstate.Device{ID: function, At: &host, Up: new(true), RDMA: []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2"}}}})
			node := netstate.NewSnapshot(tt.port, netstate.Link{Name: host, LinkKind: "device", DeviceID: function, Up: new(true), Master: new(""), MTU: new(uint32(1500))})
			plan := func() *ops.Plan {
				p, err := reg.Plan(t.Context(), ops.Request{
					Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"ib": {Device: function}}, Kept: tt.kept, Chosen: chosen, Have: have,
				})
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			p := plan()
			entries := 0
			for range 8 { // as an engine does: what a plan does not ask for is not observed
				for _, o := range p.Missing {
					if got, ok := node.Get(o.Key()); ok {
						if port, ok := got.(netstate.RDMAPort); ok {
							got = onlyGID(port, o.(netstate.RDMAPort).Only)
							entries += len(got.(netstate.RDMAPort).GIDs)
						}
						have.Put(got)
					} else {
						have.PutAbsent(o.Key())
					}
				}
				if len(p.Missing) == 0 {
					break
				}
				p = plan()
			}
			if few := tt.kept && tt.wrong == ""; few && entries != 1 {
				t.Errorf("%d GIDs were read, want the one that containers were told", entries)
			}
			if !strings.Contains(tt.require, "gid") && entries > 0 {
				t.Errorf("%d GIDs were read, and none is required", entries)
			}
			if tt.wrong != "" {
				waits := p.Settling() == "ib"
				if len(p.Pending) != 1 || !strings.Contains(p.Pending[0].Withheld.Error(), tt.wrong) || waits == tt.kept || tt.kept && fault.Of(p.Pending[0].Withheld) != fault.NotReady {
					t.Errorf("waits %v, pending %+v, want %q", waits, p.Pending, tt.wrong)
				}
				return
			}
			got := p.Results[0].Result.Devices.GIDIndex
			if !p.Empty() || tt.index < 0 && got != nil || tt.index >= 0 && (got == nil || *got != tt.index) {
				t.Errorf("index %v, want %d; plan %s", got, tt.index, p)
			}
		})
	}
}

// TestRDMARequiredOfMoved: what is required of a function that the step moves is compared after the move, when the kernel has made the GIDs of
// its addresses; a device that has vanished by then is named.
func TestRDMARequiredOfMoved(t *testing.T) {
	const function = "0000:03:00.2"
	reg, top := vetted(t, "    - {name: rail0, type: sriov, config: {name: rail0, addresses: [192.0.2.1/24], mtu: 4200, require: {gid: {type: RoCEv2, family: IPv4, scope: global}, state: ACTIVE, mtu: 4096}}}\n")
	host := netstate.HostName("enp3s0f0v0")
	node := netstate.NewSnapshot(
		netstate.Device{ID: function, At: &host, MTU: new(uint32(1500)), Up: new(false), Driver: "mlx5_core", RDMA: []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2"}}}},
		netstate.Link{Name: host, LinkKind: "device", DeviceID: function, Up: new(false), Master: new(""), MTU: new(uint32(1500))},
	)
	var owned []netstate.Change
	plan := func() (*ops.Plan, error) {
		have := netstate.NewSnapshot(netstate.All[netstate.Object](node)...)
		for range 8 {
			p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"rail0": {Device: function}}, Owned: owned, Have: have})
			if err != nil || len(p.Missing) == 0 {
				return p, err
			}
			for _, o := range p.Missing {
				if _, there := node.Get(o.Key()); !there {
					have.PutAbsent(o.Key())
				}
			}
		}
		t.Fatal("the plan asks for more and more")
		return nil, nil
	}
	p, err := plan()
	if err != nil || len(p.Pending) != 1 || p.Results[0].Result.Devices != nil && p.Results[0].Result.Devices.GIDIndex != nil {
		t.Fatalf("before the move: %v, %v, want that the GIDs are awaited", p, err)
	}
	for _, c := range p.Changes {
		node.Apply(c)
	}
	owned = p.Changes
	if _, err := plan(); err == nil || !strings.Contains(err.Error(), `RDMA device "mlx5_2" does not exist`) {
		t.Errorf("without the RDMA device: %v", err)
	}
	port := netstate.RDMAPort{Device: "mlx5_2", Link: "rail0", State: new("ACTIVE"), RateMbps: 100_000, GIDs: []netstate.RDMAGID{{Index: 0, GID: "fe80::1", Type: "RoCEv2"}, {Index: 3, GID: "192.0.2.1", Type: "RoCEv2"}}}
	node.Put(port)
	if p, err = plan(); err != nil || len(p.Pending) > 0 || *p.Results[0].Result.Devices.GIDIndex != 3 {
		t.Errorf("with its GID: %v, %v", p, err)
	}
	port.GIDs = port.GIDs[:1]
	node.Put(port)
	if p, err = plan(); err != nil || p.Settling() != "rail0" || !strings.Contains(p.Pending[0].Withheld.Error(), `no GID of "rail0" is RoCEv2, IPv4, global: it has 0 RoCEv2 fe80::1`) {
		t.Errorf("with another GID: %v, %v", p, err)
	}
}

// TestRDMARequiredMTU: an interface of InfiniBand has the MTU of the port's packets less 4 bytes in datagram mode, and any in connected mode; one of
// Ethernet needs 96 bytes more.
func TestRDMARequiredMTU(t *testing.T) {
	const function = "0000:03:00.2"
	host := netstate.HostName("ibp3s0v0")
	for name, tt := range map[string]struct {
		kind, mode string
		mtu        uint32
		wrong      string
	}{
		"InfiniBand":           {netstate.InfiniBandKind, "datagram", 4092, ""},
		"mode unknown":         {netstate.InfiniBandKind, "", 4092, ""},
		"smaller InfiniBand":   {netstate.InfiniBandKind, "datagram", 2044, `the MTU 2044 of "ibp3s0v0" is too small for packets with 4096 bytes of payload: set at least 4092`},
		"connected InfiniBand": {netstate.InfiniBandKind, "connected", 65520, `the MTU 65520 of "ibp3s0v0" does not depend on that of the port in connected mode`},
		"Ethernet":             {"device", "", 4092, `set at least 4192`},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: ib, type: rdma, config: {require: {mtu: 4096}}}\n")
			link := netstate.Link{Name: host, LinkKind: tt.kind, DeviceID: function, Up: new(true), Master: new(""), MTU: &tt.mtu}
			if tt.mode != "" {
				link.IPoIB = &netstate.IPoIB{Mode: &tt.mode}
			}
			have := netstate.NewSnapshot(link,
				netstate.Device{ID: function, At: &host, Up: new(true), LinkKind: tt.kind, RDMA: []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2"}}}},
				netstate.RDMAPort{Device: "mlx5_2", Link: host, State: new("ACTIVE"), RateMbps: 100_000, Only: new(-1)})
			p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"ib": {Device: function}}, Have: have})
			switch {
			case err != nil:
				t.Error(err)
			case tt.wrong == "" && !p.Empty():
				t.Errorf("plan %s, missing %v", p, p.Missing)
			case tt.wrong != "" && (len(p.Pending) != 1 || !strings.Contains(p.Pending[0].Withheld.Error(), tt.wrong)):
				t.Errorf("pending %+v, want %q", p.Pending, tt.wrong)
			}
		})
	}
}

// onlyGID is the observation of a port that was asked for one entry of its GID table.
func onlyGID(port netstate.RDMAPort, only *int) netstate.RDMAPort {
	if only == nil {
		return port
	}
	one := slices.IndexFunc(port.GIDs, func(g netstate.RDMAGID) bool { return g.Index == *only })
	switch {
	case *only < 0:
		port.GIDs, port.Only = nil, only
	case one >= 0:
		port.GIDs, port.Only = port.GIDs[one:one+1], only
	}
	return port
}

// TestRDMARequiredOfBond: a GID of a bond on a function, or of a VLAN on that, is required after the bond has its addresses, by a name and by a
// reference; of the GIDs of one table only those of that interface count.
func TestRDMARequiredOfBond(t *testing.T) {
	reg, top := vetted(t, `    - {name: vf0, type: sriov, config: {require: {gid: {interface: bond0, family: IPv4}, state: ACTIVE}}}
    - {name: vf1, type: sriov}
    - {name: bond0, type: bond, dependOn: [vf0, vf1], config: {mode: 802.3ad, addresses: [192.0.2.1/24]}}
    - {name: data, type: vlan, dependOn: [bond0], config: {name: data, id: 5, addresses: ["2001:db8::1/64"]}}
    - {name: verbs, type: rdma, dependOn: [vf0, data], config: {require: {gid: {interface: "{{ data.interfaceName }}"}}}}
`)
	function := func(i string) (netstate.Device, netstate.Link) {
		host := netstate.HostName("v" + i)
		return netstate.Device{ID: "0000:03:00." + i, At: &host, MTU: new(uint32(1500)), Up: new(false), Driver: "mlx5_core", RDMA: []netstate.RDMADevice{{Name: "mlx5_" + i, Nodes: []string{"/dev/infiniband/uverbs" + i}}}},
			netstate.Link{Name: host, LinkKind: "device", DeviceID: "0000:03:00." + i, MAC: new("52:54:00:00:00:0" + i), Up: new(false), Master: new(""), MTU: new(uint32(1500))}
	}
	d0, l0 := function("0")
	d1, l1 := function("1")
	node := netstate.NewSnapshot(d0, l0, d1, l1)
	var owned []netstate.Change
	chosen := ops.Choices{}
	plan := func(kept bool) *ops.Plan {
		t.Helper()
		req := ops.Request{Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"vf0": {Device: d0.ID}, "vf1": {Device: d1.ID}}, Owned: owned, Kept: kept, Chosen: chosen}
		return drive(t, reg, req, netstate.All[netstate.Object](node))
	}
	p := plan(false)
	if len(p.Pending) != 2 || !strings.Contains(p.Pending[0].Needs, "interface bond0") || !strings.Contains(p.Pending[1].Needs, "GIDs of mlx5_0") {
		t.Fatalf("before there is a bond: %+v", p.Pending)
	}
	for _, c := range p.Changes {
		node.Apply(c)
	}
	owned = p.Changes
	port := func(link string, gids ...netstate.RDMAGID) netstate.RDMAPort {
		return netstate.RDMAPort{Device: "mlx5_0", Link: link, State: new("ACTIVE"), RateMbps: 100_000, GIDs: gids}
	}
	node.Put(port("bond0"))
	node.Put(port("data", netstate.RDMAGID{Index: 7, GID: "2001:db8::1", Type: "RoCEv2"}))
	if p = plan(false); p.Settling() != "vf0" || !strings.Contains(p.Pending[0].Withheld.Error(), `no GID of "bond0" of this RDMA device is IPv4, global: it has none. Has it an address, and is it up?`) {
		t.Errorf("without a GID of the bond: %+v", p.Pending)
	}
	node.Put(port("bond0", netstate.RDMAGID{Index: 3, GID: "198.51.100.1", Type: "RoCEv2"}, netstate.RDMAGID{Index: 5, GID: "192.0.2.1", Type: "RoCEv2"}))
	p = plan(false)
	index := map[string]int{}
	for _, r := range p.Results {
		if d := r.Result.Devices; d != nil && d.GIDIndex != nil {
			index[r.Name] = *d.GIDIndex
		}
	}
	if len(p.Pending) > 0 || len(index) != 2 || index["vf0"] != 5 || index["verbs"] != 7 {
		t.Errorf("with the GIDs: %v, waits for %+v", index, p.Pending)
	}
	chosen = p.Chosen
	if p = plan(true); len(p.Pending) > 0 {
		t.Errorf("running: %+v", p.Pending)
	}
	node.Put(port("data", netstate.RDMAGID{Index: 8, GID: "2001:db8::1", Type: "RoCEv2"}))
	if p = plan(true); len(p.Pending) != 1 || !strings.Contains(p.Pending[0].Withheld.Error(), "has index 8, and containers were told 7") {
		t.Errorf("with another index: %+v", p.Pending)
	}
	for i, c := range owned {
		if l, ok := c.After.(netstate.Link); ok && c.Before == nil && l.Name == "data" {
			l.Index = 7
			owned[i].After = l
			seen, _ := node.Link("data")
			seen.Index = 7
			node.Put(seen)
		}
	}
	node.Rename("data", "renamed") // by the pod; no GID is of an interface of the name that the step wants
	node.PutAbsent(port("data").Key())
	if p = plan(true); len(p.Changes) != 1 || p.Changes[0].String() != "~ link data name renamed → data" || len(p.Pending) != 1 {
		t.Errorf("with another name: changes %v, pending %+v", p.Changes, p.Pending)
	}
	node.Rename("renamed", "data")
	node.Apply(netstate.Change{Before: netstate.Link{Name: "data"}}) // by the pod
	if p = plan(true); len(p.Changes) == 0 || len(p.Pending) == 0 {
		t.Errorf("without the VLAN: changes %v, pending %+v", p.Changes, p.Pending)
	}
}

// TestLinkLocalGID: pods that share a function have GIDs in one table, and links of one name. The link-local GID that a pod is told is
// that of its own link, and it is told one only if the step asks for the scope.
func TestLinkLocalGID(t *testing.T) {
	const function = "0000:03:00.0"
	for name, tt := range map[string]struct {
		gid   string
		table []netstate.RDMAGID
		want  int // -1: waits
	}{
		"both": {"type: RoCEv2, scope: linkLocal", []netstate.RDMAGID{{Index: 4, GID: "fe80::ff:fe00:1", Type: "RoCEv2"}, {Index: 6, GID: "fe80::ff:fe00:2", Type: "RoCEv2"}}, 6},
		// before the kernel has added that of this pod (roce_gid_mgmt.c does it later)
		"the other's only":     {"type: RoCEv2, scope: linkLocal", []netstate.RDMAGID{{Index: 4, GID: "fe80::ff:fe00:1", Type: "RoCEv2"}}, -1},
		"no scope":             {"type: RoCEv2", []netstate.RDMAGID{{Index: 6, GID: "fe80::ff:fe00:2", Type: "RoCEv2"}, {Index: 7, GID: "192.0.2.1", Type: "RoCEv2"}}, 7},
		"no scope, no address": {"type: RoCEv2", []netstate.RDMAGID{{Index: 6, GID: "fe80::ff:fe00:2", Type: "RoCEv2"}}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: rail, type: macvlan, config: {name: rail0, addresses: [192.0.2.1/24], rdma: true, require: {gid: {"+tt.gid+"}}}}\n")
			host := netstate.HostName("enp3s0f0")
			node := netstate.NewSnapshot(
				netstate.Device{ID: function, At: &host, Up: new(true), RDMA: []netstate.RDMADevice{{Name: "mlx5_0", Nodes: []string{"/dev/infiniband/uverbs0"}}}},
				netstate.Link{Name: host, LinkKind: "device", DeviceID: function, Up: new(true), Master: new(""), MTU: new(uint32(1500))},
			)
			var owned []netstate.Change
			var p *ops.Plan
			plan := func() {
				have := netstate.NewSnapshot(netstate.All[netstate.Object](node)...)
				for range 8 {
					var err error
					p, err = reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"rail": {Device: function}}, Owned: owned, Have: have})
					if err != nil {
						t.Fatal(err)
					}
					if len(p.Missing) == 0 {
						return
					}
					for _, o := range p.Missing {
						if _, there := node.Get(o.Key()); !there {
							have.PutAbsent(o.Key())
						}
					}
				}
			}
			plan()
			for _, c := range p.Changes {
				node.Apply(c)
			}
			owned = p.Changes
			l, _ := netstate.Lookup(node, netstate.Link{Name: "rail0"})
			l.MAC = new("02:00:00:00:00:02")
			node.Put(l)
			node.Put(netstate.Addr{Link: "rail0", Address: "fe80::ff:fe00:2/64", Kernel: true})
			node.Put(netstate.RDMAPort{Device: "mlx5_0", Link: "rail0", State: new("ACTIVE"), RateMbps: 100_000, GIDs: tt.table})
			plan()
			got := p.Results[0].Result.Devices.GIDIndex
			if tt.want < 0 && (got != nil || len(p.Pending) != 1) || tt.want >= 0 && (got == nil || *got != tt.want) {
				t.Errorf("the pod is told %+v of %+v, want index %d; pending %v", p.Results[0].Result.Devices, tt.table, tt.want, p.Pending)
			}
		})
	}
}
