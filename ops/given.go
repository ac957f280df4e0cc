package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/suggest"
)

// Given holds what was decided for a step outside the plan: by a scheduler, by an
// allocator or by a user. Like the topology it is an input of the plan, so every record
// from which a plan is made contains it.
type Given struct {
	// Device is the identity of a root step's device (netstate.Device.ID).
	Device string `json:"device,omitempty"`
	// Share is the ShareID of an allocation that gives a part of the device.
	Share string `json:"share,omitempty"`
	// Addresses are added after those of the step's config, so that references to the
	// latter keep their meaning.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Gateways are those of these addresses, each of the first one that reaches it.
	Gateways []netip.Addr `json:"gateways,omitempty"`
	// Routes come behind those of the step's config, which take precedence.
	Routes []Route `json:"routes,omitempty"`
	// Pool is the AddressPool that they are of, "" where that is not known.
	Pool string `json:"pool,omitempty"`
	// VLAN is the VLAN of the physical network that a virtual function is wired to; 0 is
	// none. The step's config takes precedence.
	VLAN uint16 `json:"vlan,omitempty"`
	// Port is the port of the pod on a network of ovn-kubernetes, nil if the step makes its own.
	Port *Port `json:"port,omitempty"`
	// MaxTxRate limits what a virtual function sends, in Mbit/s; 0: no limit. The claim
	// has so much of the bandwidth of its PF. The step's config may say less.
	MaxTxRate uint32 `json:"maxTxRate,omitempty"`
}

// Port is a logical switch port that ovn-kubernetes has made for a pod. It owns the port, and
// the step only adds an interface that is bound to it. The addresses of the port are given
// beside it.
type Port struct {
	// Name is that of the logical switch port, in the Northbound database and in the
	// external_ids:iface-id of the interface.
	Name string `json:"name"`
	// Holder is the external_ids:iface-id-ver of the interface: the UID of the pod.
	Holder string `json:"holder"`
	MAC    string `json:"mac"`
	// Addressed says that the port has addresses, and OVN drops packets from others.
	Addressed bool `json:"addressed,omitempty"`
	// Attachment is the NetworkAttachmentDefinition of the network, as NAMESPACE/NAME.
	Attachment string `json:"attachment"`
	// Network is the name of the network, which several NetworkAttachmentDefinitions may have.
	Network string `json:"network,omitempty"`
	// Topology of the network: "layer2" or "localnet".
	Topology string `json:"topology"`
	// PhysicalNetwork and VLAN are those of a localnet network. 0 is no VLAN.
	PhysicalNetwork string `json:"physicalNetwork,omitempty"`
	VLAN            uint16 `json:"vlan,omitempty"`
}

// Givens holds what is given to the steps of one topology, by step.
type Givens map[string]Given

// WithDevices adds devices to what is given.
func (g Givens) WithDevices(devices map[string]string) Givens {
	if len(devices) == 0 {
		return g
	}
	out := make(Givens, len(g)+len(devices))
	maps.Copy(out, g)
	for step, id := range devices {
		given := out[step]
		given.Device = id
		out[step] = given
	}
	return out
}

// WithoutDevices returns what is given except devices; steps to which nothing else is
// given are left out.
func (g Givens) WithoutDevices() Givens {
	var out Givens
	for step, given := range g {
		if given.Share == "" && len(given.Addresses) == 0 && given.VLAN == 0 && given.MaxTxRate == 0 && given.Port == nil {
			continue
		}
		if out == nil {
			out = Givens{}
		}
		given.Device = ""
		out[step] = given
	}
	return out
}

// ForSteps returns what is given to those steps that a topology has.
func (g Givens) ForSteps(t *topology.Topology) Givens {
	out := Givens{}
	for step, given := range g {
		if _, ok := t.Step(step); ok {
			out[step] = given
		}
	}
	return out
}

