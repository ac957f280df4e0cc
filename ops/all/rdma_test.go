package all_test

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestRDMAResult checks which RDMA device of a function a step of type rdma gives: the named one, otherwise the first that
// has device nodes. A device without them is of no use to a container.
func TestRDMAResult(t *testing.T) {
	const function = "0000:03:00.2"
	nodes := func(n string) []string { return []string{"/dev/infiniband/uverbs" + n, "/dev/infiniband/rdma_cm"} }
	bare := netstate.RDMADevice{Name: "mlx5_2"}
	third := netstate.RDMADevice{Name: "mlx5_3", Nodes: nodes("3"), Management: []string{"/dev/infiniband/umad3"}}
	fourth := netstate.RDMADevice{Name: "mlx5_4", Nodes: nodes("4"), Management: []string{"/dev/infiniband/umad4", "/dev/infiniband/issm4"}}
	for name, tt := range map[string]struct {
		have   []netstate.RDMADevice
		config string
		want   topology.Devices
		err    string
	}{
		"first":                            {[]netstate.RDMADevice{third, fourth}, "", topology.Devices{RDMADevice: "mlx5_3", DeviceNodes: nodes("3")}, ""},
		"first with device nodes":          {[]netstate.RDMADevice{bare, third, fourth}, "", topology.Devices{RDMADevice: "mlx5_3", DeviceNodes: nodes("3")}, ""},
		"named":                            {[]netstate.RDMADevice{bare, third, fourth}, ", config: {rdmaDevice: mlx5_4}", topology.Devices{RDMADevice: "mlx5_4", DeviceNodes: nodes("4")}, ""},
		"named, without device nodes":      {[]netstate.RDMADevice{bare, third}, ", config: {rdmaDevice: mlx5_2}", topology.Devices{}, `RDMA device "mlx5_2" of device "0000:03:00.2" has no device nodes`},
		"none with device nodes":           {[]netstate.RDMADevice{bare}, "", topology.Devices{}, `RDMA device "mlx5_2" of device "0000:03:00.2" has no device nodes`},
		"with device nodes that are named": {[]netstate.RDMADevice{third, fourth}, ", config: {rdmaDevice: mlx5_4, deviceNodes: [umad, ptp]}", topology.Devices{RDMADevice: "mlx5_4", DeviceNodes: append(nodes("4"), "/dev/infiniband/umad4", "/dev/ptp3")}, ""},
		"named, unknown":                   {[]netstate.RDMADevice{third}, ", config: {rdmaDevice: mlx5_9}", topology.Devices{}, `rdmaDevice: "mlx5_9" is not an RDMA device of device "0000:03:00.2", which has mlx5_3`},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: ib, type: rdma"+tt.config+"}\n")
			host := netstate.HostName("enp3s0f0v0")
			p, err := reg.Plan(t.Context(), ops.Request{
				Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"ib": {Device: function}},
				Have: netstate.NewSnapshot(
					netstate.Device{ID: function, At: &host, Up: new(true), RDMA: tt.have, Nodes: map[string][]string{netstate.NodePTP: {"/dev/ptp3"}}},
					netstate.Link{Name: host, LinkKind: "device", DeviceID: function, Up: new(true), Master: new("")},
				),
			})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tt.want.PCIAddress = function
			if got := p.Results[0].Result.Devices; got == nil || !reflect.DeepEqual(*got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestSharedRDMA checks what containers get of a device that a root step shares: nothing unless the step asks for it, and its RDMA
// device, which others use too, without the PCI address. In exclusive mode that stays on the host, and a master in the pod is no device.
func TestSharedRDMA(t *testing.T) {
	const pf, mode = "0000:03:00.0", `("rdma system show"), in which an RDMA device belongs to one network namespace, and that of a shared device stays on the host: take a function with type sriov or host-device`
	verbs := []string{"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}
	hardware := []netstate.RDMADevice{{Name: "mlx5_0", Nodes: verbs, Management: []string{"/dev/infiniband/umad0"}}}
	soft := []netstate.RDMADevice{{Name: "rxe0", Nodes: verbs, Software: true}}
	whole := &topology.Devices{RDMADevice: "mlx5_0", DeviceNodes: verbs}
	for name, tt := range map[string]struct {
		step             string // of the name m
		rdma             []netstate.RDMADevice
		unnamed, virtual bool // no device is allocated; the device has no PCI address
		exclusive, kept  bool
		want             *topology.Devices
		err, waits       string
	}{
		"not asked for":              {step: "type: macvlan", rdma: hardware},
		"refused":                    {step: "type: macvlan, config: {rdma: false, deviceNodes: []}", rdma: hardware},
		"macvlan":                    {step: "type: macvlan, config: {rdma: true}", rdma: hardware, want: whole},
		"ipvlan":                     {step: "type: ipvlan, config: {rdma: true}", rdma: hardware, want: whole},
		"of the master":              {step: "type: ipvlan, config: {rdma: true, master: enp3s0f0}", rdma: hardware, unnamed: true, want: whole},
		"in software":                {step: "type: macvlan, config: {rdma: true}", rdma: soft, want: &topology.Devices{RDMADevice: "rxe0", DeviceNodes: verbs}},
		"in software, of the master": {step: "type: macvlan, config: {rdma: true, master: enp3s0f0}", rdma: soft, unnamed: true, virtual: true, want: &topology.Devices{RDMADevice: "rxe0", DeviceNodes: verbs}},
		"below a bond":               {step: "type: macvlan, config: {rdma: true, master: enp3s0f0}", rdma: hardware, unnamed: true, virtual: true, want: whole},
		"several below a bond":       {step: "type: macvlan, config: {rdma: true, master: enp3s0f0}", rdma: []netstate.RDMADevice{hardware[0], {Name: "mlx5_1", Nodes: verbs}}, unnamed: true, virtual: true, err: `link "enp3s0f0" is on several RDMA devices (mlx5_0, mlx5_1), and its packets leave by any of them: share one of the cards instead`},
		"none below a bond":          {step: "type: macvlan, config: {rdma: true, master: enp3s0f0}", unnamed: true, virtual: true, err: `link "enp3s0f0" has no RDMA device, nor has a card below it as the port of a bond or below a VLAN: share a card with the attribute rdma instead`},
		"other nodes too":            {step: "type: macvlan, config: {rdma: true, deviceNodes: [umad, ptp]}", rdma: hardware, want: &topology.Devices{RDMADevice: "mlx5_0", DeviceNodes: append(slices.Clone(verbs), "/dev/infiniband/umad0", "/dev/ptp3")}},
		"other nodes only":           {step: "type: macvlan, config: {deviceNodes: [ptp]}", rdma: hardware, want: &topology.Devices{DeviceNodes: []string{"/dev/ptp3"}}},
		"its management only":        {step: "type: macvlan, config: {deviceNodes: [umad]}", rdma: soft, err: "deviceNodes: umad belongs to an RDMA device, and the step gives the pod none: set rdma: true"},
		"required of it only":        {step: "type: macvlan, config: {require: {state: ACTIVE}}", rdma: hardware, err: "require: needs an RDMA device, and the step gives the pod none: set rdma: true"},
		"none":                       {step: "type: ipvlan, config: {rdma: true}", err: `device "0000:03:00.0" has no RDMA device: load the RDMA driver`},
		"none, kept":                 {step: "type: ipvlan, config: {rdma: true}", kept: true, want: &topology.Devices{}, waits: `device "0000:03:00.0" has no RDMA device`},
		"without nodes":              {step: "type: ipvlan, config: {rdma: true}", rdma: []netstate.RDMADevice{{Name: "mlx5_0"}}, err: `RDMA device "mlx5_0" of device "0000:03:00.0" has no device nodes`},
		"exclusive":                  {step: "type: macvlan, config: {rdma: true}", rdma: hardware, exclusive: true, err: mode},
		"exclusive, kept":            {step: "type: macvlan, config: {rdma: true}", rdma: hardware, exclusive: true, kept: true, want: &topology.Devices{}, waits: mode},
		"exclusive, not asked for":   {step: "type: macvlan", rdma: hardware, exclusive: true},
		"the pod's own interface":    {step: "type: macvlan, config: {rdma: true, linkInContainer: true, master: eth0}", rdma: hardware, unnamed: true, err: `rdma: is for a root step on a device of the host, and the master "eth0" is in the pod`},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: m, "+tt.step+"}\n")
			id, host := pf, netstate.HostName("enp3s0f0")
			link := netstate.Link{Name: host, LinkKind: "device", DeviceID: pf, Up: new(true), Master: new(""), MTU: new(uint32(1500))}
			if tt.virtual {
				id, link.DeviceID = netstate.VirtualPrefix+"enp3s0f0", ""
			}
			req := ops.Request{Topology: top, Netns: "/run/netns/pod", Kept: tt.kept}
			if !tt.unnamed {
				req.Given = ops.Givens{"m": {Device: id}}
			}
			req.Have = netstate.NewSnapshot(link,
				netstate.Link{Name: "eth0", LinkKind: "veth", Up: new(true), Master: new(""), MTU: new(uint32(1500))},
				netstate.Device{ID: id, At: &host, Up: new(true), RDMA: tt.rdma, RDMAExclusive: tt.exclusive, Nodes: map[string][]string{netstate.NodePTP: {"/dev/ptp3"}}})
			p, err := planToEnd(t, reg, req)
			if tt.err != "" || err != nil {
				if tt.err == "" || err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			var waits string
			for _, s := range p.Pending {
				if s.Withheld != nil {
					waits += s.Withheld.Error()
				}
			}
			if (tt.waits != "") != (waits != "") || !strings.Contains(waits, tt.waits) {
				t.Errorf("waits for %q, want %q", waits, tt.waits)
			}
			if got := p.Results[0].Result.Devices; !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestNodesChanged: after a reload of the driver a running pod waits to be created again, as its containers have the earlier device nodes,
// which may be another pod's by now. A pod that is attached gets the nodes of the device.
func TestNodesChanged(t *testing.T) {
	const function = "0000:03:00.2"
	for name, tt := range map[string]struct {
		step  string
		kept  bool
		waits bool
	}{
		"function":               {"sriov", true, true},
		"function, attached":     {"sriov", false, false},
		"function of OVN":        {"ovn-k8s-cni-overlay, config: {topology: layer2, netAttachDefName: default/blue}", true, true},
		"function, without RDMA": {"sriov, config: {rdma: false}", true, false},
		"no interface, prepared": {"rdma", true, true},
		"shared":                 {"macvlan, config: {rdma: true}", true, true},
		"shared, attached":       {"macvlan, config: {rdma: true}", false, false},
		"shared, without RDMA":   {"macvlan", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: net1, type: "+tt.step+"}\n")
			host := netstate.HostName("v0")
			d := netstate.Device{ID: function, At: &host, Up: new(true), Driver: "mlx5_core"}
			req := ops.Request{Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"net1": {Device: function}}}
			chosen := ops.Choices{}
			for _, number := range []string{"2", "5"} {
				d.RDMA = []netstate.RDMADevice{{Name: "mlx5_" + number, Nodes: []string{"/dev/infiniband/uverbs" + number}}}
				req.Have = netstate.NewSnapshot(d, netstate.Link{Name: host, LinkKind: "device", DeviceID: function, Up: new(true), Master: new(""), MTU: new(uint32(1500))})
				if strings.Contains(tt.step, "ovn") {
					port := netstate.HostName("r0")
					req.Have.Put(netstate.Link{Name: port, LinkKind: "device", Up: new(true), Master: new(""), MTU: new(uint32(1500))})
					req.Have.Put(netstate.Representor{ID: function, Link: &port, PF: "0000:03:00.0", Switchdev: true})
					req.Have.Put(netstate.Chassis{ID: netstate.ThisChassis.ID, Name: new("node-1"), Int: new("br-int")})
					req.Have.Put(netstate.VF{ID: function, MAC: new("52:54:00:aa:bb:01")})
				}
				req.Chosen, req.Kept, req.Prepared = chosen, tt.kept && number == "5", strings.HasSuffix(name, "prepared")
				p, err := planToEnd(t, reg, req)
				if err != nil {
					t.Fatal(err)
				}
				chosen = p.Chosen
				var waits string
				for _, s := range p.Pending {
					if s.Withheld != nil {
						waits += s.Withheld.Error()
					}
				}
				want := ""
				if tt.waits && number == "5" {
					want = "containers were given uverbs2, the device is uverbs5 now: create the pod again"
				}
				if waits != want {
					t.Errorf("with uverbs%s it waits for %q, want %q", number, waits, want)
				}
				if got := p.Results[0].Result.Devices; (got != nil) == strings.HasSuffix(name, "without RDMA") || got != nil && !slices.Equal(got.DeviceNodes, d.RDMA[0].Nodes) {
					t.Errorf("with uverbs%s the result is %+v", number, got)
				}
			}
		})
	}
}

// TestNodesLost: a step whose device has lost what it gave waits for it where it was applied before, so that the rest of the pod is
// repaired, and is refused elsewhere, with what to do on the node.
func TestNodesLost(t *testing.T) {
	const function = "0000:03:00.2"
	for name, tt := range map[string]struct {
		step, err string
		also      string // kept, it waits for this, too
	}{
		"RDMA device":                        {step: "sriov, config: {rdma: true}", err: `device "0000:03:00.2" has no RDMA device: load the RDMA driver`},
		"RDMA device of a step":              {step: "rdma", err: `device "0000:03:00.2" has no RDMA device: load the RDMA driver`},
		"management of no RDMA device":       {step: "sriov, config: {deviceNodes: [umad]}", err: `deviceNodes: device "0000:03:00.2" has no RDMA device: load the RDMA driver of the card on the node (such as mlx5_ib or irdma), choose a device with the attribute rdma, or remove umad`},
		"clock":                              {step: "host-device, config: {deviceNodes: [ptp]}", err: `deviceNodes: device "0000:03:00.2" has no device node ptp: choose a device`},
		"management of the device of a step": {step: "rdma, config: {deviceNodes: [umad]}", err: `device "0000:03:00.2" has no RDMA device: load the RDMA driver`},
		"two kinds":                          {"sriov, config: {deviceNodes: [ptp, tun]}", `has no device node ptp: choose a device whose driver has a PTP clock, as ethtool -T shows, or remove it from the key`, "; deviceNodes: the node has no device node tun"},
		"clock, then management":             {"sriov, config: {deviceNodes: [ptp, umad]}", `has no device node ptp`, `; deviceNodes: device "0000:03:00.2" has no RDMA device`},
		"management, then clock":             {"sriov, config: {deviceNodes: [umad, ptp]}", `deviceNodes: device "0000:03:00.2" has no RDMA device`, "has no device node ptp"},
		"RDMA device, management and clock":  {"sriov, config: {rdma: true, deviceNodes: [umad, ptp]}", `device "0000:03:00.2" has no RDMA device`, "; deviceNodes: device \"0000:03:00.2\" has no device node ptp"},
		"vhost":                              {step: "sriov, config: {deviceNodes: [vhost-net]}", err: `deviceNodes: the node has no device node vhost-net: load the kernel module vhost_net`},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: net, type: "+tt.step+"}\n")
			host := netstate.HostName("enp3s0f0v0")
			request := ops.Request{
				Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"net": {Device: function}},
				Have: netstate.NewSnapshot(
					netstate.Device{ID: function, At: &host, Up: new(true), Driver: "igbvf"},
					netstate.Link{Name: host, LinkKind: "device", DeviceID: function, Up: new(true), Master: new("")},
				),
			}
			if _, err := reg.Plan(t.Context(), request); fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got error %v, want %q", err, tt.err)
			}
			request.Kept = true
			if !strings.HasPrefix(tt.step, "rdma") { // it has been moved
				at := "net"
				moved := netstate.Change{Step: "net", Before: netstate.Device{ID: function, At: &host}, After: netstate.Device{ID: function, At: &at}}
				request.Owned = []netstate.Change{moved}
				request.Have = netstate.NewSnapshot(
					netstate.Device{ID: function, At: &at, Up: new(true), Driver: "igbvf"},
					netstate.Link{Name: at, LinkKind: "device", DeviceID: function, Up: new(true), Master: new("")},
				)
			}
			p, err := reg.Plan(t.Context(), request)
			for range 9 {
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range p.Missing {
					setting := o.(netstate.Sysctl)
					setting.Value = new("0")
					request.Have.Put(setting)
				}
				p, err = reg.Plan(t.Context(), request)
			}
			if len(p.Pending) != 1 || fault.Of(p.Pending[0].Withheld) != fault.NotReady || !strings.Contains(p.Pending[0].Withheld.Error(), tt.err) {
				t.Errorf("kept, it waits for %+v", p.Pending)
			}
			if !strings.Contains(p.Pending[0].Withheld.Error(), tt.also) {
				t.Errorf("kept, it waits for %v, and not for %s", p.Pending[0].Withheld, tt.also)
			}
			if strings.Contains(p.Pending[0].Withheld.Error(), "umad belongs to") {
				t.Errorf("kept, it waits for %v", p.Pending[0].Withheld)
			}
			if d := p.Results[0].Result.Devices; d != nil && len(d.DeviceNodes) > 0 {
				t.Errorf("the containers get %v", d.DeviceNodes)
			}
		})
	}
}

