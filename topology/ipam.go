package topology

import "net/netip"

// IPAMPool is the type of ipam with which a step wants addresses of an AddressPool.
const IPAMPool = "pool"

// FromPool says from which pool a step wants its addresses; not ok for none.
func FromPool(s *Step) (pool string, iface int, ok bool) {
	ipam, _ := s.Config["ipam"].(map[string]any)
	if kind, _ := ipam["type"].(string); kind != IPAMPool {
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
	ipam, _ := s.Config["ipam"].(map[string]any)
	var out []netip.Prefix
	for _, list := range []any{s.Config["addresses"], ipam["addresses"]} {
		entries, _ := list.([]any)
		for _, e := range entries {
			if o, ok := e.(map[string]any); ok {
				e = o["address"]
			}
			text, _ := e.(string)
			if p, err := netip.ParsePrefix(text); err == nil {
				out = append(out, p)
			}
		}
	}
	return out
}