// Allocated returns addresses of a pool with its gateways and routes.
func Allocated(l *addresspool.Layout, addresses []netip.Prefix) Given {
	out := Given{Addresses: addresses, Gateways: l.Gateways(addresses), Pool: l.Name}
	for _, r := range l.Routes(addresses) {
		route := Route{Destination: r.Destination.String()}
		if r.Gateway.IsValid() {
			route.Gateway = r.Gateway.String()
		}
		out.Routes = append(out.Routes, route)
	}
	return out
}

// Network returns what is given of the pod's network: its port, addresses, and what belongs to them.
func (g Given) Network() Given {
	return Given{}.WithNetwork(g)
}

// WithNetwork returns what is given, with the pod's network of another.
func (g Given) WithNetwork(of Given) Given {
	g.Port, g.Addresses, g.Gateways, g.Routes, g.Pool = of.Port, of.Addresses, of.Gateways, of.Routes, of.Pool
	return g
}

// PoolOf returns the pool whose addresses a step is given, and the part of it; not ok for none. Those of a port of ovn-kubernetes are of
// none, although the step has subnets.
func (g Given) PoolOf(s *topology.Step) (pool string, iface int, ok bool) {
	if _, subnets := topology.FromSubnets(s); subnets && g.Port != nil {
		return "", 0, false
	}
	pool, iface, ok = topology.FromPool(s)
	if ok && pool == "" {
		pool = g.Pool // of the physical network
	}
	return pool, iface, ok
}

// Networks returns what is given of the pod's network, by step.
func (g Givens) Networks() Givens {
	out := Givens{}
	for step, given := range g {
		if len(given.Addresses) > 0 || given.Port != nil {
			out[step] = given.Network()
		}
	}
	return out
}

// Plugged reports whether a port is given to a step. An agent that does not know that would
// make a port of its own.
func (g Givens) Plugged() bool {
	for _, given := range g {
		if given.Port != nil {
			return true
		}
	}
	return false
}

// Addressed reports whether addresses, a VLAN or a rate are given to a step. An agent that
// does not know these would report them as drift.
func (g Givens) Addressed() bool {
	for _, given := range g {
		if len(given.Addresses) > 0 || given.VLAN != 0 || given.MaxTxRate != 0 {
			return true
		}
	}
	return false
}

// Addresses returns the addresses, by step.
func (g Givens) Addresses() map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	for step, given := range g {
		if len(given.Addresses) > 0 {
			out[step] = given.Addresses
		}
	}
	return out
}

// Devices returns the devices, by step.
func (g Givens) Devices() map[string]string {
	out := map[string]string{}
	for step, given := range g {
		if given.Device != "" {
			out[step] = given.Device
		}
	}
	return out
}

// Giving is a contract set whose Vet plans a topology with what is given to its steps. A
// set that plans nothing is returned as it is.
func Giving(set contract.Set, given Givens) contract.Set {
	if r, ok := set.(*Registry); ok && len(given) > 0 {
		return giving{r, given}
	}
	return set
}

type giving struct {
	*Registry
	given Givens
}

// Vet implements topology.Vetter.
func (g giving) Vet(ctx context.Context, t *topology.Topology) ([]string, error) {
	return g.vetGiven(ctx, t, g.given)
}

// maxGivenAddresses bounds how many addresses a step is given: a list that was made
// by mistake, such as all addresses of a network, is refused before anything is planned.
const maxGivenAddresses = 64

// errGiven marks an error as caused by what is given, not by the config.
func errGiven(err error) error { return fmt.Errorf("given addresses: %w", err) }

func givenInvalid(format string, args ...any) error { return errGiven(Invalid("", format, args...)) }

// checkRecipients refuses addresses for a step that does not exist.
func (r *Request) checkRecipients() error {
	for _, name := range slices.Sorted(maps.Keys(r.Given)) {
		if _, ok := r.Topology.Step(name); ok || len(r.Given[name].Addresses) == 0 {
			continue
		}
		var names []string
		for i := range r.Topology.Steps {
			names = append(names, r.Topology.Steps[i].Name)
		}
		return r.stepError(name, givenInvalid("the topology has no such step%s", suggest.Hint(name, names)))
	}
	return nil
}

