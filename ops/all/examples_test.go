package all_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// examples are of docs/examples.
const examples = "../../docs/examples"

// TestPairs holds that the topologies of any two examples can be in one pod and in two pods of a node, or that one sentence says
// why not. Where two make an interface of one name, the second is
// renamed as the message says, so that what they have in common beside the name is compared, too.
func TestPairs(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	folders, err := filepath.Glob(examples + "/*/topology.yaml")
	if err != nil || len(folders) < 15 {
		t.Fatalf("%d examples, %v", len(folders), err)
	}
	var pairs [][2]string
	for _, first := range folders {
		for _, second := range folders {
			pairs = append(pairs, [2]string{filepath.Dir(first), filepath.Dir(second)})
		}
	}
	announced := announced(t)
	for _, of := range effort.Sample(t, 7, pairs) {
		t.Run(filepath.Base(of[0])+"/"+filepath.Base(of[1]), func(t *testing.T) {
			p := pair{registry: registry, t: t}
			said := p.inOnePod(of[0], of[1])
			if want := refusal(t, of[0], of[1]); (said == "") != (want == "") || !strings.Contains(said, want) {
				t.Errorf("in one pod: %q, want %q", said, want)
			}
			if said != "" && !announced.MatchString(said) {
				t.Errorf("integration/examples/run does not accept %q", said)
			}
			p.onOneNode(of[0], of[1])
		})
	}
}

// announced matches what integration/examples/run accepts as a reason against a pair.
func announced(t *testing.T) *regexp.Regexp {
	t.Helper()
	content, err := os.ReadFile("../../integration/examples/run")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`\nrefusals='(.*)'\n`).FindStringSubmatch(string(content))
	if m == nil {
		t.Fatal("integration/examples/run has no refusals")
	}
	return regexp.MustCompile(m[1])
}

