package validity_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func registry(t *testing.T) *ops.Registry {
	t.Helper()
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// TestCases reads testdata/*.txtar, in which each file "NAME.yaml" is followed by the
// result: errors and notes, a line each, or that it is valid. A file "NAME.steps" holds the
// steps alone.
func TestCases(t *testing.T) {
	reg := registry(t)
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var out []txtar.File
		for i, f := range archive.Files {
			if strings.HasSuffix(f.Name, ".txt") {
				continue
			}
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar")+"/"+f.Name, func(t *testing.T) {
				got := say(t, reg, f)
				out = append(out, f, txtar.File{Name: "said.txt", Data: []byte(got)})
				if *update {
					return
				}
				if i+1 == len(archive.Files) || archive.Files[i+1].Name != "said.txt" {
					t.Fatalf("nothing is expected, but said was:\n%s", got)
				}
				if diff := cmp.Diff(string(archive.Files[i+1].Data), got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		}
		if *update {
			archive.Files = out
			if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

const header = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n"

// checked reads and checks a file with one topology.
func checked(t *testing.T, text []byte, reg *ops.Registry) (*topology.Topology, []string, error) {
	t.Helper()
	f, err := topology.Parse("", text)
	if err != nil {
		return nil, nil, err
	}
	return validity.Topology(t.Context(), f, reg)
}

func say(t *testing.T, reg *ops.Registry, f txtar.File) string {
	data := f.Data
	if strings.HasSuffix(f.Name, ".steps") {
		data = append([]byte(header+"  steps:\n"), data...)
	}
	_, notes, err := checked(t, data, reg)
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	for _, n := range notes {
		fmt.Fprintln(&b, "note: "+n)
	}
	return b.String() + "valid\n"
}

// TestObject holds that objects which the CRD refuses are refused, also without an API
// server.
func TestObject(t *testing.T) {
	reg := registry(t)
	for _, tt := range []struct {
		name    string
		disturb func(*v1alpha1.NetworkTopologySpec)
		want    string
	}{
		{"as it should be", func(*v1alpha1.NetworkTopologySpec) {}, ""},
		{
			"no node at a time", func(s *v1alpha1.NetworkTopologySpec) { s.Rollout.MaxUnavailable = new(intstr.FromInt32(0)) },
			`NetworkTopology "t": spec.rollout.maxUnavailable: 0 is neither a number of nodes above 0 nor a percentage from 1% to 100%`,
		},
		{
			"half a node", func(s *v1alpha1.NetworkTopologySpec) { s.Rollout.MaxUnavailable = new(intstr.FromString("1")) },
			`NetworkTopology "t": spec.rollout.maxUnavailable: 1 is neither a number of nodes above 0 nor a percentage from 1% to 100%`,
		},
		{
			"more than all", func(s *v1alpha1.NetworkTopologySpec) { s.Rollout.MaxUnavailable = new(intstr.FromString("150%")) },
			`NetworkTopology "t": spec.rollout.maxUnavailable: 150% is neither a number of nodes above 0 nor a percentage from 1% to 100%`,
		},
		{"a share", func(s *v1alpha1.NetworkTopologySpec) { s.Rollout.MaxUnavailable = new(intstr.FromString("25%")) }, ""},
		{
			"evicted when degraded", func(s *v1alpha1.NetworkTopologySpec) {
				s.OnFailure = &v1alpha1.FailurePolicy{Degraded: v1alpha1.Evict, Lost: "Evikt", After: "1.5s"}
			},
			`NetworkTopology "t": spec.onFailure.degraded: a pod that is degraded works and is not evicted: only lost may be Evict` + "\n" +
				`NetworkTopology "t": spec.onFailure.lost: "Evikt" is not one of Report, Evict, did you mean "Evict"?` + "\n" +
				`NetworkTopology "t": spec.onFailure.after: "1.5s" is not a time such as 60s, 5m or 1h`,
		},
		{
			"evicted when lost", func(s *v1alpha1.NetworkTopologySpec) {
				s.OnFailure = &v1alpha1.FailurePolicy{Degraded: v1alpha1.Report, Lost: v1alpha1.Evict, After: "90s"}
			}, "",
		},
		{
			"an empty selector", func(s *v1alpha1.NetworkTopologySpec) { s.Steps[0].Selector = &v1alpha1.Selector{} },
			`NetworkTopology "t", step "a": selector.cel: is empty: write an expression, or remove the selector`,
		},
	} {
		o := &v1alpha1.NetworkTopology{}
		text := header + "  rollout: {maxUnavailable: 1}\n  steps: [{name: a, type: sriov}]\n"
		if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
			t.Fatal(err)
		}
		tt.disturb(&o.Spec)
		_, _, err := validity.Object(t.Context(), o, reg)
		if got := fmt.Sprint(err); tt.want == "" && err != nil || tt.want != "" && got != tt.want {
			t.Errorf("%s:\ngot  %v\nwant %s", tt.name, err, tt.want)
		}
	}
}

// TestGatewayOfClaim has a route that only the address of a claim makes valid: one on the gateway's subnet.
func TestGatewayOfClaim(t *testing.T) {
	reg := registry(t)
	top, err := topology.Decode([]byte(`apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
  - {name: a, type: macvlan, config: {master: eth1, routes: [{dst: 0.0.0.0/0, gw: 192.0.2.1}]}}
  claimParameters:
  - {step: a, key: addresses, subnets: [{prefix: 192.0.2.0/24, first: 192.0.2.2}, {prefix: "2001:db8::/64"}]}
  - {step: a, key: mac, macPrefix: "02"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := validity.Check(t.Context(), top, reg); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		set   topology.Parameters
		valid bool
	}{
		{topology.Parameters{Step: "a", Addresses: []string{"192.0.2.7/24"}}, true},
		{topology.Parameters{Step: "a", Addresses: []string{"2001:db8::7/64"}}, false},
		{topology.Parameters{Step: "a", MAC: "02:00:00:00:00:07"}, false},
	} {
		_, _, err := validity.Parameters(t.Context(), top, []topology.Parameters{c.set}, reg)
		if c.valid != (err == nil) || err != nil && !strings.Contains(err.Error(), `config.routes[0].gateway: "192.0.2.1" is not on the subnet`) {
			t.Errorf("%v: %v", c.set, err)
		}
	}
}
