package topology

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// IPAMMultiNIC is the type of multi-nic-cni: addresses of an AddressPool, with what the step
// expects of its division.
const IPAMMultiNIC = "multi-nic-ipam"

// foldMultiNIC writes ipam of type multi-nic-ipam as the rest of plumbline reads it: the pool
// without a name is that of the topology's name, as in multi-nic-cni the network's name is
// that of its CIDR object; and vlanMode, which is the mode of the ipvlan links and only
// written among the addresses, is the step's mode.
func foldMultiNIC(topology string, s *Step, wrong func(field, format string, args ...any)) {
	if ipamType(s.Config) != IPAMMultiNIC {
		return
	}
	ipam := s.Config["ipam"].(map[string]any)
	if pool, named := ipam["pool"]; !named || pool == "" {
		ipam["pool"] = topology
	}
	written, has := ipam["vlanMode"]
	if !has {
		return
	}
	delete(ipam, "vlanMode")
	mode, isText := written.(string)
	own, hasOwn := s.Config["mode"]
	ownText, _ := own.(string)
	switch {
	case s.Type != "ipvlan":
		wrong("config.ipam.vlanMode", "is the mode of ipvlan links, and the step is of type %q: remove it, or change the type", s.Type)
	case !isText || !slices.Contains([]string{"l2", "l3", "l3s"}, strings.ToLower(mode)):
		wrong("config.ipam.vlanMode", "%v is not one of l2, l3, l3s", written)
	case hasOwn && !strings.EqualFold(mode, ownText):
		wrong("config.ipam.vlanMode", "%q is not the step's mode, %v: remove one of them", mode, own)
	default:
		s.Config["mode"] = strings.ToLower(mode)
	}
}

// maxMasterNets is as many as an AddressPool has parts for.
const maxMasterNets = 32

// standsFor returns the names of the steps that a root step with so many masterNets stands
// for.
func standsFor(step string, networks int) []string {
	out := make([]string, networks)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", step, i)
	}
	return out
}

// StepNames returns the names that the steps of an object have when it is decoded: a root
// step with masterNets stands for one step for each network, one with forEach for one step for each value.
func StepNames(o *v1alpha1.NetworkTopology) (root, derived []string) {
	for i := range o.Spec.Steps {
		s := &o.Spec.Steps[i]
		names := []string{s.Name}
		if n := len(s.ForEach); n > 0 && n <= maxForEach {
			names = nil
			for _, value := range s.ForEach {
				names = append(names, s.Name+value)
			}
		} else if networks := masterNets(s); networks > 0 {
			names = standsFor(s.Name, networks)
		}
		if len(s.DependOn) > 0 {
			derived = append(derived, names...)
		} else {
			root = append(root, names...)
		}
	}
	return root, derived
}

// StepResource is a step with the extended resource by which pods request its device.
type StepResource struct{ Step, Resource string }

// StepResources returns the steps of an object that have an extended resource when it is decoded, in order.
func StepResources(o *v1alpha1.NetworkTopology) (out []StepResource) {
	for i := range o.Spec.Steps {
		switch s := &o.Spec.Steps[i]; {
		case s.ExtendedResourceName == "":
		case len(s.ForEach) > 0 && len(s.ForEach) <= maxForEach:
			for index, value := range s.ForEach {
				e := each{index: index, value: value}
				out = append(out, StepResource{s.Name + value, e.resource(s.ExtendedResourceName)})
			}
		default:
			out = append(out, StepResource{s.Name, s.ExtendedResourceName})
		}
	}
	return out
}

// masterNets is how many an encoded step has. It decodes few: there may be thousands of
// topologies.
func masterNets(s *v1alpha1.Step) int {
	if !expands(s.Type, s.DependOn) || s.Config == nil || !bytes.Contains(s.Config.Raw, []byte("masterNets")) {
		return 0
	}
	var config struct {
		MasterNets []json.RawMessage `json:"masterNets"`
	}
	if json.Unmarshal(s.Config.Raw, &config) != nil || len(config.MasterNets) > maxMasterNets {
		return 0
	}
	return len(config.MasterNets)
}

