package hostroutes

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
)

// Need is an interface of the host over which pods of this node reach those of others.
type Need struct {
	Pool      string
	Interface int // of the pool
	// Network is that of the host's address, not valid where the interface is Master: a link
	// with netstate.HostPrefix, or the ID of a device.
	Network netip.Prefix
	Master  string
}

// needsOf returns the needs of a topology, with the devices that a claim has for its steps, and the pools that were chosen by these.
func needsOf(t *topology.Topology, c *claims.Topology) []Need {
	var out []Need
	for i := range t.Steps {
		s := &t.Steps[i]
		mode, _ := s.Config["mode"].(string)
		if s.Type != "ipvlan" || !strings.EqualFold(mode, "l3") && !strings.EqualFold(mode, "l3s") {
			continue
		}
		pool, iface, ok := topology.FromPool(s)
		if !ok || pool == topology.LocalPool {
			continue
		}
		n := Need{Pool: cmp.Or(pool, c.Given[s.Name].Pool), Interface: iface}
		if n.Pool == "" {
			continue // the step has no address
		}
		if text, has := s.Config["masterNet"].(string); has {
			network, err := netip.ParsePrefix(text)
			if err != nil {
				continue
			}
			n.Network = network.Masked()
			out = append(out, n)
			continue
		}
		inside := !s.Root()
		if in, has := s.Config["linkInContainer"].(bool); has {
			inside = in
		}
		if inside { // other hosts do not reach what is in the pod
			continue
		}
		if master, _ := s.Config["master"].(string); master != "" {
			n.Master = netstate.HostName(master)
		} else if i := slices.IndexFunc(c.Devices, func(d claims.Device) bool { return d.Step == s.Name }); i >= 0 {
			n.Master = c.Devices[i].Host.ID
		} else {
			n.Master = netstate.DefaultRouteDevice
		}
		out = append(out, n)
	}
	return out
}

func unique(needs []Need) []Need {
	slices.SortFunc(needs, func(a, b Need) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Interface, b.Interface), a.Network.Compare(b.Network),
			cmp.Compare(a.Master, b.Master))
	})
	return slices.Compact(needs)
}
