package podstatus

import (
	"context"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/excerpt"
)

// modeChoice is a request of a claim without devices whose selectors read the RDMA mode of nodes. The scheduler does not say
// which selector leaves a node out, and compares each device only as it is.
type modeChoice struct {
	topology, step string
	selectors      []inventory.Selector
	// nodes by the mode that they need: what the published devices show, nil while they were not read.
	nodes map[string]*modeNodes
}

// modeNodes are nodes for a request that needs a mode.
type modeNodes struct{ fit, leftOut []string }

// modeChoices are the requests of a claim that choose devices by the mode, of classes that topologies have.
func modeChoices(c *resourceapi.ResourceClaim, classes map[string]*resourceapi.DeviceClass) (out []modeChoice) {
	add := func(class string, own []resourceapi.DeviceSelector) {
		of := classes[class]
		if of == nil || of.Labels[claim.LabelTopology] == "" {
			return
		}
		choice := modeChoice{topology: of.Labels[claim.LabelTopology], step: of.Labels[claim.LabelStep]}
		reads := false
		for _, s := range slices.Concat(of.Spec.Selectors, own) {
			if s.CEL == nil {
				continue
			}
			compiled, err := inventory.Compile(s.CEL.Expression)
			if err != nil {
				return // the scheduler says so
			}
			reads = reads || compiled.Reads(inventory.AttrRDMANetns)
			choice.selectors = append(choice.selectors, compiled)
		}
		if reads {
			out = append(out, choice)
		}
	}
	for _, q := range c.Spec.Devices.Requests {
		if q.Exactly != nil {
			add(q.Exactly.DeviceClassName, q.Exactly.Selectors)
		}
		for _, sub := range q.FirstAvailable {
			add(sub.DeviceClassName, sub.Selectors)
		}
	}
	return out
}

// readModes finds the nodes that requests leave out because of their RDMA mode.
func (r *Reader) readModes(ctx context.Context, s *Status) {
	var choices []*modeChoice
	for i := range s.Claims {
		for j := range s.Claims[i].modes {
			choices = append(choices, &s.Claims[i].modes[j])
		}
	}
	if len(choices) == 0 {
		return
	}
	const most = 500 // of one answer of the API server, with up to 128 devices each
	published, err := r.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + claim.Driver, Limit: most,
	})
	switch {
	case apierrors.IsForbidden(err):
		s.unread("ResourceSlices: you may not list them, so the nodes that this leaves out are not known: " +
			"ask for list on resourceslices of resource.k8s.io")
		return
	case err != nil:
		s.unread("ResourceSlices: %v", err)
		return
	case published.Continue != "":
		s.unread("ResourceSlices: only the first %d were read, so other nodes may be left out, too", most)
	}
	for _, choice := range choices {
		choice.nodes = map[string]*modeNodes{}
		for i := range published.Items {
			spec := &published.Items[i].Spec
			for j := 0; spec.Driver == claim.Driver && j < len(spec.Devices); j++ {
				choice.compare(ctx, spec.Pool.Name, spec.Devices[j]) // the pool of a node's devices has the node's name
			}
		}
	}
}

// compare adds the node of a device to those that fit, or to those that would if they were in the other mode.
func (c *modeChoice) compare(ctx context.Context, node string, d resourceapi.Device) {
	is := d.Attributes[inventory.AttrRDMANetns].StringValue
	if is == nil {
		return
	}
	in := func(mode string) *modeNodes {
		if c.nodes[mode] == nil {
			c.nodes[mode] = &modeNodes{}
		}
		return c.nodes[mode]
	}
	add := func(to *[]string) {
		if at, found := slices.BinarySearch(*to, node); !found {
			*to = slices.Insert(*to, at, node)
		}
	}
	if c.chooses(ctx, d) {
		add(&in(*is).fit)
		return
	}
	other := inventory.RDMAShared
	if *is == other {
		other = inventory.RDMAExclusive
	}
	d.Attributes = maps.Clone(d.Attributes)
	d.Attributes[inventory.AttrRDMANetns] = resourceapi.DeviceAttribute{StringValue: &other}
	if c.chooses(ctx, d) {
		add(&in(other).leftOut)
	}
}

// chooses reports whether all selectors choose a device.
func (c *modeChoice) chooses(ctx context.Context, d resourceapi.Device) bool {
	for _, s := range c.selectors {
		if fits, err := s.MatchPublished(ctx, d); err != nil || !fits {
			return false
		}
	}
	return true
}

// explain adds what the RDMA mode of nodes has to do with a claim that has no devices.
func (c *modeChoice) explain(out *findings) {
	const most = 5 // nodes that are named
	do := `rdma system show on a node prints its mode (docs/devices.md, "RDMA")`
	of := fmt.Sprintf("step %q of topology %q", c.step, c.topology)
	if c.nodes == nil {
		out.remark(do, "%s chooses devices by the RDMA mode of their node (attribute rdmaNetns): nodes in the other mode are left out", of)
		return
	}
	var fit []string // in any mode: only some devices may need one
	for _, nodes := range c.nodes {
		fit = append(fit, nodes.fit...)
	}
	slices.Sort(fit)
	fit = slices.Compact(fit)
	for _, mode := range slices.Sorted(maps.Keys(c.nodes)) {
		leftOut := slices.DeleteFunc(c.nodes[mode].leftOut, func(node string) bool { return slices.Contains(fit, node) })
		if len(leftOut) == 0 {
			continue
		}
		devices, other := "are shared between network namespaces", inventory.RDMAExclusive
		if mode == inventory.RDMAExclusive {
			devices, other = "belong to one network namespace each", inventory.RDMAShared
		}
		what := fmt.Sprintf("%s needs a node whose RDMA devices %s (attribute rdmaNetns); nodes in %s mode are left out: %s",
			of, devices, other, excerpt.First(leftOut, most))
		if len(fit) > 0 {
			out.remark(do, "%s; it fits devices of: %s", what, excerpt.First(fit, most))
		} else {
			out.problem(do, "%s", what)
		}
	}
}