// TestNodesResult checks the device nodes that the containers get with the key deviceNodes: those that it names, after those of the step.
func TestNodesResult(t *testing.T) {
	const function = "0000:03:00.2"
	uverbs := "/dev/infiniband/uverbs2 /dev/infiniband/rdma_cm"
	for step, tt := range map[string]struct {
		driver string
		want   string
	}{
		"sriov, config: {deviceNodes: [vhost-net, tun]}":                      {"mlx5_core", uverbs + " /dev/vhost-net /dev/net/tun"},
		"sriov, config: {deviceNodes: [umad, ptp, tun]}":                      {"mlx5_core", uverbs + " /dev/infiniband/umad2 /dev/ptp3 /dev/net/tun"},
		"sriov, config: {rdma: false, deviceNodes: [ptp]}":                    {"mlx5_core", "/dev/ptp3"},
		"sriov , config: {deviceNodes: [vhost-net, tun]}":                     {"vfio-pci", "/dev/vhost-net /dev/net/tun"},
		"host-device, config: {deviceNodes: [vhost-net, tun]}":                {"mlx5_core", uverbs + " /dev/vhost-net /dev/net/tun"},
		"host-device, config: {deviceNodes: [umad, issm]}":                    {"mlx5_core", uverbs + " /dev/infiniband/umad2 /dev/infiniband/issm2"},
		"rdma, config: {deviceNodes: [umad]}":                                 {"mlx5_core", uverbs + " /dev/infiniband/umad2"},
		"vfio-pci, config: {deviceNodes: [vhost-net, tun]}":                   {"mlx5_core", "/dev/vfio/42 /dev/vfio/vfio /dev/vhost-net /dev/net/tun"},
		"vfio-pci , config: {deviceNodes: [vhost-net, tun]}":                  {"vfio-pci", "/dev/vfio/42 /dev/vfio/vfio /dev/vhost-net /dev/net/tun"},
		"vfio-pci, config: {deviceNodes: [tun, vhost-net], driver: vfio-pci}": {"mlx5_core", "/dev/vfio/42 /dev/vfio/vfio /dev/net/tun /dev/vhost-net"},
	} {
		t.Run(step, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: net, type: "+step+"}\n")
			host := netstate.HostName("enp3s0f0v0")
			device := netstate.Device{ID: function, Up: new(true), Driver: tt.driver, Nodes: map[string][]string{
				netstate.NodePTP: {"/dev/ptp3"}, netstate.NodeVhost: {"/dev/vhost-net"}, netstate.NodeTun: {"/dev/net/tun"},
			}}
			have := netstate.NewSnapshot(netstate.Binding{ID: function, Driver: &tt.driver, Override: new(""), PF: "0000:03:00.0", Group: "42"})
			if tt.driver == "mlx5_core" {
				device.At = &host
				device.RDMA = []netstate.RDMADevice{{
					Name: "mlx5_2", Nodes: strings.Fields(uverbs), Management: []string{"/dev/infiniband/umad2", "/dev/infiniband/issm2"},
				}}
				have.Put(netstate.Link{Name: host, LinkKind: "device", DeviceID: function, Up: new(true), Master: new("")})
			}
			have.Put(device)
			request := ops.Request{Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"net": {Device: function}}, Have: have}
			p, err := reg.Plan(t.Context(), request)
			for range 9 {
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range p.Missing {
					setting := o.(netstate.Sysctl)
					setting.Value = new("0")
					have.Put(setting)
				}
				p, err = reg.Plan(t.Context(), request)
			}
			if err != nil || len(p.Results) != 1 {
				t.Fatalf("have %v, %v", p, err)
			}
			got := p.Results[0].Result.Devices
			if got == nil || got.PCIAddress != function || strings.Join(got.DeviceNodes, " ") != tt.want {
				t.Errorf("got %+v, want %q", got, tt.want)
			}
		})
	}
}

