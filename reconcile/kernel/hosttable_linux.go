package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// maxTableRoutes bounds the routes that are read of a table of ours, of each family.
const maxTableRoutes = 256 << 10

// maxTableErrors bounds the errors that are reported of one series of changes: another node may
// have published any number of next hops that the kernel refuses.
const maxTableErrors = 8

// OnNetwork returns the interface of the host that has an address in a network, and the first
// such address; ok is false if there is none. Two interfaces are an error of kind Conflict.
func (h *Host) OnNetwork(ctx context.Context, network netip.Prefix) (link string, a netip.Addr, ok bool, err error) {
	v := h.WithoutSandbox()
	all, err := v.outside.addresses(ctx, 0)
	if err != nil {
		return "", a, false, fmt.Errorf("read the host's addresses: %w", err)
	}
	o := v.observer(netstate.NewSnapshot())
	for _, have := range all {
		if have.prefix.Masked() != network {
			continue
		}
		name, err := o.nameOf(ctx, v.outside, have.index)
		switch {
		case err != nil:
			return "", a, false, fmt.Errorf("read the host's links: %w", err)
		case name == "" || name == link: // deleted since, or a second address
		case link != "":
			return "", a, false, fault.New(fault.Conflict,
				fmt.Errorf("the interfaces %q and %q of the host have an address in %q: remove the address from one of them",
					netstate.BaseName(link), netstate.BaseName(name), network))
		default:
			link, a, ok = name, have.prefix.Addr(), true
		}
	}
	return link, a, ok, nil
}

// Master returns the link of the host that a step stacks on, by its name with
// netstate.HostPrefix or the ID of its device, and its addresses at which other hosts reach
// this one; "" if there is no such link on the host.
func (h *Host) Master(ctx context.Context, id string) (link string, addresses []netip.Prefix, err error) {
	v := h.WithoutSandbox()
	link = id
	if !netstate.OnHost(id) {
		o := v.observer(netstate.NewSnapshot())
		d := netstate.Device{ID: id}
		if err := o.queryDevice(ctx, d); err != nil {
			return "", nil, fmt.Errorf("device %q: %w", id, err)
		}
		found, _ := o.snap.Get(d.Key())
		d, ok := found.(netstate.Device)
		if !ok || d.At == nil || !netstate.OnHost(*d.At) {
			return "", nil, nil // it is in a pod, or gone
		}
		link = *d.At
	}
	index, err := v.index(ctx, link)
	if errors.Is(err, unix.ENODEV) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, fmt.Errorf("read the host's links: %w", err)
	}
	all, err := v.outside.addresses(ctx, index)
	if err != nil {
		return "", nil, fmt.Errorf("read the host's addresses: %w", err)
	}
	// Those that others do not reach, or not for long (RFC 8981).
	const unfit = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY
	for _, a := range all {
		temporary := a.prefix.Addr().Is6() && a.flags&unfit != 0 // of IPv4 the bit says that it is a second one
		if ip := a.prefix.Addr(); !temporary && ip.IsGlobalUnicast() && !a.prefix.IsSingleIP() {
			addresses = append(addresses, a.prefix)
		}
	}
	return link, addresses, nil
}

// Addresses returns the addresses of all interfaces of the host.
func (h *Host) Addresses(ctx context.Context) ([]netstate.Addr, error) {
	v := h.WithoutSandbox()
	all, err := v.outside.addresses(ctx, 0)
	if err != nil {
		return nil, fmt.Errorf("read the host's addresses: %w", err)
	}
	o := v.observer(netstate.NewSnapshot())
	out := make([]netstate.Addr, 0, len(all))
	for _, a := range all {
		name, err := o.nameOf(ctx, v.outside, a.index)
		if err != nil {
			return nil, fmt.Errorf("read the host's links: %w", err)
		}
		if name != "" { // else deleted since
			out = append(out, netstate.Addr{Link: name, Address: a.prefix.String()})
		}
	}
	return out, nil
}

// ofHostTables reports whether a routing table is one of ours on the host.
func ofHostTables(table uint32) bool {
	return table == netstate.HostTable || table == netstate.PodTable
}

// Table returns what the host has in netstate.HostTable and netstate.PodTable: the routes of our
// protocol number, and all rules of it that lead there.
func (h *Host) Table(ctx context.Context) ([]netstate.Route, []netstate.Rule, error) {
	v := h.WithoutSandbox()
	o := v.observer(netstate.NewSnapshot())
	wide := *v.outside // a cluster may have more nodes than a sandbox routes
	wide.bounds.Routes = maxTableRoutes
	var routes []netstate.Route
	var rules []netstate.Rule
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		for _, table := range []uint32{netstate.HostTable, netstate.PodTable} {
			found, err := wide.routes(ctx, routeQuery{family: family, protocol: netstate.RouteProtocol, table: table}, 0,
				func(ifRoute) bool { return true })
			if err != nil {
				return nil, nil, fmt.Errorf("read routes of table %d: %w", table, err)
			}
			for _, r := range found {
				if r.Link, err = o.nameOf(ctx, v.outside, r.index); err != nil {
					return nil, nil, fmt.Errorf("read the host's links: %w", err)
				}
				if r.Link != "" {
					routes = append(routes, r.Route)
				}
			}
		}
		some, err := v.outside.rules(ctx, uint32(family), func(r netstate.Rule) bool {
			return ofHostTables(r.Table) && r.Protocol == netstate.RouteProtocol
		})
		if err != nil {
			return nil, nil, fmt.Errorf("read rules of tables %d and %d: %w", netstate.HostTable, netstate.PodTable, err)
		}
		rules = append(rules, some...)
	}
	return routes, rules, nil
}

// ApplyTable makes changes of what Table returns: it creates and deletes routes and rules, in
// order. An object that is there already, or no longer, is no error. A change that fails does not keep
// the others from being made; the first errors are joined.
func (h *Host) ApplyTable(ctx context.Context, changes []netstate.Change) error {
	v := h.WithoutSandbox()
	var errs []error
	failed := 0
	for _, c := range changes {
		if err := v.applyTable(ctx, c); err != nil {
			if failed++; failed <= maxTableErrors {
				errs = append(errs, fmt.Errorf("%s %s: %w", c.Action(), c.Object().Key(), err))
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	if more := failed - len(errs); more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

func (s *Sandbox) applyTable(ctx context.Context, c netstate.Change) error {
	switch o := c.Object().(type) {
	case netstate.Route:
		if !ofHostTables(o.Table) || !netstate.OnHost(o.Link) {
			return invalid("it is in neither of the tables %d and %d of the host", netstate.HostTable, netstate.PodTable)
		}
		return unlessGone(s.applyRoute(ctx, c), unix.EEXIST)
	case netstate.Rule:
		if !ofHostTables(o.Table) {
			return invalid("it leads to neither of the tables %d and %d", netstate.HostTable, netstate.PodTable)
		}
		parts, err := encodeRule(o)
		if err != nil {
			return err
		}
		if c.Action() == netstate.Delete {
			return unlessGone(s.outside.write(ctx, unix.RTM_DELRULE, 0, parts...), unix.ENOENT)
		}
		return unlessGone(s.outside.write(ctx, unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, parts...), unix.EEXIST)
	default:
		return invalid("it is neither a route nor a rule")
	}
}
