package exposure

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/excerpt"
)

// placeholder stands in the name of an AddressPool for the rail of the device, for its node, or for a label of that, such as a rack's.
var placeholder = regexp.MustCompile(`\{\{ *(?:device\.rail|node\.name|node\.labels\["([^"]*)"\]) *\}\}`)

// FixedPool reports whether the name of an AddressPool is the same for all devices.
func FixedPool(name string) bool { return !strings.Contains(name, "{{") }

// poolProblem returns what is wrong with the name of an AddressPool in a policy; "" for nothing.
func poolProblem(name string) string {
	for _, m := range placeholder.FindAllStringSubmatch(name, -1) {
		if !strings.Contains(m[0], "labels") {
			continue
		}
		if problems := validation.IsQualifiedName(m[1]); len(problems) > 0 {
			return fmt.Sprintf("%q is not a label key: %s", excerpt.Of(m[1], 64), problems[0])
		}
	}
	plain := placeholder.ReplaceAllString(name, "0")
	if strings.ContainsAny(plain, "{}") {
		return fmt.Sprintf("%q: only {{ device.rail }}, {{ node.name }} and {{ node.labels[\"KEY\"] }} can stand in the name of an "+
			"AddressPool", excerpt.Of(name, 64))
	}
	if problems := validation.IsDNS1123Subdomain(plain); len(problems) > 0 {
		return fmt.Sprintf("%q is not an AddressPool name: %s", excerpt.Of(name, 64), problems[0])
	}
	return ""
}

// maxPoolName is the length of an AddressPool's name, as in its CRD.
const maxPoolName = 63

// placePools names the AddressPools of the networks that a device is wired to, by its rail and the name and labels of the node.
func (s Set) placePools(d *inventory.Device) {
	if !slices.ContainsFunc(d.PhysicalNetworks, func(n inventory.PhysicalNetwork) bool { return !FixedPool(n.AddressPool) }) {
		return
	}
	d.PhysicalNetworks = slices.Clone(d.PhysicalNetworks) // they are the policy's
	for i := range d.PhysicalNetworks {
		n := &d.PhysicalNetworks[i]
		if FixedPool(n.AddressPool) {
			continue
		}
		pool, why := s.poolAt(n.AddressPool, d)
		if n.AddressPool = pool; why != "" && d.Exposure.NoPool == "" {
			d.Exposure.NoPool = fmt.Sprintf("physical network %q has none here: %s", n.Name, why)
		}
	}
}

// poolAt returns the AddressPool that a name with placeholders means for a device, or why it means none.
func (s Set) poolAt(name string, d *inventory.Device) (pool, why string) {
	pool = placeholder.ReplaceAllStringFunc(name, func(text string) string {
		value, missing := d.Rail, fmt.Sprintf("device %q has no rail", d.Name)
		switch key := placeholder.FindStringSubmatch(text)[1]; {
		case strings.Contains(text, "labels"):
			value, missing = s.node.Labels[key], fmt.Sprintf("the node has no label %q", key)
		case strings.Contains(text, "node.name"):
			value, missing = s.node.Name, "the name of the node is not known"
		}
		if value == "" && why == "" {
			why = missing
		}
		return value
	})
	if why != "" {
		return "", why
	}
	if problems := validation.IsDNS1123Subdomain(pool); len(problems) > 0 || len(pool) > maxPoolName {
		return "", fmt.Sprintf("%q is not an AddressPool name, which has up to %d lowercase letters, digits, '-' and '.'",
			excerpt.Of(pool, 64), maxPoolName)
	}
	return pool, ""
}
