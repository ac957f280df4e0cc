package ref

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/suggest"
)

// Type is the static type of a field.
type Type string

// The types a field can have.
const (
	String  Type = "string"
	Integer Type = "integer"
	Strings Type = "[]string"
	Objects Type = "[]object"
)

// Scalar reports whether a value of the type can be part of a string.
func (t Type) Scalar() bool { return t == String || t == Integer }

// Source is the part of a result a field is read from.
type Source string

// The parts of a result.
const (
	Interfaces Source = "interfaces" // steps that have interfaces
	IPs        Source = "ips"        // steps that have addresses
	Devices    Source = "devices"    // steps that give device nodes, if they list the field
)

// Field describes one known field.
type Field struct {
	Path        string // with "[N]" for an index
	Type        Type
	Format      string // of a string, as in the step contracts; "" for any
	Source      Source
	Description string
}

// fields lists everything that can be referenced.
var fields = []Field{
	{"interfaceName", String, "interface-name", Interfaces, "name of the step's last interface in the sandbox"},
	{"mac", String, "mac", Interfaces, "MAC address of that interface"},
	{"sandbox", String, "", Interfaces, "path of the network namespace"},
	{"interfaces", Objects, "", Interfaces, "all interfaces of the result"},
	{"interfaces[N].name", String, "interface-name", Interfaces, "name of the Nth interface, from 0"},
	{"interfaces[N].mac", String, "mac", Interfaces, "its MAC address"},
	{"interfaces[N].mtu", Integer, "", Interfaces, "its MTU"},
	{"interfaces[N].pciID", String, "pci-address", Interfaces, "its PCI address, if it is a device"},
	{"ips[N].address", String, "cidr", IPs, "Nth address of the result, with its prefix length"},
	{"ips[N].gateway", String, "ip", IPs, "gateway of that address"},
	{"pciAddress", String, "pci-address", Devices, "PCI address of the device"},
	{"iommuGroup", String, "", Devices, "number of the IOMMU group"},
	{"deviceNodes", Strings, "", Devices, "paths of the character devices"},
	{"deviceNodes[N]", String, "", Devices, "Nth of these paths, from 0"},
	{"rdmaDevice", String, "", Devices, "name of the RDMA device"},
	{"gidIndex", Integer, "", Devices, "index of the GID that the step requires"},
}

// Fields returns all known fields.
func Fields() []Field { return slices.Clone(fields) }

// Of returns the reference to a step's field; an index, where there is one, is 0.
func (f Field) Of(step string) Ref {
	field, rest, indexed := strings.Cut(f.Path, "[N]")
	r := Ref{Step: step, Field: field, Sub: strings.TrimPrefix(rest, ".")}
	if indexed {
		r.Index = new(int)
	}
	return r
}

// UnknownField is a reference to a field that no step has.
type UnknownField struct {
	Ref  Ref
	Near string // the field that was probably meant, "" when none is near
}

func (e *UnknownField) Error() string {
	if e.Near != "" {
		return fmt.Sprintf("unknown field %q in %s, did you mean %q?", e.Ref.Path(), e.Ref, e.Near)
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Path
	}
	return fmt.Sprintf("unknown field %q in %s: known fields are %s", e.Ref.Path(), e.Ref, strings.Join(names, ", "))
}

// synonyms are other names for the fields, in lower case.
var synonyms = map[string]string{
	"dev": "interfaceName", "device": "interfaceName", "iface": "interfaceName", "ifname": "interfaceName", "interface": "interfaceName",
	"link": "interfaceName", "name": "interfaceName",
	"hwaddr": "mac", "macaddress": "mac",
	"netns": "sandbox", "mtu": "interfaces[N].mtu", "pciid": "interfaces[N].pciID", "pcibusid": "interfaces[N].pciID",
	"address": "ips[N].address", "ip": "ips[N].address", "ipaddress": "ips[N].address", "gateway": "ips[N].gateway", "gw": "ips[N].gateway",
}

// Lookup returns what is known of the field a reference names. The error is an
// *UnknownField.
func (r Ref) Lookup() (Field, error) {
	want := r.Field
	if r.Index != nil {
		want += "[N]"
	}
	if r.Sub != "" {
		want += "." + r.Sub
	}
	var names []string
	for _, f := range fields {
		if f.Path == want {
			return f, nil
		}
		names = append(names, f.Path)
	}
	near := synonyms[strings.ToLower(r.Field)]
	if near == "" || r.Index != nil || r.Sub != "" {
		near = suggest.Name(want, names)
	}
	for _, n := range names { // a forgotten or needless index comes first
		if withoutIndex(n) == withoutIndex(want) {
			near = n
			break
		}
	}
	return Field{}, &UnknownField{r, near}
}

func withoutIndex(path string) string { return strings.Replace(path, "[N]", "", 1) }
