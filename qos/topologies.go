package qos

import (
	"errors"
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/qos/v1alpha1"
)

// SelectsTopologies reports whether a policy may cover NetworkTopologies. One that does not
// is about networks of others, such as those of ovn-kubernetes.
func (p *Policy) SelectsTopologies() bool {
	return slices.ContainsFunc(p.networks, func(t networkTerm) bool { return t.kind == NetworkTopology })
}

// SelectsTopology reports whether a policy covers a NetworkTopology with these labels.
func (p *Policy) SelectsTopology(name string, of map[string]string) bool {
	return p.mayCover(Network{NetworkID: NetworkID{Kind: NetworkTopology, Name: name}, Labels: of})
}

// NoTopology is what becomes of a policy that selects no NetworkTopology where nothing but these
// networks is enforced.
const NoTopology = "it selects no NetworkTopology, and nothing else is enforced: add networkSelectors with networkSelectionType " + string(v1alpha1.NetworkTopologies)

// Notes are what is allowed and has no effect: fields, or the policy as a whole on the topologies of a
// cluster. ours says that nothing but topologies is enforced.
func (p *Policy) Notes(ours bool) []string {
	out := slices.Clone(p.Warnings)
	if p.Err == nil && ours && !p.SelectsTopologies() {
		out = append(out, NoTopology)
	}
	return out
}

// Reason returns what is wrong with an object in one line, "" if nothing is.
func (p *Policy) Reason() string {
	invalid, ok := errors.AsType[*Invalid](p.Err)
	switch {
	case p.Err == nil:
		return ""
	case !ok:
		return p.Err.Error()
	case len(invalid.Problems) > 1 || invalid.More:
		return fmt.Sprintf("%s (and more)", invalid.Problems[0])
	default:
		return invalid.Problems[0]
	}
}
