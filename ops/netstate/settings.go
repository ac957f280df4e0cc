package netstate

import (
	"slices"
	"strings"
)

// Settings are those that the owner of a namespace can change on a device in it
// and what goes along when the device moves: one "name=value" each, sorted. The
// name begins with its class: "link.txqlen", "feature.rx-gro", "xdp.native", "ipv4.rp_filter".
type Settings []string

// upperClass is the class of links on a device that are in an unknown namespace. What
// is recorded of them is not wanted: only an additional one is a difference.
const upperClass = "upper."

// The classes of what is attached to a device rather than set. Attached things
// that were not there before are taken away; those that are missing nobody can
// bring back.
var attachedClasses = []string{"xdp", "tcx", "rule", strings.TrimSuffix(upperClass, ".")}

// Attached reports whether a setting is something attached to a device.
func Attached(name string) bool {
	class, _, _ := strings.Cut(name, ".")
	return slices.Contains(attachedClasses, class)
}

// sysctlClasses are those of the sysctls of a device, which begin with its family. A device to which the
// family does not apply, as IPv6 to one of a small MTU, has none, and none to restore.
var sysctlClasses = []string{"ipv4", "ipv6"}

// IsSysctl reports whether a setting is a sysctl of the device, in the namespace that it is in.
func IsSysctl(name string) bool {
	class, _, _ := strings.Cut(name, ".")
	return slices.Contains(sysctlClasses, class)
}

// All returns the values by name.
func (s Settings) All() map[string]string {
	out := make(map[string]string, len(s))
	for _, line := range s {
		name, value, _ := strings.Cut(line, "=")
		out[name] = value
	}
	return out
}

// Differing lists the names of the settings that have does not hold as s does, sorted.
// One that only have contains could not be read before and is no difference, unless it
// is attached.
func (s Settings) Differing(have Settings) []string {
	want, got := s.All(), have.All()
	var out []string
	for name, value := range want {
		v, ok := got[name]
		if (!ok && !IsSysctl(name) || ok && v != value) && !strings.HasPrefix(name, upperClass) {
			out = append(out, name)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok && Attached(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