// TestRDMANotMoved: on a node in exclusive mode a running pod gets no RDMA device that it was attached without, and a pod that does not ask for
// one is attached without one that is elsewhere. What asks for it waits, or is refused.
func TestRDMANotMoved(t *testing.T) {
	const function = "0000:03:00.2"
	const running, other = `the pod was attached without RDMA device "mlx5_2" of device "0000:03:00.2"`, `RDMA device "mlx5_2" of device "0000:03:00.2" is in another network namespace, and plumbline did not move it there`
	for name, tt := range map[string]struct {
		config, netns string
		kept, before  bool
		edited        bool
		note, waits   string
		err           string
		moved         bool
	}{
		"new":                              {netns: netstate.RDMAOfHost, moved: true},
		"after a reboot":                   {netns: netstate.RDMAOfHost, before: true, moved: true},
		"new, elsewhere":                   {netns: netstate.RDMAOfOther, note: other},
		"new, elsewhere, asked for":        {config: "{rdma: true}", netns: netstate.RDMAOfOther, err: other},
		"after a reboot, elsewhere, asked": {config: "{rdma: true}", netns: netstate.RDMAOfOther, before: true, waits: other},
		"running":                          {netns: netstate.RDMAOfHost, kept: true, note: running},
		"running, edited":                  {netns: netstate.RDMAOfHost, edited: true, note: running},
		"running, elsewhere":               {netns: netstate.RDMAOfOther, kept: true, note: other},
		"running, asked for":               {config: "{rdma: true}", netns: netstate.RDMAOfHost, kept: true, waits: running},
		"running, elsewhere, asked for":    {config: "{rdma: true}", netns: netstate.RDMAOfOther, kept: true, waits: other},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: net, type: sriov, config: "+cmp.Or(tt.config, "{}")+"}\n")
			at, host := "net1", netstate.HostName("v0")
			d := netstate.Device{
				ID: function, At: &host, Up: new(true), Driver: "mlx5_core", RDMAExclusive: true,
				RDMA: []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2"}}},
			}
			req := ops.Request{Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"net": {Device: function}}, Kept: tt.kept, AppliedBefore: tt.before}
			if tt.kept || tt.edited {
				req.Owned = []netstate.Change{{Step: "net", Before: netstate.Device{ID: function, At: &host}, After: netstate.Device{ID: function, At: &at}}}
				d.At = &at
			}
			req.Have = netstate.NewSnapshot(d, netstate.Link{Name: *d.At, LinkKind: "device", DeviceID: function, Up: new(true), Master: new("")},
				netstate.RDMANetns{ID: function, Netns: &tt.netns, Name: new("mlx5_2")})
			p, err := reg.Plan(t.Context(), req)
			for range 9 {
				if err != nil || len(p.Missing) == 0 {
					break
				}
				for _, o := range p.Missing {
					if setting, ok := o.(netstate.Sysctl); ok && (tt.kept || tt.edited) {
						setting.Value = new("0")
						req.Have.Put(setting)
					} else {
						req.Have.PutAbsent(o.Key())
					}
				}
				p, err = reg.Plan(t.Context(), req)
			}
			if tt.err != "" || err != nil {
				if tt.err == "" || fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			moved := slices.ContainsFunc(p.Changes, func(c netstate.Change) bool { return c.Key().Kind == netstate.KindRDMANetns })
			if moved != tt.moved || (tt.note != "") != strings.Contains(strings.Join(p.Notes, "\n"), cmp.Or(tt.note, "get no RDMA device")) {
				t.Errorf("moved: %v, notes %q, want %v and %q", moved, p.Notes, tt.moved, tt.note)
			}
			var waits string
			for _, s := range p.Pending {
				if s.Withheld != nil {
					waits += s.Withheld.Error()
				}
			}
			if (tt.waits != "") != (waits != "") || !strings.Contains(waits, tt.waits) {
				t.Errorf("waits for %q, want %q", waits, tt.waits)
			}
		})
	}
}

