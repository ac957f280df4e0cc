package validity

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
)

// resourceNames checks the extended resource names of steps; roots are those that
// take a device.
func resourceNames(t *topology.Topology, set contract.Set, roots []*topology.Step, invalid *topology.Invalid) (notes []string) {
	first := map[string]*topology.Step{}
	for i := range t.Steps {
		s := &t.Steps[i]
		if s.ExtendedResourceName == "" || invalid.Full() {
			continue
		}
		if why := resourceName(s, roots, first[s.ExtendedResourceName]); why != "" {
			invalid.Addf(s.Name, "extendedResourceName", "%s", why)
		}
		if first[s.ExtendedResourceName] == nil {
			first[s.ExtendedResourceName] = s
		}
	}
	for _, p := range claim.Joined(t, set) {
		seen := map[string]bool{}
		for _, root := range p.Roots {
			s, _ := t.Step(root)
			if name := s.ExtendedResourceName; name != "" && seen[name] {
				notes = append(notes,
					fmt.Sprintf("step %q: the devices that a pod requests as %q may be functions of one card, which fail together: "+
						"give the steps different selectors and names, or use a claim", p.Step, name))
				break
			}
			seen[s.ExtendedResourceName] = true
		}
	}
	return notes
}

// resourceName returns the problem of a step's extended resource name, "" if none. The
// other step is the first with the same name: its DeviceClass chooses the devices of both.
func resourceName(s *topology.Step, roots []*topology.Step, other *topology.Step) string {
	if !slices.Contains(roots, s) {
		return "only a root step that takes a device has a DeviceClass, which bears the name: remove it"
	}
	var wrong []string
	for _, e := range validate.ExtendedResourceName(context.Background(), operation.Operation{}, nil, &s.ExtendedResourceName, nil) {
		wrong = append(wrong, e.Detail)
	}
	switch {
	case len(wrong) > 0:
		return strings.Join(wrong, "; ")
	case other == nil:
		return ""
	case other.Type != s.Type:
		return "is that of step \"" + other.Name + "\", too, which is of type \"" + other.Type +
			"\": all devices that a pod requests under one name are chosen in the same way; " +
			"give both the same type, or one of them another name"
	case other.Selector != s.Selector:
		return "is that of step \"" + other.Name +
			"\", too, which has another selector: all devices that a pod requests under one name are chosen in the same way; " +
			"give both the same selector, or one of them another name"
	}
	return ""
}
