package topology

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
)

// The types of ipam with which each pod gets other addresses.
const (
	// IPAMPool is the type for addresses of an AddressPool.
	IPAMPool = "pool"
	// IPAMHostLocal is the type for addresses that each node allocates by itself.
	IPAMHostLocal = "host-local"
)

// LocalPool is in place of the name of an AddressPool for addresses that a node allocates
// by itself. No object can have this name.
const LocalPool = "(host-local)"

// LiteralPool is in place of the name of an AddressPool for addresses that are written in
// a topology.
const LiteralPool = "(literal)"

// IPAM holds the keys of ipam for addresses that are allocated for each pod.
type IPAM struct {
	// Pool names an AddressPool, of type pool or multi-nic-ipam; Interface is the part of it
	// for one of a node's interfaces.
	Pool      string `json:"pool,omitempty"`
	Interface int    `json:"interface,omitempty"`
	// A range, and sets of ranges, of type host-local: one address of each set is given.
	IPRange
	Ranges  [][]IPRange `json:"ranges,omitempty"`
	Exclude []string    `json:"exclude,omitempty"`
	// How the pool is divided, of type multi-nic-ipam. Subnet is one of its subnets.
	HostBlock      *int     `json:"hostBlock,omitempty"`
	InterfaceBlock *int     `json:"interfaceBlock,omitempty"`
	ExcludeCIDRs   []string `json:"excludeCIDRs,omitempty"`
	// Subnets are all that the pool has, of a network of OVN: no key of ipam (FromSubnets).
	Subnets []string `json:"-"`
	// Switch is that of SwitchOf.
	Switch string `json:"-"`
}

// IPRange is a range of addresses in the spelling of the CNI plugin host-local.
type IPRange struct {
	Subnet     string `json:"subnet,omitempty"`
	RangeStart string `json:"rangeStart,omitempty"`
	RangeEnd   string `json:"rangeEnd,omitempty"`
	Gateway    string `json:"gateway,omitempty"`
}

// Network is what steps of a network of OVN have in common that take addresses of its subnets: the pool, and the subnets in any order.
func (c *IPAM) Network() string {
	return c.Pool + " " + strings.Join(slices.Sorted(slices.Values(c.Subnets)), ",")
}

// InterfaceBits is InterfaceBlock, 0 if it is missing.
func (c *IPAM) InterfaceBits() int {
	if c.InterfaceBlock == nil {
		return 0
	}
	return *c.InterfaceBlock
}

// Sets returns all sets of ranges: a range outside of ranges is a set of its own.
func (c *IPAM) Sets() [][]IPRange {
	if c.IPRange == (IPRange{}) {
		return c.Ranges
	}
	return append([][]IPRange{{c.IPRange}}, c.Ranges...)
}

// LocalIPAM returns the ipam of a step that wants addresses of its node; not ok for none.
func LocalIPAM(s *Step) (c IPAM, ok bool) { return decodeIPAM(s, IPAMHostLocal) }

// decodeIPAM returns the ipam of a step, if it is of this type.
func decodeIPAM(s *Step, typ string) (c IPAM, ok bool) {
	if ipamType(s.Config) != typ {
		return c, false
	}
	data, err := json.Marshal(s.Config["ipam"])
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	return c, err == nil // the contract has been checked
}

func ipamType(config map[string]any) string {
	ipam, _ := config["ipam"].(map[string]any)
	typ, _ := ipam["type"].(string)
	return typ
}

// OfNetwork reports whether a step has its addresses of the pool of the physical network of its device, as it names none.
func OfNetwork(s *Step) bool {
	pool, _, ok := FromPool(s)
	return ok && pool == ""
}

// EmptyPool reports whether a step of type pool has the name of its pool as an empty text, as a template writes it whose value is
// missing: that is no way to ask for the pool of a physical network.
func EmptyPool(s *Step) bool {
	ipam, _ := s.Config["ipam"].(map[string]any)
	name, named := ipam["pool"]
	return named && name == "" && ipamType(s.Config) == IPAMPool
}

// FromPool says from which pool a step wants its addresses; not ok for none. The name is empty where OfNetwork.
func FromPool(s *Step) (pool string, iface int, ok bool) {
	if of, ok := FromSubnets(s); ok {
		return of.Pool, 0, true
	}
	if _, local := LocalIPAM(s); local {
		return LocalPool, 0, true
	}
	ipam, _ := s.Config["ipam"].(map[string]any)
	if typ := ipamType(s.Config); typ != IPAMPool && typ != IPAMMultiNIC {
		return "", 0, false
	}
	pool, _ = ipam["pool"].(string)
	switch n := ipam["interface"].(type) {
	case int:
		iface = n
	case int64:
		iface = int(n)
	case uint64:
		iface = int(n)
	case float64:
		iface = int(n)
	}
	return pool, iface, true
}

// Literals returns the addresses that a step's config has as they are, without references.
func Literals(s *Step) []netip.Prefix {
	var out []netip.Prefix
	for _, e := range configList(s, "addresses") {
		if o, ok := e.(map[string]any); ok {
			e = o["address"]
		}
		text, _ := e.(string)
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// configList returns the entries of a list that a step's config has, or its ipam, or both.
func configList(s *Step, key string) []any {
	ipam, _ := s.Config["ipam"].(map[string]any)
	own, _ := s.Config[key].([]any)
	more, _ := ipam[key].([]any)
	return slices.Concat(own, more)
}

// RouteGateways returns the gateways of the routes that the steps of a topology have. None is an address of its pods.
func RouteGateways(t *Topology) (out []netip.Addr) {
	for i := range t.Steps {
		for _, r := range configList(&t.Steps[i], "routes") {
			route, _ := r.(map[string]any)
			for _, key := range []string{"gateway", "gw"} {
				text, _ := route[key].(string)
				if a, err := netip.ParseAddr(text); err == nil {
					out = append(out, a.Unmap())
				}
			}
		}
	}
	return out
}

// Exclusive returns the literal addresses of a step that one pod of the cluster has at a
// time. Those of a link alone, or of the loopback interface, each pod may have.
func Exclusive(s *Step) []netip.Addr {
	var out []netip.Addr
	if s.AllowDuplicate {
		return nil
	}
	for _, p := range Literals(s) {
		a := p.Addr().Unmap().WithZone("")
		if a.IsGlobalUnicast() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