// TestRDMAImagined: on a node that nobody has, each device has an RDMA device of its own, as on any other, so that a plan without a node
// shows what containers are told of all of them.
func TestRDMAImagined(t *testing.T) {
	reg, top := vetted(t, `    - {name: rail, forEach: ["0", "1"], type: sriov}
    - {name: ib, type: rdma}
    - {name: roce, type: rxe, dependOn: [rail0]}
`)
	p, _, err := reg.PlanImagined(t.Context(), top, nil, ops.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	var devices, nodes []string
	for _, r := range p.Results {
		if d := r.Result.Devices; d != nil {
			devices, nodes = append(devices, d.RDMADevice), append(nodes, d.DeviceNodes[0])
		}
	}
	slices.Sort(devices)
	slices.Sort(nodes)
	if len(devices) != 4 || len(slices.Compact(slices.Clone(devices))) != 4 || len(slices.Compact(slices.Clone(nodes))) != 4 {
		t.Errorf("the RDMA devices are %v, their device nodes %v, want four", devices, nodes)
	}
}

// planToEnd plans until nothing is missing: nothing is there that is asked for.
func planToEnd(t *testing.T, reg *ops.Registry, req ops.Request) (*ops.Plan, error) {
	t.Helper()
	p, err := reg.Plan(t.Context(), req)
	for range 9 {
		if err != nil || len(p.Missing) == 0 {
			break
		}
		for _, o := range p.Missing {
			req.Have.PutAbsent(o.Key())
		}
		p, err = reg.Plan(t.Context(), req)
	}
	return p, err
}

// TestDerivedRDMA: a derived step gives the RDMA device of the function that another step takes, with the interface of that and without its
// addresses, and chooses a GID of its own. What it cannot give it is refused for, and in a running sandbox it waits for that.
func TestDerivedRDMA(t *testing.T) {
	const function = "0000:03:00.2"
	nodes := func(n string) []string { return []string{"/dev/infiniband/uverbs" + n, "/dev/infiniband/rdma_cm"} }
	first := netstate.RDMADevice{Name: "mlx5_2", Nodes: nodes("2")}
	second := netstate.RDMADevice{Name: "mlx5_3", Nodes: nodes("3"), Management: []string{"/dev/infiniband/umad3"}}
	device := func(name, n string, gid *int, more ...string) *topology.Devices {
		return &topology.Devices{PCIAddress: function, RDMADevice: name, DeviceNodes: append(nodes(n), more...), GIDIndex: gid}
	}
	for name, tt := range map[string]struct {
		root, config    string
		have            []netstate.RDMADevice
		exclusive, kept bool
		of, derived     *topology.Devices
		waits           string
	}{
		"same device":            {"{}", "{}", []netstate.RDMADevice{first}, false, false, device("mlx5_2", "2", nil), device("mlx5_2", "2", nil), ""},
		"same device, running":   {"{}", "{}", []netstate.RDMADevice{first}, false, true, device("mlx5_2", "2", nil), device("mlx5_2", "2", nil), ""},
		"alone":                  {"{rdma: false}", "{}", []netstate.RDMADevice{first}, false, false, nil, device("mlx5_2", "2", nil), ""},
		"second device":          {"{}", "{rdmaDevice: mlx5_3, deviceNodes: [umad]}", []netstate.RDMADevice{first, second}, false, true, device("mlx5_2", "2", nil), device("mlx5_3", "3", nil, "/dev/infiniband/umad3"), ""},
		"moved":                  {"{}", "{rdmaDevice: mlx5_2}", []netstate.RDMADevice{first}, true, true, device("mlx5_2", "2", nil), device("mlx5_2", "2", nil), ""},
		"moved by it":            {"{rdma: false}", "{}", []netstate.RDMADevice{first}, true, false, nil, device("mlx5_2", "2", nil), ""},
		"GID":                    {"{}", "{require: {gid: {family: IPv4}}}", []netstate.RDMADevice{first}, false, false, device("mlx5_2", "2", nil), device("mlx5_2", "2", new(3)), ""},
		"GIDs of both":           {"{require: {gid: {family: IPv6}, state: ACTIVE}}", "{require: {gid: {family: IPv4}}}", []netstate.RDMADevice{first}, false, false, device("mlx5_2", "2", new(5)), device("mlx5_2", "2", new(3)), ""},
		"GIDs of both, running":  {"{require: {gid: {family: IPv6}}}", "{require: {gid: {family: IPv4}}}", []netstate.RDMADevice{first}, true, true, device("mlx5_2", "2", new(5)), device("mlx5_2", "2", new(3)), ""},
		"no such GID":            {"{}", "{require: {gid: {type: RoCEv1}}}", []netstate.RDMADevice{first}, false, false, device("mlx5_2", "2", nil), nil, `no GID of "net1" is RoCEv1, global: it has 3 RoCEv2 192.0.2.1`},
		"lost in a running one":  {"{}", "{}", nil, false, true, nil, nil, `device "0000:03:00.2" has no RDMA device`},
		"umad of no RDMA device": {"{rdma: false}", "{deviceNodes: [umad]}", []netstate.RDMADevice{first}, false, true, nil, nil, `RDMA device "mlx5_2" has no device node umad`},
	} {
		t.Run(name, func(t *testing.T) {
			reg, top := vetted(t, "    - {name: vf, type: sriov, config: "+tt.root+"}\n    - {name: verbs, type: rdma, dependOn: [vf], config: "+tt.config+"}\n")
			at, host := "net1", netstate.HostName("v0")
			d := netstate.Device{ID: function, At: &at, Up: new(true), Driver: "mlx5_core", RDMA: tt.have, RDMAExclusive: tt.exclusive}
			req := ops.Request{Topology: top, Netns: "/run/netns/pod", Given: ops.Givens{"vf": {Device: function}}, Kept: tt.kept, Chosen: ops.Choices{}}
			req.Owned = []netstate.Change{{Step: "vf", Before: netstate.Device{ID: function, At: &host}, After: netstate.Device{ID: function, At: &at}}}
			all := []netstate.Object{
				d,
				netstate.Link{Name: at, LinkKind: "device", DeviceID: function, Up: new(true), Master: new("")},
				netstate.Addr{Link: at, Address: "192.0.2.1/24"},
				netstate.Addr{Link: at, Address: "2001:db8::1/64"},
				netstate.RDMAPort{Device: "mlx5_2", Link: at, State: new("ACTIVE"), GIDs: []netstate.RDMAGID{
					{Index: 3, GID: "192.0.2.1", Type: "RoCEv2"}, {Index: 5, GID: "2001:db8::1", Type: "RoCEv2"},
				}},
			}
			if tt.exclusive {
				moved := netstate.RDMANetns{ID: function, Netns: new(netstate.RDMAOfSandbox), Name: new("mlx5_2")}
				req.Owned = append(req.Owned, netstate.Change{Step: "vf", Before: netstate.RDMANetns{ID: function, Netns: new(netstate.RDMAOfHost), Name: new("mlx5_2")}, After: moved})
				all = append(all, moved)
			}
			if tt.kept {
				plan := drive(t, reg, req, all)
				req.Chosen = plan.Chosen
			}
			p := drive(t, reg, req, all)
			of, derived := p.Results[0].Result, p.Results[1].Result
			if tt.waits != "" {
				if len(p.Pending) == 0 || !strings.Contains(p.Pending[len(p.Pending)-1].Withheld.Error(), tt.waits) {
					t.Errorf("waits for %+v, want %q", p.Pending, tt.waits)
				}
				return
			}
			if len(p.Pending) > 0 {
				t.Errorf("waits for %+v", p.Pending)
			}
			if got := of.Devices; tt.of == nil && got != nil && got.RDMADevice != "" || tt.of != nil && !reflect.DeepEqual(got, tt.of) {
				t.Errorf("the other step gives %+v, want %+v", got, tt.of)
			}
			if !reflect.DeepEqual(derived.Devices, tt.derived) {
				t.Errorf("got %+v, want %+v", derived.Devices, tt.derived)
			}
			if last, ok := derived.Last(); !ok || last.Name != at || len(derived.Interfaces) != 1 || len(derived.IPs) > 0 {
				t.Errorf("interfaces %+v, addresses %+v", derived.Interfaces, derived.IPs)
			}
		})
	}
}

// drive plans until nothing is missing, and observes what plans ask for.
func drive(t *testing.T, reg *ops.Registry, req ops.Request, all []netstate.Object) *ops.Plan {
	t.Helper()
	node := netstate.NewSnapshot(all...)
	req.Have = netstate.NewSnapshot(slices.DeleteFunc(slices.Clone(all), func(o netstate.Object) bool { return o.Key().Kind == netstate.KindRDMAPort })...)
	for range 12 {
		p, err := reg.Plan(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Missing) == 0 {
			return p
		}
		for _, o := range p.Missing {
			got, there := node.Get(o.Key())
			switch setting, is := o.(netstate.Sysctl); {
			case there:
				if port, ok := got.(netstate.RDMAPort); ok {
					got = onlyGID(port, o.(netstate.RDMAPort).Only)
				}
				req.Have.Put(got)
			case is:
				setting.Value = new("0")
				req.Have.Put(setting)
			default:
				req.Have.PutAbsent(o.Key())
			}
		}
	}
	t.Fatal("the plan asks for more and more")
	return nil
}
