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
		{`{requests: [{name: a, exactly: {deviceClassName: gpu}}, {name: b, exactly: {deviceClassName: gpu}}, {name: a, exactly: {deviceClassName: gpu}}]}`, "", `requests[2]: "a" is the name of an earlier request: give each a name of its own`},
		{`{requests: [{name: a, firstAvailable: [{name: b, deviceClassName: gpu}, {name: b, deviceClassName: gpu}]}, {name: c, firstAvailable: [{name: b, deviceClassName: gpu}]}]}`, "", `requests[0].firstAvailable[1]: "a/b" is the name of an earlier request: give each a name of its own`},
		{`{requests: [` + many(33, "{name: r%d, exactly: {deviceClassName: gpu}}") + `]}`, "", `has 33 requests, and a claim has at most 32: divide them between claims of the pod`},
		{`{requests: [{name: a, exactly: {deviceClassName: gpu}}], constraints: [` + many(33, "{matchAttribute: x.y/a%d}") + `]}`, "", `has 33 constraints, and a claim has at most 32: divide its requests between claims of the pod`},
		{`{requests: [` + many(32, "{name: r%d, exactly: {deviceClassName: gpu}}") + `], constraints: [` + many(32, "{matchAttribute: x.y/a%d}") + `]}`, "", ""},
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

// many are the entries 0 to n-1 of a list.
func many(n int, format string) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(format, i))
	}
	return strings.Join(out, ", ")
}

// TestClaimExports: topologies of one claim that export one variable are refused when the pod starts, so that it is said before; of
// variables of presets only a node knows.
func TestClaimExports(t *testing.T) {
	set, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ one, two, note, err string }{
		"one variable":      {"env: {A: x, B: x}", "env: {B: z}", "", `topologies "t0" and "t1" both export B, and a container has one: remove it from spec.export of one, or request them with two claims for different containers`},
		"different":         {"env: {A: x}, presets: [mpi]", "env: {B: z}, presets: [dpdk]", "", ""},
		"one preset":        {"presets: [nccl]", "presets: [nccl]", `topologies "t0" and "t1" may both export NCCL_IB_GID_INDEX, NCCL_IB_HCA, NCCL_SOCKET_IFNAME, of which a container has one each: remove them from spec.export of one, or request them with two claims for different containers`, ""},
		"a preset's and":    {"env: {NCCL_IB_HCA: x}", "presets: [nccl]", `topologies "t0" and "t1" may both export NCCL_IB_HCA, of which a container has one each: remove them from spec.export of one, or request them with two claims for different containers`, ""},
		"files of each":     {"files: {a: x}", "files: {a: x}", "", ""},
		"none in the other": {"presets: [nccl]", "", "", ""},
	} {
		o := validity.Objects{}
		for i, export := range []string{c.one, c.two} {
			text := fmt.Sprintf("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t%d}\nspec:\n  export: {%s}\n"+
				"  steps: [{name: vf, type: sriov, config: {name: n%d, addresses: [192.0.2.1/24]}}]\n", i, export, i)
			if export == "" {
				text = strings.Replace(text, "  export: {}\n", "", 1)
			}
			f, err := topology.Parse("", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			decoded, err := f.Topology()
			if err != nil {
				t.Fatal(err)
			}
			object := &v1alpha1.NetworkTopology{}
			object.Name = decoded.Name
			o.Topologies = append(o.Topologies, validity.Named{Topology: decoded, Object: object})
		}
		f, err := topology.Parse("", []byte("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\n"+
			"spec: {devices: {requests: [{name: a, exactly: {deviceClassName: t0-vf}}, {name: b, exactly: {deviceClassName: t1-vf}}]}}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if o.Claims, err = validity.Claims(f); err != nil {
			t.Fatal(err)
		}
		notes, errs := validity.Across(t.Context(), o, set)
		notes = slices.DeleteFunc(notes, func(n string) bool { return !strings.HasPrefix(n, `ResourceClaim "c": `) })
		said := func(have, want string) bool {
			return have == "" && want == "" || want != "" && have == `ResourceClaim "c": `+want
		}
		got := ""
		if err := errors.Join(errs...); err != nil {
			got = err.Error()
		}
		if note := strings.Join(notes, "\n"); !said(note, c.note) || !said(got, c.err) {
			t.Errorf("%s\nnotes %s\nerrors %s", name, note, got)
		}
	}
}