// refusal is a part of the sentence that refuses the second of two examples in a pod, "" if both work.
func refusal(t *testing.T, one, two string) string {
	t.Helper()
	uses := func(folder, typ string) bool {
		content, err := os.ReadFile(folder + "/topology.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(content), "type: "+typ+"\n") && (typ == "vfio-pci" || strings.Contains(string(content), `ifName == "enp3s0f0"`))
	}
	switch both := filepath.Base(one) + " " + filepath.Base(two); {
	case strings.Contains(both, "addresses-of-the-node") && strings.Contains(both, "ipvlan-on-two-rails"):
		return "use one mode per master"
	case one == two && !uses(one, "vfio-pci"): // which makes no interface
		return "is in the same pod twice"
	case uses(one, "macvlan") && uses(two, "ipvlan"):
		return "a link carries ipvlan or macvlan, not both: use type macvlan here, too, or another device"
	case uses(one, "ipvlan") && uses(two, "macvlan"):
		return "a link carries ipvlan or macvlan, not both: use type ipvlan here, too, or another device"
	}
	return ""
}

type pair struct {
	registry *ops.Registry
	t        *testing.T
	used     map[string]int // functions of a card
}

// load returns the case of an example whose devices are the next that are free.
func (p *pair) load(folder string, rename func(*topology.Topology)) (*optest.Case, error) {
	content, err := os.ReadFile(folder + "/topology.yaml")
	if err != nil {
		return nil, err
	}
	topo, err := topology.Decode(content)
	if err != nil {
		return nil, err
	}
	rename(topo)
	if err := topology.Validate(p.t.Context(), topo, p.registry); err != nil {
		return nil, err
	}
	for i := range topo.Steps {
		delete(topo.Steps[i].Config, "require") // the model has no GIDs of hardware
	}
	given, err := addressesOf(folder, topo)
	if err != nil {
		return nil, err
	}
	if topo.Role != "" {
		given[topo.Roots()[0].Name] = ops.Given{Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.7/24")}}
		topo = topo.ForPod(p.registry, validity.ExamplePodCIDRs, topology.PodInterface)
	}
	for _, s := range topo.Roots() {
		if s.Selector == "" {
			continue
		}
		g := given[s.Name]
		g.Device = p.device(s.Selector)
		given[s.Name] = g
	}
	return &optest.Case{Name: topo.Name, Topology: topo, Given: given, Have: examplesNode(), Sandbox: "pod"}, nil
}

// addressesOf gives the steps an address of each pool of the example.
func addressesOf(folder string, topo *topology.Topology) (ops.Givens, error) {
	given := ops.Givens{}
	pools := map[string]*addresspool.Layout{}
	if content, err := os.ReadFile(folder + "/cluster.yaml"); err == nil {
		f, err := topology.Parse("", content)
		if err != nil {
			return nil, err
		}
		objects, err := objectfile.Decode[v1alpha1.AddressPool](f, v1alpha1.GroupVersion.WithKind(v1alpha1.AddressPoolKind))
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if pools[o.Name], err = addresspool.Of(o); err != nil {
				return nil, err
			}
		}
	}
	for _, of := range topo.NetworkPools() {
		layout, err := addresspool.Of(addresspool.OfSubnets(of.IPAM))
		if err != nil {
			return nil, err
		}
		pools[of.Pool] = layout
	}
	var h addresspool.Holdings
	for i := range topo.Steps {
		step := &topo.Steps[i]
		pool, iface, ok := topology.FromPool(step)
		if !ok {
			continue
		}
		got, err := h.Example(pools[pool], addresspool.Owner{Topology: topo.Name, Step: step.Name}, iface)
		if err != nil {
			return nil, err
		}
		given[step.Name] = ops.Allocated(pools[pool], got)
	}
	return given, nil
}

var attribute = regexp.MustCompile(`(pfName|ifName) == "([^"]*)"`)

// device is one that a selector of an example matches.
func (p *pair) device(selector string) string {
	card := "enp3s0f0"
	if m := attribute.FindStringSubmatch(selector); m != nil {
		if m[1] == "ifName" {
			return "if:" + m[2]
		}
		card = m[2]
	}
	if p.used == nil {
		p.used = map[string]int{}
	}
	p.used[card]++
	return pciOf(card, p.used[card]-1)
}

func pciOf(card string, function int) string {
	return fmt.Sprintf("0000:0%s:10.%x", card[len(card)-1:], function)
}

// examplesNode has the objects of the test machine's node, and of a pod that has a network.
func examplesNode() []netstate.Object {
	have := []netstate.Object{
		netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new(""), MAC: new("00:00:00:00:00:00")},
		netstate.Sysctl{Path: "net/core/somaxconn", Value: new("4096")},
		netstate.Sysctl{Path: "net/ipv4/tcp_keepalive_time", Value: new("7200")},
		netstate.Sysctl{Path: "host:net/ipv4/ip_forward", Value: new("1")},
		netstate.Sysctl{Path: "host:net/ipv6/conf/all/forwarding", Value: new("1")},
		netstate.Chassis{ID: "local", Name: new("node-1"), Int: new("br-int"), Networks: []string{"physnet1"}},
	}
	for n, name := range []string{"enp3s0f0", "enp3s0f1", "eth0", "eth1", "enp3s0f0.100"} {
		have = append(have, onHost("if:"+name, netstate.Link{LinkKind: "device", MTU: new(uint32(9216)), MAC: new(fmt.Sprintf("52:54:00:00:00:%02x", n))})...)
		if n > 1 {
			continue // no functions
		}
		for i := range 20 {
			id, function, mac := pciOf(name, i), fmt.Sprintf("host:%sv%d", name, i), fmt.Sprintf("52:54:00:00:%02x:%02x", n+1, i)
			have = append(have,
				netstate.Device{
					ID: id, At: &function, MAC: &mac, MTU: new(uint32(1500)), Up: new(false), AltNames: []string{}, Driver: "igbvf",
					RDMA: []netstate.RDMADevice{{Name: fmt.Sprintf("rdma%d", i), Nodes: []string{fmt.Sprintf("/dev/infiniband/uverbs%d", i), "/dev/infiniband/rdma_cm"}}},
				},
				netstate.Link{Name: function, LinkKind: "device", DeviceID: id, MAC: &mac, MTU: new(uint32(1500)), Up: new(false), Master: new(""), TxQueueLen: new(uint32(1000))},
				netstate.VF{ID: id, MAC: &mac, VLAN: new(uint16(0)), QoS: new(uint8(0)), Protocol: new("802.1q"), SpoofCheck: new(true), Trust: new(false)},
				netstate.Binding{ID: id, Driver: new("igbvf"), Override: new(""), PF: "0000:01:00." + name[len(name)-1:], Group: fmt.Sprint(n*20 + i)},
			)
		}
	}
	return append(have, onHost("if:br-lab", netstate.Link{LinkKind: "bridge", MTU: new(uint32(1500)), MAC: new("52:54:00:00:00:ff"), Bridge: &netstate.Bridge{VLANFiltering: new(false)}})...)
}

