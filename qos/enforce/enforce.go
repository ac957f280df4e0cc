package enforce

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/tc"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Pod is the pod that a sandbox of no cluster stands for: which NetworkQoS objects cover it.
type Pod struct {
	Namespace string // "" is default
	Labels    map[string]string
}

// defaultNamespace is the namespace of pods and objects that name none, as for kubectl.
const defaultNamespace = "default"

// OnlyObjects reports whether a file has NetworkQoS objects and nothing else.
func OnlyObjects(data []byte) bool {
	f, err := topology.Parse("", data)
	return err == nil && HasObjects(f) && len(f.Objects(qosv1alpha1.Kind)) == len(f.Documents)
}

// HasObjects reports whether a file has NetworkQoS objects.
func HasObjects(f *topology.Manifest) bool { return len(f.Objects(qosv1alpha1.Kind)) > 0 }

// Objects compiles the NetworkQoS objects of files for the interfaces that a topology
// makes for a pod, with notes for the user. Other pods are not known, so a destination that
// is pods has no address.
func Objects(files []*topology.Manifest, topologyFile *topology.Manifest, pod Pod, contracts contract.Set) (
	out ops.Rules, notes []string, err error,
) {
	network, err := networkOf(topologyFile)
	if err != nil {
		return out, nil, err
	}
	top, err := topologyFile.Topology()
	if err != nil {
		return out, nil, fault.New(fault.Invalid, err)
	}
	definitions := topology.Definitions(top, contracts)
	attachments := []qos.Attachment{{Network: network}}
	if !network.Primary {
		attachments = qos.TopologyAttachments(network.Name, network.Labels, definitions)
	}
	each, members, notes, err := rulesOf(files, attachments, pod)
	if err != nil {
		return out, notes, err
	}
	rules := InterfaceRules{}
	for i, a := range attachments {
		rules[a.Interface] = each[i]
	}
	out, err = new(Memo).Compile(rules, members, top, nil, contracts)
	return out, notes, err
}

// InterfaceRules are the rules of a topology's interfaces, the winning one first, by the NetworkAttachmentDefinition of the network that
// these are on, see topology.Definitions; "" are all others.
type InterfaceRules map[string][]qos.Rule

// None reports whether no interface has a rule.
func (r InterfaceRules) None() bool {
	for _, rules := range r {
		if len(rules) > 0 {
			return false
		}
	}
	return true
}

// differ reports whether interfaces have other rules than those on the topology's own network.
func (r InterfaceRules) differ() bool {
	for _, rules := range r {
		if !slices.EqualFunc(rules, r[""], func(a, b qos.Rule) bool { return a.Policy == b.Policy && a.Index == b.Index }) {
			return true
		}
	}
	return false
}

// Memo compiles rules, and keeps what was compiled last: see tc.Memo. Its zero value is ready. It is safe for concurrent use.
type Memo struct{ filters tc.Memo }

// Compile compiles the rules of a pod for the backends that a topology, with what its steps are given, needs. More than an
// interface may have are an error of kind Invalid.
func (m *Memo) Compile(rules InterfaceRules, members func(qos.SetID) []netip.Addr, top *topology.Topology, given ops.Givens,
	contracts contract.Set,
) (out ops.Rules, err error) {
	if !rules.differ() {
		return m.both(rules[""], members, top, given, contracts)
	}
	definitions := topology.Definitions(top, contracts)
	steps := map[string]*topology.Topology{} // by definition
	for _, s := range top.Steps {
		d := definitions[s.Name]
		if steps[d] == nil {
			steps[d] = &topology.Topology{}
		}
		steps[d].Steps = append(steps[d].Steps, s)
	}
	for _, d := range slices.Sorted(maps.Keys(steps)) {
		own, err := m.both(rules[d], members, steps[d], given, contracts)
		if err != nil {
			return ops.Rules{}, err
		}
		if d == "" {
			out.Filters, out.LogicalRules = own.Filters, own.LogicalRules
			continue
		}
		if out.Steps == nil {
			out.Steps = map[string]ops.Rules{}
		}
		for _, s := range steps[d].Steps {
			out.Steps[s.Name] = own
		}
	}
	return out, nil
}

