package ops

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

// MasqueradeConfig is the part of a step's config that says whether packets of its addresses
// leave the host with the host's.
type MasqueradeConfig struct {
	IPMasq        bool     `json:"ipMasq,omitempty"`
	IPMasqBackend string   `json:"ipMasqBackend,omitempty"`
	IPMasqExcept  []string `json:"ipMasqExcept,omitempty"`
}

// maxExcepted bounds the prefixes: the kernel keeps a pair of each of them with each address.
const maxExcepted = 64

// MasqueradeParams describes MasqueradeConfig.
func MasqueradeParams() []contract.Param {
	return []contract.Param{
		{Name: "ipMasq", Type: contract.Boolean, Description: "packets to other networks leave the host with its address"},
		{
			Name: "ipMasqExcept", Aliases: []string{"nonMasqueradeCIDRs"}, Type: contract.List,
			Items:       &contract.Param{Type: contract.String, Format: contract.Prefix},
			Description: "with ipMasq: more networks that see the pod's address, beside its own network and multicast",
		},
		{
			Name: "ipMasqBackend", Type: contract.String,
			Description: "accepted, without effect: it is nftables", Ignored: "masquerading is by nftables; remove it",
		},
	}
}

// Masquerade wants what ipMasq means for each address that a link will have.
func (p *Planner) Masquerade(link string, c MasqueradeConfig, addresses AddressConfig) error {
	switch {
	case !c.IPMasq && len(c.IPMasqExcept) > 0:
		return Invalid("ipMasqExcept", "needs ipMasq: true")
	case !c.IPMasq:
		return nil
	case len(c.IPMasqExcept) > maxExcepted:
		return Invalid("ipMasqExcept", "has %d networks, and can have %d: write larger ones", len(c.IPMasqExcept), maxExcepted)
	}
	for _, text := range c.IPMasqExcept {
		if pre, err := netip.ParsePrefix(text); err != nil || pre.Bits() == 0 {
			return Invalid("ipMasqExcept",
				"%q is every network, so that nothing would be masqueraded: name those that know the address of the pod, or remove ipMasq",
				text)
		}
	}
	all, err := p.knownAddresses(link, addresses)
	if err != nil {
		return err
	}
	except := slices.Concat(c.IPMasqExcept, []string{"224.0.0.0/4", "ff00::/8"})
	for _, a := range all {
		except = append(except, a.Address)
	}
	for _, a := range all {
		pre, err := a.Prefix()
		if err != nil {
			return err
		}
		if pre.Addr().IsLinkLocalUnicast() {
			continue // no router forwards it
		}
		if err := p.HostForwards(pre.Addr().Is4()); err != nil {
			return err
		}
		if err := p.Want(netstate.Masquerade{Source: pre.Addr().String(), Except: largest(except, pre.Addr().Is4())}); err != nil {
			return err
		}
	}
	return nil
}

// largest returns the prefixes of a family that no other one contains, sorted.
func largest(prefixes []string, v4 bool) []string {
	var all []netip.Prefix
	for _, text := range prefixes {
		pre, err := netip.ParsePrefix(text)
		if err == nil && strings.Contains(text, ":") != v4 {
			all = append(all, pre.Masked())
		}
	}
	var out []string
	for _, pre := range all {
		inside := slices.ContainsFunc(all, func(o netip.Prefix) bool { return o.Bits() < pre.Bits() && o.Contains(pre.Addr()) })
		if !inside && !slices.Contains(out, pre.String()) {
			out = append(out, pre.String())
		}
	}
	return netstate.SortedPrefixes(out)
}
