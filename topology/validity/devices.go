package validity

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/exposure"
)

// namedDevices are notes on steps whose config names a device: the command line takes it, and a claim has the device
// that the scheduler chooses by the selector.
func namedDevices(t *topology.Topology, set contract.Set) (notes []string) {
	for _, s := range claim.Roots(t, set) {
		if s.Selector != "" {
			continue
		}
		runtime, _ := s.Config["runtimeConfig"].(map[string]any)
		for _, key := range []struct {
			name      string
			value     any
			attribute string // "" if no attribute has the value
		}{
			{"device", s.Config["device"], attribute(inventory.Driver, string(inventory.AttrIfName))},
			{"hwaddr", s.Config["hwaddr"], ""},
			{"kernelpath", s.Config["kernelpath"], ""},
			{"deviceID", s.Config["deviceID"], attribute("resource.kubernetes.io", "pciBusID")},
			{"pciAddress", s.Config["pciAddress"], attribute("resource.kubernetes.io", "pciBusID")},
			{"pciBusID", s.Config["pciBusID"], attribute("resource.kubernetes.io", "pciBusID")},
			{"runtimeConfig.deviceID", runtime["deviceID"], attribute("resource.kubernetes.io", "pciBusID")},
		} {
			value, isText := key.value.(string)
			if !isText || strings.Contains(value, "{{") {
				continue
			}
			note := fmt.Sprintf("step %q: config.%s: names the device on the command line only: "+
				"in a cluster the scheduler chooses one by the selector of the step, and there is none", s.Name, key.name)
			if key.attribute != "" {
				expr := fmt.Sprintf("%s == %q", key.attribute, value)
				if strings.Contains(key.attribute, "pciBusID") {
					expr = fmt.Sprintf("has(%s) && %s", key.attribute, expr)
				}
				note += fmt.Sprintf(": add selector: {cel: '%s'}", expr)
			} else {
				note += ": add a selector"
			}
			notes = append(notes, note)
		}
	}
	return notes
}

func attribute(domain, name string) string {
	return fmt.Sprintf("device.attributes[%q].%s", domain, name)
}

// Sharing is a root step that uses a device of the host, of which pods have shares where a DeviceExposurePolicy
// says so.
type Sharing struct {
	Step, Type string
	// Master is the device by the name of its interface on the host, "" if the step names none.
	Master string
	// Network is the network of the host by which the step finds its device, "" if it names none.
	Network string
	// Optional says that a claim may leave out the request, as it has another one: then the step finds its
	// device by itself, and no share is counted.
	Optional bool
}

// Shared returns the root steps that claims request a share of a device for, and that can have nothing else.
func Shared(t *topology.Topology, set contract.Set) (out []Sharing) {
	requested := claim.Requested(t, set)
	for _, s := range requested {
		c, _ := set.Contract(s.Type)
		if !c.Input.Shares || c.Input.Functions && s.Selector != "" {
			continue
		}
		master, _ := claim.Below(s, c)
		out = append(out, Sharing{
			Step: s.Name, Type: s.Type, Master: master, Network: claim.MasterNet(s, c),
			Optional: s.Selector == "" && !topology.OfNetwork(s) && len(requested) > 1,
		})
	}
	return out
}

// Unshared returns those whose device no policy shares, so that no device satisfies their requests.
func Unshared(ctx context.Context, shared []Sharing, policies []*exposure.Policy) []Sharing {
	return slices.DeleteFunc(slices.Clone(shared), func(s Sharing) bool {
		return slices.ContainsFunc(policies, func(p *exposure.Policy) bool { return p.MayShare(ctx, s.Type, s.Master) })
	})
}

// Message names the policy that is needed, in one line, with one that can be applied.
func (s Sharing) Message() string {
	what, name, expr := "a device of the host", "share-for-"+s.Step, attribute(inventory.Driver,
		string(inventory.AttrIfName))+` == "INTERFACE"`
	switch networks := attribute(inventory.Driver, string(inventory.AttrNetworks)); {
	case s.Master != "":
		what, expr = fmt.Sprintf("%q of the host", s.Master),
			fmt.Sprintf("%s == %q", attribute(inventory.Driver, string(inventory.AttrIfName)), s.Master)
	case s.Network != "":
		what, expr = fmt.Sprintf("the device of the host in %s", s.Network), fmt.Sprintf(`has(%s) && %q in %s.split(",")`, networks,
			s.Network, networks)
	}
	leave := ""
	if s.Optional {
		leave = "; a claim that requests another step may leave the request of this one out"
	}
	return fmt.Sprintf("step %q: requests a share of %s: pods stay Pending without a DeviceExposurePolicy that shares it, such as "+
		"{apiVersion: networking.dra.io/v1alpha1, kind: DeviceExposurePolicy, metadata: {name: %s}, spec: {selector: {cel: "+
		"'%s'}, exposure: {allowMultipleAllocations: true}}}%s",
		s.Step, what, name, expr, leave)
}