// check refuses addresses that the step cannot have, whatever its config.
func (g Given) check(c contract.Contract) error {
	switch {
	case len(g.Addresses) == 0:
		return nil
	case !takesAddresses(c):
		return givenInvalid("a step of type %q takes none: give them to a step that does, such as one of type tuning behind it", c.Type)
	case len(g.Addresses) > maxGivenAddresses:
		return givenInvalid("%d are more than the %d that a step can be given", len(g.Addresses), maxGivenAddresses)
	}
	for _, a := range g.Addresses {
		if _, err := contract.CIDR.Canonical(a.String()); err != nil {
			return errGiven(fault.New(fault.Invalid, err))
		}
	}
	return nil
}

func takesAddresses(c contract.Contract) bool {
	return slices.ContainsFunc(c.Params, func(p contract.Param) bool { return p.Name == "addresses" })
}

// addressesBeside returns the addresses that the step is given for a link, beside those
// of its config. It refuses an address that the link has already: with another prefix
// length the kernel would keep both, and another pod may have been given it too.
func (g Given) addressesBeside(link string, config []Address, all wants) ([]Address, error) {
	var out []Address
	var taken []netip.Addr
	for _, given := range g.Addresses {
		for _, c := range config {
			if own, err := netip.ParsePrefix(c.Address); err == nil && own.Addr() == given.Addr() {
				return nil, givenInvalid("%q is in the step's config already, as %q: remove one of them", given, own)
			}
		}
		if slices.Contains(taken, given.Addr()) {
			return nil, givenInvalid("%q is given twice", given)
		}
		for _, w := range all {
			if have, ok := w.obj.(netstate.Addr); ok && have.Link == link && strings.HasPrefix(have.Address, given.Addr().String()+"/") {
				return nil, givenInvalid("%q is an address of %q already, as step %q wants %q: remove one of them", given, link, w.step,
					have.Address)
			}
		}
		taken = append(taken, given.Addr())
		out = append(out, Address{Address: given.String()})
	}
	for _, gateway := range g.Gateways {
		for i := range out {
			if addresspool.Reaches(netip.MustParsePrefix(out[i].Address), gateway) {
				out[i].Gateway = cmp.Or(out[i].Gateway, gateway.String())
				break
			}
		}
	}
	return out, nil
}

// routesBeside returns the routes that the step is given, but for those whose destination
// the config routes otherwise.
func (g Given) routesBeside(config []Route) []Route {
	return slices.DeleteFunc(slices.Clone(g.Routes), func(given Route) bool {
		return slices.ContainsFunc(config, func(r Route) bool {
			return r.Table == nil && r.Destination == given.Destination
		})
	})
}

// destination is the prefix that a route of a link with these addresses is to. "default" is of the family of the gateway;
// without one it is IPv6 if all addresses are.
func destination(r Route, addresses []Address) string {
	if r.Destination != "default" {
		return r.Destination
	}
	isV6 := func(a Address) bool { return strings.Contains(a.Address, ":") }
	v4 := slices.ContainsFunc(addresses, func(a Address) bool { return !isV6(a) })
	if strings.Contains(r.Gateway, ":") || r.Gateway == "" && !v4 && slices.ContainsFunc(addresses, isV6) {
		return "::/0"
	}
	return "0.0.0.0/0"
}

// allTaken refuses given addresses that a step has not used, such as those for a VF that
// is bound to a user-space driver.
func (s *stepState) allTaken(given Given) error {
	if s.addressed || len(given.Addresses) == 0 {
		return nil
	}
	return fault.New(fault.Invalid, errGiven(errors.New("it has no interface here that could have them")))
}