// tunable adds to what both have the features of devices that one of them sets. Functions for user space have none.
func tunable(cases ...*optest.Case) {
	var features []netstate.Object
	for _, c := range cases {
		for _, s := range c.Topology.Steps {
			if s.Config["ethtool"] != nil {
				for _, g := range c.Given {
					for _, o := range c.Have {
						if l, ok := o.(netstate.Link); ok && l.DeviceID != "" && l.DeviceID == g.Device {
							features = append(features, netstate.Ethtool{Link: l.Name, Class: "feature", Name: "rx-gro", Value: new("on")})
						}
					}
				}
			}
		}
	}
	for _, c := range cases {
		c.Have = append(c.Have, features...)
	}
}

// onHost returns a device of the host and its interface.
func onHost(id string, l netstate.Link) []netstate.Object {
	l.Name, l.DeviceID, l.Up, l.Master = netstate.HostName(strings.TrimPrefix(id, "if:")), id, new(true), new("")
	return []netstate.Object{l, netstate.Device{ID: id, At: &l.Name, MAC: l.MAC, MTU: l.MTU, Up: l.Up}}
}

var taken = regexp.MustCompile(`^NetworkTopology "[^"]*", step "([^"]*)": makes an interface "([^"]*)"`)

// inOnePod returns why the second cannot be in the pod of the first.
func (p *pair) inOnePod(one, two string) string {
	p.t.Helper()
	p.used = nil
	first, err := p.load(one, func(*topology.Topology) {})
	if err != nil {
		p.t.Fatal(err)
	}
	before := maps.Clone(p.used)
	names := map[string]string{}
	for range 12 {
		p.used = maps.Clone(before)
		second, err := p.load(two, func(t *topology.Topology) {
			for i, s := range t.Steps {
				if name := names[s.Name]; name != "" {
					if s.Type != "ovn-k8s-cni-overlay" { // where that is the network
						delete(t.Steps[i].Config, "name")
					}
					if t.Steps[i].Config == nil {
						t.Steps[i].Config = map[string]any{}
					}
					t.Steps[i].Config["ifName"] = name
				}
			}
		})
		if err == nil {
			_, err = validity.Together(p.t.Context(), p.registry, []validity.Member{{Topology: first.Topology}}, []validity.Member{{Topology: second.Topology}})
		}
		if err != nil {
			if m := taken.FindStringSubmatch(err.Error()); m != nil && names[m[1]] == "" && one != two {
				names[m[1]] = "b" + m[2]
				continue
			}
			return p.sentence(err)
		}
		tunable(first, second)
		return p.sentence(optest.Beside(p.t.Context(), p.t, p.registry, first, second))
	}
	p.t.Errorf("renaming interfaces as the messages say does not end: %v", names)
	return ""
}

// onOneNode holds the laws for pods of both on one node, where each works.
func (p *pair) onOneNode(one, two string) {
	p.t.Helper()
	p.used = nil
	first, err := p.load(one, func(*topology.Topology) {})
	if err != nil {
		p.t.Fatal(err)
	}
	second, err := p.load(two, func(*topology.Topology) {})
	if err != nil {
		p.t.Fatal(err)
	}
	there := p.stacked(first)
	for device, links := range p.stacked(second) {
		if other := there[device]; other != "" && other != links {
			return // refused when the claim is prepared, which reconcile/pod/draplugin tests
		}
	}
	second.Sandbox = "pod2"
	tunable(first, second)
	if err := optest.OnOneNode(p.t.Context(), p.t, p.registry, first, second); err != nil {
		p.t.Errorf("on one node: %v", err)
	}
}

// stacked are the links on devices that stay on the host, as what the kernel allows together.
func (p *pair) stacked(c *optest.Case) map[string]string {
	out := map[string]string{}
	for _, s := range c.Topology.Roots() {
		if known, _ := p.registry.Contract(s.Type); known.Stacks != nil {
			config, _ := known.Decode(s.Config, contract.Options{Unresolved: true})
			out[c.Given[s.Name].Device] = known.Stacks(config)
		}
	}
	return out
}

// sentence is that of a refusal, which has to be one, of a step.
func (p *pair) sentence(err error) string {
	p.t.Helper()
	if err == nil {
		return ""
	}
	if strings.Contains(err.Error(), "\n") || !errors.As(err, new(*ops.StepError)) && !strings.HasPrefix(err.Error(), "NetworkTopology ") {
		p.t.Errorf("not one sentence about a step: %v", err)
	}
	return err.Error()
}
