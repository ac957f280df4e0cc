package inventory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/suggest"
)

// TestDoubts holds what is remarked on selectors that compile, and that what is usual is not remarked on.
func TestDoubts(t *testing.T) {
	const ours = `device.attributes["dra.networking"].`
	for _, c := range []struct {
		expr       string
		additional []string
		want       string // "" for none
	}{
		{ours + `rdma == true`, nil, ""},
		{ours + `rdma`, nil, ""},
		{`!` + ours + `rdma && ` + ours + `type in ["vf", "pf"]`, nil, ""},
		{ours + `rdma == "true"`, nil, ours + `rdma is a boolean and is compared with "true", a string, which it never equals: write true without quotes`},
		{`"yes" == ` + ours + `rdma`, nil, ours + `rdma is a boolean and is compared with "yes", a string, which it never equals: write true or false`},
		{ours + `type == true`, nil, ours + `type is a string and is compared with true, a boolean, which it never equals: write "true"`},
		{ours + `type in [1]`, nil, ours + `type is a string and is compared with 1, a number, which it never equals: write "1"`},
		{`has(` + ours + `numaNode) && ` + ours + `numaNode == "0"`, nil, ours + `numaNode is a number and is compared with "0", a string, which it never equals: write 0 without quotes`},
		{ours + `numaNode == 0`, nil, `not every device has the attribute "numaNode", and the scheduler gives up a pod whose selector reads a missing one: write has(` + ours + `numaNode) && before it`},
		{`has(` + ours + `numaNode) && ` + ours + `numaNode == 0`, nil, ""},
		{`"numaNode" in device.attributes["dra.networking"] && ` + ours + `numaNode == 0`, nil, ""},
		{ours + `?numaNode.orValue(-1) == 0`, nil, ""},
		{`device.attributes["dra.networking"].?rail.orValue("") == 0`, nil, ours + `rail is a string and is compared with 0, a number, which it never equals: write "0"`},
		{`7 == device.attributes["dra.networking"][?"rail"].orValue("")`, nil, ours + `rail is a string and is compared with 7, a number, which it never equals: write "7"`},
		{`device.attributes["dra.networking"].?rail.orValue("") == "0"`, nil, ""},
		{`device.attributes["dra.networking"].?rail.orValue(0) == 0`, nil, ours + `rail is a string and is compared with 0, a number, which it never equals: write "0"`},
		{ours + `?numaNode.orValue(-1) == "0"`, nil, ours + `numaNode is a number and is compared with "0", a string, which it never equals: write 0 without quotes`},
		{`device.attributes["dra.networking"].?rdmaNetns.orValue("") == "Exclusive"`, nil, ours + `rdmaNetns is exclusive or shared, and never equals "Exclusive", did you mean "exclusive"?`},
		{`device.attributes["dra.networking"].?rdmaNetns.orValue("") in ["exclusive", "private"]`, nil, ours + `rdmaNetns is exclusive or shared, and never equals "private"`},
		{`device.attributes["dra.networking"].?linkType.orValue("") == "InfiniBand"`, nil, ours + `linkType is ethernet or infiniband, and never equals "InfiniBand", did you mean "infiniband"?`},
		{`device.attributes["dra.networking"].?linkType.orValue("none") != "none"`, nil, ""},
		{ours + `type == "vf" && ` + ours + `vendor == "0x15b3"`, nil, ours + `vendor is four digits of 0-9 and a-f, and never equals "0x15b3": write "15b3"`},
		{ours + `type == "vf" && ` + ours + `device == "101E"`, nil, ours + `device is four digits of 0-9 and a-f, and never equals "101E": write "101e"`},
		{ours + `type == "vf" && ` + ours + `vendor == "mellanox"`, nil, ours + `vendor is four digits of 0-9 and a-f, and never equals "mellanox"`},
		{`cel.bind(a, device.attributes["dra.networking"], a.numaNode == 0)`, nil, `not every device has the attribute "numaNode", and the scheduler gives up a pod whose selector reads a missing one: write has(` + ours + `numaNode) && before it`},
		{ours + `vendor == "15b3"`, nil, `not every device has the attribute "vendor", and the scheduler gives up a pod whose selector reads a missing one: write has(` + ours + `vendor) && before it`},
		{ours + `type == "vf" && ` + ours + `vendor == "15b3"`, nil, ""},
		{ours + `rdma.startsWith("t")`, nil, ours + `rdma is a boolean and has no function startsWith, so that the scheduler gives up the pod: compare it with ==`},
		{ours + `pfName && ` + ours + `rdma`, nil, ours + `pfName is a string and no condition, so that the scheduler gives up the pod: compare it, as in ` + ours + `pfName != ""`},
		{`device.driver == "mlx5_core"`, nil, `device.driver is "dra.networking" for each device that a step can have, and is compared with "mlx5_core": use device.attributes["dra.networking"].driver for the driver of the kernel`},
		{`device.driver == "dra.networking"`, nil, ""},
		{`device.attributes["dra.net"].rdma`, nil, `no device has attributes of the domain "dra.net", unless a DeviceExposurePolicy adds them: did you mean "dra.networking"?`},
		{`device.attributes["resource.kubernetes.io"].rdma`, nil, `no device has an attribute "resource.kubernetes.io/rdma"`},
		{`device.attributes["resource.kubernetes.io"].pcieroot == "a"`, nil, `no device has an attribute "resource.kubernetes.io/pcieroot", did you mean "resource.kubernetes.io/pcieRoot"?`},
		{`device.attributes["example.com"].rack == "a"`, nil, ""},
		{`device.attributes["example.com"].rack == "a"`, []string{"example.com/rack"}, ""},
		{`device.attributes["example.com"].rak == "a"`, []string{"example.com/rack"}, `no device has an attribute "example.com/rak": no DeviceExposurePolicy adds it, did you mean "example.com/rack"?`},
	} {
		s, err := inventory.Compile(c.expr)
		if err != nil {
			t.Errorf("%s: %v", c.expr, err)
			continue
		}
		got := s.Doubts(c.additional, suggest.Name)
		if want := []string{c.want}; c.want == "" && len(got) > 0 || c.want != "" && !slices.Equal(got, want) {
			t.Errorf("%s\nhave %q\nwant %q", c.expr, got, c.want)
		}
	}
}

