package tc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
)

// Read reads the filters of one interface from objects of a sandbox, so that Decide can say what they do with a packet. A filter's Rule
// is its index in the objects.
func Read(objects []netstate.Filter) (*Filters, error) {
	out := &Filters{}
	for i := range objects {
		o := &objects[i]
		f := Filter{
			Chain: o.Chain, Pref: o.Pref, Handle: o.Handle, Family: ptr.Deref(o.Family, ""), Rule: i, Port: ptr.Deref(o.Port, 0),
			// Records of earlier versions have neither of these.
			Fragment: ptr.Deref(o.Fragment, false), Goto: ptr.Deref(o.Goto, 0),
			DSCP: ptr.Deref(o.DSCP, 0), Policer: ptr.Deref(o.Policer, 0),
		}
		if o.Family == nil || o.To == nil || o.Protocol == nil || o.Port == nil {
			return nil, fmt.Errorf("%s has no match", o.Key())
		}
		if *o.To != "" {
			var err error
			if f.To, err = netip.ParsePrefix(*o.To); err != nil {
				return nil, fmt.Errorf("%s: %w", o.Key(), err)
			}
		}
		for protocol, name := range protocols {
			if name == *o.Protocol {
				f.Protocol = protocol
			}
		}
		out.Filters = append(out.Filters, f)
	}
	slices.SortFunc(out.Filters, func(a, b Filter) int {
		return cmp.Or(cmp.Compare(a.Chain, b.Chain), cmp.Compare(a.Pref, b.Pref), cmp.Compare(a.Handle, b.Handle))
	})
	return out, nil
}

// ParsePacket reads a packet as "ADDRESS:PORT/PROTOCOL", with brackets around an IPv6 address and a protocol of tcp, udp and sctp, or
// as "ADDRESS" of another protocol.
func ParsePacket(text string) (qos.Packet, error) {
	invalid := func() (qos.Packet, error) {
		return qos.Packet{},
			fmt.Errorf("%q is neither ADDRESS nor ADDRESS:PORT/PROTOCOL, such as 10.0.0.5:443/tcp or [2001:db8::5]:53/udp", text)
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return qos.Packet{Destination: a.Unmap()}, nil
	}
	for protocol, name := range protocols {
		if name == "" || len(text) <= len(name) || text[len(text)-len(name)-1:] != "/"+name {
			continue
		}
		to, err := netip.ParseAddrPort(text[:len(text)-len(name)-1])
		if err != nil || to.Port() == 0 || to.Addr().Zone() != "" {
			return invalid()
		}
		return qos.Packet{Destination: to.Addr().Unmap(), Protocol: protocol, Port: to.Port()}, nil
	}
	return invalid()
}
