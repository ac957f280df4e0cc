package validity_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// TestClaimItself holds what is said of a claim's requests: what the API server refuses, and selectors that compile
// and select nothing.
func TestClaimItself(t *testing.T) {
	set, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := &v1alpha1.NetworkTopology{Spec: v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{{Name: "vf", Type: "sriov"}}}}
	top.Name = "t"
	decoded, err := topology.FromObject(top)
	if err != nil {
		t.Fatal(err)
	}
	const ours = `device.attributes["dra.networking"].`
	selector := func(class, expr string) string {
		return fmt.Sprintf(`{requests: [{name: a, exactly: {deviceClassName: %s, selectors: [{cel: {expression: '%s'}}]}}]}`, class, expr)
	}
	for _, c := range []struct{ devices, note, err string }{
		{selector("t-vf", ours+`vendor == "15b3"`), `request "a": selectors[0].cel: not every device has the attribute "vendor", and the scheduler gives up a pod whose selector reads a missing one: write has(` + ours + `vendor) && before it`, ""},
		{selector("t-vf", ours+`ifname == "a"`), `request "a": selectors[0].cel: no device has an attribute "ifname", and the scheduler gives up a pod whose selector reads a missing one, did you mean "ifName"?`, ""},
		{selector("t-vf", `device.attributes[`), "", `request "a": selectors[0].cel: 1:19: Syntax error: mismatched input`},
		{selector("gpu", `device.attributes[`), "", `request "a": selectors[0].cel: 1:19: Syntax error: mismatched input`},
		{selector("gpu", `device.attributes["gpu.example.com"].model == "x"`), "", ""}, // nothing is known of its devices
		{`{requests: [{name: a, firstAvailable: [{name: b, deviceClassName: t-vf, selectors: [{cel: {expression: "1"}}]}]}]}`, "", `request "a/b": selectors[0].cel: must evaluate to bool or the unknown type, not int`},
		{`{requests: [{name: a, exactly: {deviceClassName: t-vf, allocationMode: all}}]}`, "", `request "a": allocationMode: "all" is not one of ExactCount, All, did you mean "All"?`},
		{`{requests: [{name: a, exactly: {deviceClassName: t-vf}}], constraints: [{requests: [b], matchAttribute: dra.networking/pfName}]}`, "", `constraints[0].requests[0]: no request is named "b": the requests are a`},
		{`{requests: [{name: a, exactly: {deviceClassName: t-vf}}], constraints: [{matchAttribute: pfName}]}`, "", `constraints[0]: "pfName" has no domain: write dra.networking/pfName`},
		{`{requests: [{name: a, exactly: {deviceClassName: t-vf}}], constraints: [{matchAttribute: pcieRoot}]}`, "", `constraints[0]: "pcieRoot" has no domain: write it before the name, as in resource.kubernetes.io/pcieRoot`},
		{`{requests: [{name: a, exactly: {deviceClassName: t-vf}}], constraints: [{matchAttribute: dra.networking/vfindex}]}`, `constraints[0]: no device has an attribute "dra.networking/vfindex", so that no device meets the constraint, did you mean "vfIndex"?`, ""},
		{`{requests: [{name: a, exactly: {deviceClassName: t-vf}}], constraints: [{requests: [a], matchAttribute: dra.networking/pfName}]}`, "", ""},
		{`{requests: [{name: a, firstAvailable: [{name: b, deviceClassName: t-vf}]}], constraints: [{requests: [a/b], distinctAttribute: dra.networking/pfName}]}`, "", ""},
	} {
		text := "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: " + c.devices + "}\n"
		f, err := topology.Parse("", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		claims, err := validity.Claims(f)
		if err != nil {
			t.Fatal(err)
		}
		notes, errs := validity.Across(t.Context(), validity.Objects{Topologies: []validity.Named{{Topology: decoded, Object: top}}, Claims: claims}, set)
		said := func(have, want string) bool {
			return want == "" && have == "" || want != "" && strings.HasPrefix(have, `ResourceClaim "c": `+want)
		}
		got := ""
		if err := errors.Join(errs...); err != nil {
			got = err.Error()
		}
		if note := strings.Join(slices.Compact(notes), "\n"); !said(note, c.note) || !said(got, c.err) {
			t.Errorf("%s\nnotes %s\nerrors %s", c.devices, note, got)
		}
	}
}
