package ops

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

// guard refuses to change the loopback device, and, unless the topology says
// allowPodUplink, the interface by which the pod reaches the cluster. Stacking a
// link on that interface does not change it, and is allowed.
func (p *Planner) guard(o netstate.Object) error {
	link := linkOf(o)
	switch {
	case p.Kept() || link == "" || netstate.OnHost(link) || p.makers[link] != "":
		return nil
	case link == "lo":
		return Invalid(p.current.fieldNaming(link),
			"%q is the loopback device of the pod, which no step may change: use an interface of type dummy instead", link)
	case p.req.Topology.AllowPodUplink || !p.req.uplink(link):
		return nil
	case slices.ContainsFunc(p.req.Owned, func(c netstate.Change) bool { return linkOf(c.Object()) == link }):
		return nil // what an earlier version applied to a running pod stays valid
	}
	return Invalid(p.current.fieldNaming(link),
		"%q is the pod's own interface to the cluster: set spec.allowPodUplink to true if this topology is meant to change it", link)
}

// fieldNaming returns the field of the step's config that names a link, "" for
// none. Lists are not searched: errors about their entries name the entry already.
func (s *stepState) fieldNaming(link string) string {
	config := s.config
	for _, field := range slices.Sorted(maps.Keys(config)) {
		switch value := config[field].(type) {
		case string:
			if value == link {
				return field
			}
		case map[string]any: // sysctl
			for _, key := range slices.Sorted(maps.Keys(value)) {
				if slices.Contains(strings.FieldsFunc(key, func(r rune) bool { return r == '.' || r == '/' }), link) {
					return fmt.Sprintf("%s[%q]", field, key)
				}
			}
		}
	}
	return ""
}

// uplink reports whether a link carries a default route of others or has the
// name of the pod's own interface.
func (r *Request) uplink(link string) bool {
	return link == topology.PodInterface || slices.ContainsFunc(netstate.All[netstate.Route](r.Have), func(r netstate.Route) bool {
		return r.Link == link && r.IsDefault() && r.Table == netstate.TableMain && r.Protocol != netstate.RouteProtocol
	})
}

// linkOf is the link that an object is, or lives on, "" for none.
func linkOf(o netstate.Object) string {
	if l, ok := o.(netstate.Link); ok {
		return l.Name
	}
	return netstate.LinkOf(o)
}