// both compiles rules for the backends that the steps of a topology need.
func (m *Memo) both(rules []qos.Rule, members func(qos.SetID) []netip.Addr, top *topology.Topology, given ops.Givens,
	contracts contract.Set,
) (out ops.Rules, err error) {
	byTC, byOVN := ops.Backends(top, given, contracts)
	if byTC {
		if out.Filters, err = m.filters.Objects(rules, members); err != nil {
			return ops.Rules{}, fault.New(fault.Invalid, err)
		}
	}
	if byOVN {
		if out.LogicalRules, err = ovn.Objects(rules, members); err != nil {
			return ops.Rules{}, fault.New(fault.Invalid, err)
		}
	}
	return out, nil
}

// rulesOf returns the rules that the NetworkQoS objects of files have for each of a pod's attachments, the winning one first, and the
// members of their sets, with notes for the user.
func rulesOf(files []*topology.Manifest, attachments []qos.Attachment,
	pod Pod,
) (rules [][]qos.Rule, members func(qos.SetID) []netip.Addr, notes []string, err error) {
	namespace := cmp.Or(pod.Namespace, defaultNamespace)
	c := qos.NewCompiler()
	c.SetNamespace(namespace, map[string]string{"kubernetes.io/metadata.name": namespace})
	source := &qos.Pod{Labels: maps.Clone(pod.Labels), Attachments: attachments}
	source.Key.Namespace, source.Key.Name = namespace, "pod"
	c.SetPod(source)
	var invalid []error
	seen := map[string]bool{}
	for _, f := range files {
		objects, err := qos.Objects(f)
		if err != nil {
			return nil, nil, nil, fault.New(fault.Invalid, err)
		}
		for i, o := range objects {
			d := f.Objects(qosv1alpha1.Kind)[i]
			o.Namespace = cmp.Or(o.Namespace, namespace)
			p := qos.New(o)
			if seen[p.Name()] {
				invalid = append(invalid,
					d.At("", fmt.Errorf("%s %q is in two files: give each a name of its own", qosv1alpha1.Kind, p.Name())))
			}
			seen[p.Name()] = true
			for _, w := range p.Warnings {
				notes = append(notes, fmt.Sprintf("%s %q: %s", qosv1alpha1.Kind, p.Name(), w))
			}
			if p.Err != nil {
				invalid = append(invalid, d.Located(p.Err))
			} else if p.ByLabels() {
				notes = append(notes, fmt.Sprintf("%s %q: %s", qosv1alpha1.Kind, p.Name(), qos.LabelsInCluster))
				p = p.WithNetworks(nil)
			}
			c.SetPolicy(p)
		}
	}
	if err := errors.Join(invalid...); err != nil {
		return nil, nil, notes, fault.New(fault.Invalid, err)
	}
	rules = c.Rules(source.Key)
	if len(seen) > 0 && len(slices.Concat(rules...)) == 0 {
		network := attachments[0].Network
		what, how := fmt.Sprintf("topology %q", network.Name), "networkSelectors select its labels, and podSelector those of the pod"
		if network.Kind == qos.DefaultNetwork {
			what, how = "the default network", "an object without networkSelectors does, if podSelector selects the labels of the pod"
		}
		notes = append(notes, fmt.Sprintf("no %s covers %s for this pod: %s, in namespace %q", qosv1alpha1.Kind, what, how, namespace))
	}
	for _, r := range slices.Concat(rules...) {
		note := fmt.Sprintf("%s %q: egress[%d]: destinations that are pods are known in a cluster only", qosv1alpha1.Kind,
			r.Policy, r.Index)
		if len(r.Sets) > 0 && !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	return rules, c.Members, notes, nil
}

// networkOf is the network that a topology is.
func networkOf(f *topology.Manifest) (qos.Network, error) {
	found := f.Objects(v1alpha1.Kind)
	if len(found) != 1 {
		return qos.Network{}, fault.New(fault.Invalid, errors.New("no NetworkTopology, or several"))
	}
	raw, err := found[0].JSON()
	if err != nil {
		return qos.Network{}, fault.New(fault.Invalid, err)
	}
	var o struct {
		v1alpha1.NetworkTopology // its metadata; the steps are read later
		Spec                     struct {
			Role v1alpha1.Role `json:"role"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return qos.Network{}, fault.New(fault.Invalid, err)
	}
	if o.Spec.Role == v1alpha1.Primary {
		return qos.PodNetwork(o.Name, qos.TopologyLabels(&o.ObjectMeta)), nil
	}
	return qos.Network{NetworkID: qos.NetworkID{Kind: qos.NetworkTopology, Name: o.Name}, Labels: qos.TopologyLabels(&o.ObjectMeta)}, nil
}