// expands reports whether masterNets of a step mean steps: others have no such key, or have
// no master on the host.
func expands(typ string, dependOn []string) bool {
	return len(dependOn) == 0 && (typ == "ipvlan" || typ == "macvlan")
}

// expand returns the steps that a step stands for: itself, or one for each of its
// masterNets, of which each has the position in that list as the interface of its pool.
// before is the number of root steps before it.
func expand(s Step, before int, wrong func(field, format string, args ...any)) []Step {
	written, has := s.Config["masterNets"]
	if !has || !expands(s.Type, s.DependOn) {
		return []Step{s}
	}
	delete(s.Config, "masterNets")
	ok := true
	bad := func(field, format string, args ...any) { wrong(field, format, args...); ok = false }
	networks := checkMasterNets(written, bad)
	for _, key := range []string{"master", "masterNet", "linkInContainer", "deviceID", "pciAddress", "pciBusID", "runtimeConfig"} {
		if _, has := s.Config[key]; has {
			bad("config."+key, "does not go with masterNets, which name the interfaces below: remove one of them")
		}
	}
	if _, has := s.Config["addresses"]; has {
		bad("config.addresses",
			"would be those of each interface of masterNets: use ipam of type %q or %q, or a step with masterNet for each", IPAMPool,
			IPAMMultiNIC)
	}
	if s.ExtendedResourceName != "" {
		bad("extendedResourceName", "is of one device, and masterNets are several: use a step with masterNet for each")
	}
	ipam, hasIPAM := s.Config["ipam"].(map[string]any)
	if kind := ipamType(s.Config); hasIPAM && kind != IPAMPool && kind != IPAMMultiNIC {
		bad("config.ipam.type",
			"%q does not go with masterNets, of which each interface has addresses of its own: use %q or %q", kind, IPAMPool, IPAMMultiNIC)
	}
	if _, has := ipam["interface"]; has {
		bad("config.ipam.interface", "is the position in masterNets: remove it")
	}
	if !ok {
		return []Step{s}
	}
	name, _ := s.Config["name"].(string)
	if alias, has := s.Config["ifName"].(string); has {
		name = cmp.Or(name, alias)
	}
	name = cmp.Or(name, fmt.Sprintf("net%d", before+1))
	var out []Step
	for i, of := range standsFor(s.Name, len(networks)) {
		one := s
		one.Name = of
		one.Config = maps.Clone(s.Config)
		delete(one.Config, "ifName")
		one.Config["name"] = fmt.Sprintf("%s-%d", name, i)
		one.Config["masterNet"] = networks[i]
		if hasIPAM {
			ipam := maps.Clone(ipam)
			ipam["interface"] = int64(i)
			one.Config["ipam"] = ipam
		}
		out = append(out, one)
	}
	return out
}

// dependOnEach has the steps that depend on one which stands for several depend on all of
// these.
func (t *Topology) dependOnEach(several map[string][]Step) {
	if len(several) == 0 {
		return
	}
	for i := range t.Steps {
		var all []string
		for _, name := range t.Steps[i].DependOn {
			each := several[name]
			if each == nil {
				all = append(all, name)
			}
			for j := range each {
				all = append(all, each[j].Name)
			}
		}
		t.Steps[i].DependOn = all
	}
}

func checkMasterNets(written any, wrong func(field, format string, args ...any)) (networks []string) {
	list, isList := written.([]any)
	switch {
	case !isList || len(list) == 0:
		wrong("config.masterNets", "is not a list of networks such as [10.0.1.0/24, 10.0.2.0/24]")
		return nil
	case len(list) > maxMasterNets:
		wrong("config.masterNets", "has %d entries, at most %d are accepted", len(list), maxMasterNets)
		return nil
	}
	for i, e := range list {
		network, isText := e.(string)
		if !isText {
			wrong(fmt.Sprintf("config.masterNets[%d]", i), "is not a network such as 10.0.1.0/24")
		} else if slices.Contains(networks, network) {
			wrong(fmt.Sprintf("config.masterNets[%d]", i), "%q is listed twice", network)
		}
		networks = append(networks, network)
	}
	return networks
}
