package exposure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Set is the policies that apply to one node.
type Set struct {
	policies   []*Policy // by descending priority, then by name
	attributes []string
	node       Node
}

// Node is what policies know of a node.
type Node struct {
	Name   string
	Labels map[string]string
}

// NewSet returns the policies of a cluster that apply to a node.
func NewSet(policies []*Policy, node Node) Set {
	all, attributes := Limit(policies)
	return Set{
		policies:   slices.DeleteFunc(all, func(p *Policy) bool { return !p.On(node.Labels) }),
		attributes: attributes,
		node:       node,
	}
}

// Limit orders policies by descending priority, and by name, and returns the names of the
// attributes they add. If these do not fit on a device, policies become invalid, those of
// the lowest priority first, so that nodes, controller and admission agree.
func Limit(policies []*Policy) (ordered []*Policy, attributes []string) {
	ordered = slices.SortedFunc(slices.Values(policies), func(a, b *Policy) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	seen := map[string]bool{}
	for i, p := range ordered {
		if p.Err != nil {
			continue
		}
		with := maps.Clone(seen)
		for name := range p.Attributes {
			with[name] = true
		}
		if len(with) > maxAdditional {
			q := *p
			q.Full = true
			e := problems(p.Name)
			e.Add("spec.exposure.additionalAttributes: this policy and those of higher priority add %d different attributes, "+
				"at most %d are accepted in the cluster: reuse names", len(with), maxAdditional)
			q.Err = e
			ordered[i] = &q
			continue
		}
		seen = with
	}
	return ordered, slices.Sorted(maps.Keys(seen))
}

// Attributes are the names of the additional attributes that any policy of the cluster
// sets. Each device has them all, with an empty value where no policy sets one: the
// scheduler gives up on a pod whose selector reads an attribute that a device lacks.
func (s Set) Attributes() []string { return s.attributes }

// Decide returns the devices with what the policies set: Exposure, physical networks and
// additional attributes.
func (s Set) Decide(ctx context.Context, devices []inventory.Device) ([]inventory.Device, error) {
	out := slices.Clone(devices)
	deciding := make([]*Policy, len(out))
	for i := range out {
		deciding[i], out[i].Exposure = s.decide(ctx, devices[i])
		if ctx.Err() != nil {
			return nil, fmt.Errorf("evaluate policies: %w", context.Cause(ctx))
		}
		if p := deciding[i]; p != nil && out[i].Exposure.Verdict != inventory.Undecided && len(p.Attributes) > 0 {
			out[i].Additional = maps.Clone(p.Attributes)
		}
	}
	for i, p := range onWire(out, deciding, func(p *Policy) bool { return len(p.Networks) > 0 }) {
		if p != nil {
			out[i].PhysicalNetworks, out[i].PhysicalNetwork = p.Networks, p.Networks[0].Name
		}
	}
	for i, p := range onWire(out, deciding, func(p *Policy) bool { return p.Neighbour != nil }) {
		if p != nil {
			p.Neighbour.apply(&out[i])
		}
	}
	for i := range out {
		s.placePools(&out[i])
	}
	return out, nil
}

// onWire returns, by device, the policy that decides for it or, if that says nothing, the one for its PF, which has the same wire.
func onWire(devices []inventory.Device, deciding []*Policy, says func(*Policy) bool) []*Policy {
	of := map[string]*Policy{} // by device ID
	for i, p := range deciding {
		if p != nil && says(p) {
			of[devices[i].ID] = p
		}
	}
	out := make([]*Policy, len(devices))
	for i, d := range devices {
		out[i] = of[d.ID]
		if out[i] == nil && d.PF != nil {
			out[i] = of[d.PF.PCIAddress]
		}
	}
	return out
}

// decide returns the policy that decides for a device, and its verdict.
func (s Set) decide(ctx context.Context, d inventory.Device) (*Policy, inventory.Exposure) {
	if d.Kind == inventory.KindVirtual {
		// It can only be offered as a shared device.
		if !slices.ContainsFunc(s.policies, func(p *Policy) bool { return p.Sharing != nil }) {
			return nil, inventory.Exposure{}
		}
		p, e := s.highest(ctx, d)
		if e.Sharing == nil && e.Verdict != inventory.Undecided {
			return nil, inventory.Exposure{}
		}
		return p, e
	}
	return s.highest(ctx, d)
}

// highest returns the policy of the highest priority that selects a device, and its
// verdict.
func (s Set) highest(ctx context.Context, d inventory.Device) (*Policy, inventory.Exposure) {
	for from := 0; from < len(s.policies); {
		to := from
		for to < len(s.policies) && s.policies[to].Priority == s.policies[from].Priority {
			to++
		}
		if p, e := among(ctx, s.policies[from:to], d); e.Verdict != "" {
			return p, e
		}
		from = to
	}
	return nil, inventory.Exposure{}
}

// among decides between policies of the same priority.
func among(ctx context.Context, policies []*Policy, d inventory.Device) (*Policy, inventory.Exposure) {
	var selecting []*Policy
	for _, p := range policies {
		matches, err := p.selects(ctx, d)
		switch {
		case err != nil:
			return nil, undecided(p, err.Error())
		case matches && p.Err != nil:
			return nil, undecided(p, firstOf(p.Err))
		case matches:
			selecting = append(selecting, p)
		}
	}
	if len(selecting) == 0 {
		return nil, inventory.Exposure{}
	}
	p := selecting[0]
	var rivals []string
	for _, q := range selecting[1:] {
		if !p.same(q) {
			rivals = append(rivals, q.Name)
		}
	}
	switch {
	case len(rivals) > 0:
		e := undecided(p, fmt.Sprintf("policy %q has the same priority %d and decides otherwise", rivals[0], p.Priority))
		e.Rivals = rivals
		return nil, e
	case p.Action == v1alpha1.Withhold:
		return p, inventory.Exposure{Policy: p.Name, Verdict: inventory.Withheld}
	}
	return p, inventory.Exposure{
		Policy: p.Name, Verdict: inventory.Exposed, BesideDrivers: p.Beside, BesideFunctions: p.BesideFunctions,
		Sharing: p.Sharing,
	}
}

// firstOf returns the first problem of a policy.
func firstOf(err error) string {
	if listed, ok := errors.AsType[*topology.Listed](err); ok {
		return listed.Problems[0]
	}
	return err.Error()
}

func undecided(p *Policy, reason string) inventory.Exposure {
	return inventory.Exposure{Policy: p.Name, Verdict: inventory.Undecided, Reason: reason}
}

// noName is none that a link can have: it contains a slash (dev_valid_name, net/core/dev.c).
const noName = "/"

// selects reports whether a policy is for a device. A policy whose problem is not its
// selector still selects.
//
// Of software links like veth most belong to pods, so a policy selects one only if it
// names it: if it would not select it under another name.
func (p *Policy) selects(ctx context.Context, d inventory.Device) (bool, error) {
	if p.unread != nil {
		return false, errors.New(firstOf(p.Err))
	}
	matches, err := p.selector.Match(ctx, d)
	if d.SharedByName() {
		if !matches || err != nil { // as of most links of pods
			return false, nil
		}
		d.IfName = noName
		other, err := p.selector.Match(ctx, d)
		return err == nil && !other, nil
	}
	if cause := errors.Unwrap(err); cause != nil { // without the device, which the caller names
		err = fmt.Errorf("spec.selector.cel: %w", cause)
	}
	return matches, err
}

// Reports counts the results of the policies on a node. offered are the names of the
// devices that are offered.
func (s Set) Reports(devices []inventory.Device, offered map[string]bool) []v1alpha1.PolicyReport {
	out := make([]v1alpha1.PolicyReport, len(s.policies))
	at := map[string]int{}
	for i, p := range s.policies {
		out[i] = v1alpha1.PolicyReport{Name: p.Name, Generation: p.Generation}
		at[p.Name] = i
	}
	for _, d := range devices {
		e := d.Exposure
		i, known := at[e.Policy]
		switch {
		case !known:
		case e.Verdict == inventory.Undecided:
			stuck(&out[i], d, e.Reason, e.Rivals)
			for _, rival := range e.Rivals {
				if j, known := at[rival]; known {
					stuck(&out[j], d, fmt.Sprintf("policy %q has the same priority and decides otherwise", e.Policy), []string{e.Policy})
				}
			}
		default:
			out[i].Devices++
			if offered[d.Name] || e.Sharing != nil && offered[d.AsShared().Name] {
				out[i].Offered++
			}
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.PolicyReport) int { return cmp.Compare(a.Name, b.Name) })
	return out[:min(len(out), maxReported)]
}

// Bounds of a report, as in the CRD.
const (
	maxReported  = 256
	maxConflicts = 8
	maxReason    = 1000
)

// stuck counts a device that stays as it was. The reason of the first is reported.
func stuck(r *v1alpha1.PolicyReport, d inventory.Device, reason string, rivals []string) {
	r.Undecided++
	if r.Problem == "" {
		text := fmt.Sprintf("device %q: %s", d.Name, reason)
		r.Problem = text[:min(len(text), maxReason)]
	}
	for _, name := range rivals {
		if !slices.Contains(r.Conflicts, name) && len(r.Conflicts) < maxConflicts {
			r.Conflicts = append(r.Conflicts, name)
		}
	}
	slices.Sort(r.Conflicts)
}
