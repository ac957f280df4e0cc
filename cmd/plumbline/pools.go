package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// source has the content of a command's files: a topology, the pools that it names, and what
// marks and limits its traffic.
type source struct {
	topology *topology.Manifest
	pools    map[string]*addresspool.Layout
	qos      []*topology.Manifest // with NetworkQoS objects
}

// sources reads files of which one has a NetworkTopology and all may have AddressPools and
// NetworkQoS objects.
func (a *app) sources(ctx context.Context, files []string) (s source, err error) {
	s.pools = map[string]*addresspool.Layout{}
	for _, file := range files {
		f, err := a.parse(ctx, file)
		if err != nil {
			return s, err
		}
		topologies, qos := len(f.Objects(v1alpha1.Kind)) > 0, enforce.HasObjects(f)
		pools, err := objectfile.Decode[v1alpha1.AddressPool](f, v1alpha1.GroupVersion.WithKind(v1alpha1.AddressPoolKind))
		switch {
		case err != nil:
			return s, err
		case topologies && s.topology != nil:
			return s, fmt.Errorf(
				"%s: has a NetworkTopology, and %s has one: this command takes one, and files with AddressPools and NetworkQoS objects",
				f.Name, s.topology.Name)
		case topologies || len(files) == 1 && !qos:
			s.topology = f
		case len(pools) == 0 && !qos:
			return s, fmt.Errorf("%s: has no NetworkTopology, AddressPool or NetworkQoS", f.Name)
		}
		if qos {
			s.qos = append(s.qos, f)
		}
		for i, o := range pools {
			d := f.Objects(v1alpha1.AddressPoolKind)[i]
			if s.pools[o.Name] != nil {
				return s, d.At("", fmt.Errorf("AddressPool %q is in another file, too", o.Name))
			}
			if s.pools[o.Name], err = addresspool.Of(o); err != nil {
				return s, d.Located(err)
			}
		}
	}
	if s.topology == nil {
		return s, fmt.Errorf("%s: no NetworkTopology, only AddressPools or NetworkQoS objects", strings.Join(files, ", "))
	}
	return s, nil
}

// examples adds to what is given an address of each pool that a step wants one of, and
// returns a note on each. Which address a pod gets is decided on its node: nothing else
// knows what other pods have. An imagined node has each pool, so that the planner invents the address of one that
// no file has.
func (s *source) examples(t *topology.Topology, given ops.Givens, imagined bool) (ops.Givens, []string, error) {
	out := ops.Givens{}
	maps.Copy(out, given)
	var notes []string
	var h addresspool.Holdings
	for i := range t.Steps {
		step := &t.Steps[i]
		pool, iface, ok := topology.FromPool(step)
		if !ok || len(given[step.Name].Addresses) > 0 {
			continue
		}
		layout := s.pools[pool]
		if local, ok := topology.LocalIPAM(step); ok {
			layout, _ = addresspool.Local(local) // what is wrong with it, the plan reports
		}
		if of, ok := topology.FromSubnets(step); ok && layout == nil {
			layout, _ = addresspool.Of(addresspool.OfSubnets(of))
		}
		switch {
		case layout != nil:
		case pool == topology.LocalPool:
			continue
		case imagined:
			example := fmt.Sprintf("for an example of AddressPool %q, name its file with another -f", pool)
			if pool == "" {
				example = "a pod gets them from the AddressPool of its device's physical network"
			}
			notes = append(notes, fmt.Sprintf("step %q: its addresses are invented: %s", step.Name, example))
			continue
		case pool == "":
			return nil, nil, fmt.Errorf(
				"step %q: the pod's node decides which address it gets, from the AddressPool of its device's physical network: "+
					"name an example with --address %s=ADDRESS", step.Name, step.Name)
		default:
			have := ""
			if len(s.pools) > 0 {
				have = "; the files have only " + strings.Trim(fmt.Sprintf("%q", slices.Sorted(maps.Keys(s.pools))), "[]")
			}
			return nil, nil, fmt.Errorf("step %q: the pod's node decides which address of AddressPool %q it gets: "+
				"name an example with --address %s=ADDRESS, or the file of the AddressPool with another -f%s", step.Name, pool,
				step.Name, have)
		}
		if division, ok := topology.Division(step); ok {
			if err := layout.Agrees(division); err != nil {
				return nil, nil, fmt.Errorf("step %q: %w", step.Name, err)
			}
		}
		got, err := h.Example(layout.Without(topology.RouteGateways(t)), addresspool.Owner{Topology: t.Name, Step: step.Name}, iface)
		if err != nil {
			return nil, nil, fmt.Errorf("step %q: %w", step.Name, err)
		}
		out[step.Name] = out[step.Name].WithNetwork(ops.Allocated(layout, got))
		notes = append(notes, fmt.Sprintf("step %q: %s is an example: which address of %s a pod gets is decided on its node", step.Name,
			strings.Trim(fmt.Sprint(got), "[]"), addresspool.Title(pool)))
	}
	return out, notes, nil
}
