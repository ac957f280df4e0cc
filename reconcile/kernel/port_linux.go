package kernel

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology/fault"
)

// Ports reads the state of a sandbox's ports, one message for each. The namespace at the
// path must still be the one of the record. A port whose link is gone, or whose index is
// that of another link now, is not found. Their RDMA ports are not read, see RDMAPorts.
func (h *Host) Ports(ctx context.Context, path string, id reconcile.NetnsID, of []ports.Port) ([]ports.State, error) {
	s, err := h.sandboxOf(path, id)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	out := make([]ports.State, len(of))
	for i, p := range of {
		if out[i], err = s.inside.port(ctx, p); err != nil {
			return nil, fmt.Errorf("link %q: %w", p.Name, err)
		}
	}
	return out, nil
}

// sandboxOf opens the namespace at a path if it is still that of a record.
func (h *Host) sandboxOf(path string, id reconcile.NetnsID) (*Sandbox, error) {
	s, err := h.Sandbox(path)
	if err != nil {
		return nil, err
	}
	if id != (reconcile.NetnsID{}) && s.NetnsID() != id {
		s.Close()
		return nil, fault.New(fault.Gone, fmt.Errorf("network namespace %q is gone, and %w", path, reconcile.ErrReplaced))
	}
	return s, nil
}

func (c *conn) port(ctx context.Context, p ports.Port) (ports.State, error) {
	w, err := c.link(ctx, p.Index, 0) // with its counters
	if errors.Is(err, unix.ENODEV) {
		return ports.State{}, nil
	}
	if err != nil {
		return ports.State{}, err
	}
	if w.link.LinkKind != p.Kind || parentOf(w) != p.Parent {
		return ports.State{}, nil
	}
	rest := w.raw[unix.SizeofIfInfomsg:]
	out := ports.State{
		Found: true, Up: *w.link.Up, Carrier: w.link.Carrier, CarrierChanges: u32(attribute(rest, unix.IFLA_CARRIER_CHANGES)),
		Counters: decodeCounters(attribute(rest, unix.IFLA_STATS64)),
	}
	if w.port == "bond" {
		out.Bond = decodeBondPort(attribute(rest, unix.IFLA_LINKINFO))
	}
	return out, nil
}

// decodeCounters reads struct rtnl_link_stats64, whose fields are all of 64 bits.
func decodeCounters(b []byte) ports.Counters {
	field := func(i int) uint64 { return u64(b[min(8*i, len(b)):]) }
	return ports.Counters{
		ReceivedPackets: field(0), SentPackets: field(1), ReceivedBytes: field(2), SentBytes: field(3),
		ReceiveErrors: field(4), SendErrors: field(5), ReceiveDropped: field(6), SendDropped: field(7),
	}
}

// The bits of a port's state in LACP (IEEE 802.1AX, 6.4.2.3; the kernel's LACP_STATE_*). An
// actor that has received nothing from a partner is defaulted: such a port may carry
// traffic by itself, but not together with others.
const (
	lacpCollecting   = 1 << 4
	lacpDistributing = 1 << 5
	lacpDefaulted    = 1 << 6
	lacpExpired      = 1 << 7
	lacpAgreed       = lacpCollecting | lacpDistributing
)

// decodeBondPort reads the bond's attributes of a port (bond_netlink.c, bond_fill_slave_info).
// The state in LACP is there in mode 802.3ad only.
func decodeBondPort(info []byte) *ports.BondPort {
	out := &ports.BondPort{}
	for typ, v := range attributes(attribute(info, unix.IFLA_INFO_SLAVE_DATA)) {
		switch typ {
		case unix.IFLA_BOND_SLAVE_MII_STATUS:
			out.MII = u8(v) == 0
		case unix.IFLA_BOND_SLAVE_AD_ACTOR_OPER_PORT_STATE:
			state := u8(v)
			out.LACP = true
			out.Partner = state&lacpAgreed == lacpAgreed && state&(lacpDefaulted|lacpExpired) == 0
		}
	}
	return out
}