// TestDoubtsKnowAttributes holds that selectors are compared with the types of the attributes that are published.
func TestDoubtsKnowAttributes(t *testing.T) {
	d := inventory.Device{ID: "0000:03:10.0", Kind: inventory.KindVF, PF: &inventory.PF{IfName: "a"}, Vendor: "8086", DeviceID: "10ca", Driver: "igbvf", LinkType: "ethernet", NUMANode: new(0), PCIeRoot: "pci0000:00"}
	for name, a := range inventory.Attributes(d) {
		domain, id, other := strings.Cut(string(name), "/")
		if !other {
			domain, id = inventory.Driver, string(name)
		}
		attribute := fmt.Sprintf("device.attributes[%q].%s", domain, id)
		text := "text"
		if a.StringValue != nil {
			text = *a.StringValue // of some attributes no other is a value
		}
		for typ, of := range map[string]struct {
			literal string
			is      bool
		}{"string": {fmt.Sprintf("%q", text), a.StringValue != nil}, "boolean": {"true", a.BoolValue != nil}, "number": {"7", a.IntValue != nil}} {
			s, err := inventory.Compile("has(" + attribute + ") && " + attribute + " == " + of.literal)
			if err != nil {
				t.Fatal(err)
			}
			if doubts := s.Doubts(nil, suggest.Name); (len(doubts) == 0) != of.is {
				t.Errorf("%s compared with a %s: %q, and it is %s", name, typ, doubts, a.String())
			}
		}
	}
}
