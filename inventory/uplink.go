package inventory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
)

// Uplinks describes the node's own connection.
type Uplinks struct {
	// Routes are the interfaces of all default routes, IPv4 and IPv6, in all tables.
	Routes []string
	// Networks are those of each interface's addresses.
	Networks map[string][]netip.Prefix
	// NoNetworks is why they are not known.
	NoNetworks error
	// Unread are the interfaces whose default routes could not be queried, with the reason.
	Unread map[string]error
}

// Problem says which interfaces could not be queried and why; nil if all could.
func (u Uplinks) Problem() error {
	var out []error
	if u.NoNetworks != nil {
		out = append(out, fmt.Errorf("no networks of devices are known: %w", u.NoNetworks))
	}
	for _, ifName := range slices.Sorted(maps.Keys(u.Unread)) {
		out = append(out, fmt.Errorf("withheld %q, as it may carry a default route: %w", ifName, u.Unread[ifName]))
	}
	return errors.Join(out...)
}

// Routes answers queries about the default routes and the addresses of the host, IPv4 and IPv6.
type Routes interface {
	// Networks returns the networks of the host's addresses by interface, without those of
	// a link alone.
	Networks(ctx context.Context) (map[string][]netip.Prefix, error)
	// Best returns the interface of the best default route, "" if there is none.
	Best(ctx context.Context) (ifName string, err error)
	// Over returns the interface of a device if it carries a default route, else "".
	Over(ctx context.Context, id string) (ifName string, err error)
}

// QueryUplinks returns the devices that carry a default route. It queries each interface that is up: the best route alone would
// leave out the second of two uplinks. An interface that cannot be read is returned as unread: it may come from a pod, and
// must not keep the others from being offered.
func QueryUplinks(ctx context.Context, devices []Device, routes Routes) (Uplinks, error) {
	best, err := routes.Best(ctx)
	if err != nil {
		return Uplinks{}, fmt.Errorf("default routes: %w", err)
	}
	out := Uplinks{Unread: map[string]error{}}
	out.Networks, out.NoNetworks = routes.Networks(ctx) // no reason to offer nothing
	if best != "" {
		out.Routes = append(out.Routes, best)
	}
	query := func(id, ifName string) {
		switch carrier, err := routes.Over(ctx, id); {
		case err != nil:
			out.Unread[ifName] = err
		case carrier != "":
			out.Routes = append(out.Routes, carrier)
		}
	}
	for _, d := range devices {
		if d.IfName != "" && d.Up {
			query(d.ID, d.IfName)
		}
		for _, name := range d.OtherIfNames {
			query(ifPrefix+name, name)
		}
	}
	return out, ctx.Err()
}

// DiscoverGuarded is Discover with the devices marked that carry a default route. When
// that cannot be found out it lists none, since the way to the host could be allocated.
// Devices of which a part could be read are listed, with the error.
func DiscoverGuarded(ctx context.Context, sys fs.FS, opt Options, routes Routes) ([]Device, error) {
	devices, err := Discover(sys, opt)
	uplinks, failed := QueryUplinks(ctx, devices, routes)
	if failed != nil {
		return nil, failed
	}
	return GuardUplinks(devices, uplinks), errors.Join(err, uplinks.Problem())
}

// DiscoverBlind is Discover for who may not ask the kernel for routes, for the reason why: each device with an interface is
// marked as one that may carry a default route. The error says so, beside what else could not be read.
func DiscoverBlind(sys fs.FS, opt Options, why error) ([]Device, error) {
	devices, err := Discover(sys, opt)
	u := Uplinks{Unread: map[string]error{}}
	for _, d := range devices {
		for _, name := range append([]string{d.IfName}, d.OtherIfNames...) {
			u.Unread[name] = why
		}
	}
	delete(u.Unread, "") // a device without one
	return GuardUplinks(devices, u), errors.Join(err,
		fmt.Errorf("routes and addresses of the host are not seen, so no device with an interface is listed as offered: %w", why))
}

// GuardUplinks returns the devices with the networks of their interfaces, and with those
// marked that carry a default route: the route's interface, everything below it down to the cards (a port
// of a bridge, the bond under a VLAN), and the master it is enslaved to. What
// could not be asked is marked in the same way: one interface that cannot be read
// costs itself, not the others. Only the netdev itself is marked: a PF in use keeps
// its virtual functions on offer.
//
// No policy may override the guard. It must be computed on every scan, since routes
// change.
func GuardUplinks(devices []Device, u Uplinks) []Device {
	lowers, masters := map[string][]string{}, map[string][]string{}
	for _, d := range devices {
		masters[d.IfName] = append(masters[d.IfName], d.Master)
		for _, upper := range append(slices.Clone(d.Uppers), d.Master) {
			lowers[upper] = append(lowers[upper], d.IfName)
		}
	}
	out := slices.Clone(devices)
	for i := range out {
		if out[i].IfName != "" {
			out[i].Networks = u.Networks[out[i].IfName]
		}
	}
	mark := func(starts []string, use HostUse) {
		guarded := reach(starts, lowers)
		maps.Copy(guarded, reach(starts, masters))
		for i := range out {
			d := &out[i]
			names := append([]string{d.IfName}, d.OtherIfNames...)
			if slices.ContainsFunc(names, func(name string) bool { return guarded[name] }) {
				d.HostUse = use
			}
		}
	}
	mark(slices.Collect(maps.Keys(u.Unread)), Unread)
	mark(u.Routes, DefaultRoute)
	return out
}

// reach returns the starts and all that can be reached from them.
func reach(starts []string, next map[string][]string) map[string]bool {
	seen := map[string]bool{}
	todo := slices.Clone(starts)
	for len(todo) > 0 {
		name := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		todo = append(todo, next[name]...)
	}
	return seen
}
