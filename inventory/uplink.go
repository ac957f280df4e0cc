package inventory

import "slices"

// Uplinks is what the caller knows about the node's own connection.
type Uplinks struct {
	// Routes are the interfaces of all default routes, IPv4 and IPv6, in all tables.
	Routes []string
	// Masters maps an interface to what it is enslaved to or stacked under, for
	// relations sysfs does not show (an Open vSwitch port and its bridge). Those
	// that sysfs shows need not be repeated.
	Masters map[string][]string
}

// GuardUplinks returns the devices with those marked that carry a default
// route: the route's interface, everything below it down to the cards (a port
// of a bridge, the bond under a VLAN), and the master it is enslaved to. Only
// the netdev itself is marked: a PF in use keeps its virtual functions on offer.
//
// The guard is a hard rule. It must be computed on every scan, since routes
// move, and no policy may override it.
func GuardUplinks(devices []Device, u Uplinks) []Device {
	uppers := map[string][]string{}
	masters := map[string][]string{}
	for _, d := range devices {
		if d.IfName == "" {
			continue
		}
		uppers[d.IfName] = append(uppers[d.IfName], d.Uppers...)
		if d.Master != "" {
			uppers[d.IfName] = append(uppers[d.IfName], d.Master)
			masters[d.IfName] = append(masters[d.IfName], d.Master)
		}
	}
	lowers := map[string][]string{}
	for ifName, above := range u.Masters {
		uppers[ifName] = append(uppers[ifName], above...)
		masters[ifName] = append(masters[ifName], above...)
	}
	for ifName, above := range uppers {
		for _, upper := range above {
			lowers[upper] = append(lowers[upper], ifName)
		}
	}
	guarded := reach(u.Routes, lowers)
	for ifName := range reach(u.Routes, masters) {
		guarded[ifName] = true
	}

	out := slices.Clone(devices)
	for i := range out {
		d := &out[i]
		names := append([]string{d.IfName}, d.OtherIfNames...)
		if slices.ContainsFunc(names, func(name string) bool { return guarded[name] }) {
			d.HostUse = DefaultRoute
		}
	}
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
