package hostroutes

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology"
)

// Need is a network of the host over which pods of this node reach those of others.
type Need struct {
	Pool      string
	Interface int          // of the pool
	Network   netip.Prefix // of the host's address
}

// Needs returns those of the steps of a topology, in order.
func Needs(t *topology.Topology) []Need {
	var out []Need
	for i := range t.Steps {
		s := &t.Steps[i]
		mode, _ := s.Config["mode"].(string)
		if s.Type != "ipvlan" || !strings.EqualFold(mode, "l3") && !strings.EqualFold(mode, "l3s") {
			continue
		}
		text, _ := s.Config["masterNet"].(string)
		network, err := netip.ParsePrefix(text)
		pool, iface, ok := topology.FromPool(s)
		if err != nil || !ok || pool == topology.LocalPool {
			continue
		}
		out = append(out, Need{pool, iface, network.Masked()})
	}
	return unique(out)
}

func unique(needs []Need) []Need {
	slices.SortFunc(needs, func(a, b Need) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Interface, b.Interface), a.Network.Addr().Compare(b.Network.Addr()), cmp.Compare(a.Network.Bits(), b.Network.Bits()))
	})
	return slices.Compact(needs)
}
