package claim

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

// MaxRequests is how many devices one ResourceClaim can request. All roots of a
// topology are requested by one claim.
const MaxRequests = resourceapi.DeviceRequestsMaxSize

// Roots returns the root steps that are given a device, and so have a DeviceClass, in order
// of declaration: those that have a selector, and those whose type consumes a device or
// shares one. A root step that needs no device for its interface, such as a dummy, has no
// class and needs no request; nor does one with its master in the sandbox, or a step of a
// topology that is the pod network.
func Roots(t *topology.Topology, set contract.Set) []*topology.Step {
	return roots(t, set, func(s *topology.Step, c contract.Contract) bool {
		_, inside := Below(s, c)
		return s.Selector != "" || c.Input.Device || c.Input.Shares && !inside
	})
}

// Required returns the root steps that a claim must request a device for. A root step that uses a shared device and has no
// selector is not among them, since it can find its master itself, unless its addresses are of the device's physical network.
func Required(t *topology.Topology, set contract.Set) []*topology.Step {
	return roots(t, set, func(s *topology.Step, c contract.Contract) bool {
		_, inside := Below(s, c)
		return s.Selector != "" || c.Input.Device || c.Input.Shares && !inside && topology.OfNetwork(s)
	})
}

func roots(t *topology.Topology, set contract.Set, takes func(*topology.Step, contract.Contract) bool) []*topology.Step {
	if t.Role != "" {
		return nil // no claim can request it
	}
	return slices.DeleteFunc(t.Roots(), func(s *topology.Step) bool {
		c, _ := set.Contract(s.Type)
		return !takes(s, c)
	})
}

// Requested returns the steps that a claim should have a device for: Roots, or Required where
// those are more than one claim can request.
func Requested(t *topology.Topology, set contract.Set) []*topology.Step {
	if out := Roots(t, set); len(out) <= MaxRequests {
		return out
	}
	return Required(t, set)
}

// Below returns the host interface that the config of a root step names as its master, ""
// for none, and whether the master is in the sandbox.
func Below(s *topology.Step, c contract.Contract) (named string, inside bool) {
	if !c.Input.Shares {
		return "", false
	}
	config, _ := c.Decode(s.Config, contract.Options{Unresolved: true}) // problems are reported by validation
	inside, _ = config["linkInContainer"].(bool)
	if inside {
		return "", true
	}
	named, _ = config[c.Input.NamedBy].(string)
	return named, false
}

// MasterNet returns the network of the host by which the config of a root step names its
// master, "" for none.
func MasterNet(s *topology.Step, c contract.Contract) string {
	if !c.Input.Shares || !s.Root() {
		return ""
	}
	config, _ := c.Decode(s.Config, contract.Options{Unresolved: true}) // problems are reported by validation
	network, _ := config["masterNet"].(string)
	return network
}

func names(steps []*topology.Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, s.Name)
	}
	return out
}
