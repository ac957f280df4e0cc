package graph_test

import (
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/graph"
)

var update = flag.Bool("update", false, "rewrite the golden files under testdata")

func step(name, typ string, deps ...string) topology.Step {
	return topology.Step{Name: name, Type: typ, DependOn: deps}
}

// flagship has two VFs near a GPU, a bond and two VLANs, each tuned.
func flagship() *topology.Topology {
	return &topology.Topology{Name: "ai-bonded-rdma", Steps: []topology.Step{
		step("vf0", "sriov"), step("vf1", "sriov"), step("bond0", "bond", "vf0", "vf1"),
		step("data-vlan", "vlan", "bond0"), step("mgmt-vlan", "vlan", "bond0"),
		step("tune-data", "tuning", "data-vlan"), step("tune-mgmt", "tuning", "mgmt-vlan"),
	}}
}

// crossed has edges that span layers, edges declared so that they cross, and a separate
// component.
func crossed() *topology.Topology {
	return &topology.Topology{Name: "crossed", Steps: []topology.Step{
		step("a", "sriov"), step("b", "sriov"), step("c", "sriov"),
		step("a1", "vlan", "c"), step("b1", "vlan", "b"), step("c1", "vlan", "a"),
		step("all", "bond", "a1", "b1", "c1"),
		step("far", "tuning", "all", "a", "c"),
		step("alone", "vfio-pci"),
	}}
}

func TestRender(t *testing.T) {
	status := map[string]graph.Status{
		"vf0": {Word: graph.OK}, "vf1": {Word: graph.OK}, "bond0": {Word: graph.OK}, "tune-data": {Word: graph.Pending},
		"data-vlan": {Word: "drifted", Notes: []string{"link \"data0\" is <missing>", `its link is gone: no such device "data0"`}},
	}
	for _, tt := range []struct {
		name   string
		top    *topology.Topology
		status map[string]graph.Status
	}{
		{"flagship", flagship(), nil},
		{"flagship-status", flagship(), status},
		{"crossed", crossed(), nil},
	} {
		for _, format := range graph.Formats() {
			t.Run(tt.name+"."+format, func(t *testing.T) {
				got, err := graph.Render(tt.top, format, tt.status)
				if err != nil {
					t.Fatal(err)
				}
				file := filepath.Join("testdata", tt.name+"."+format)
				if *update {
					if err := os.MkdirAll("testdata", 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		}
	}
}

// TestRenderOddities renders names that no valid topology has, as a well-formed SVG, and
// huge graphs.
func TestRenderOddities(t *testing.T) {
	odd := &topology.Topology{Name: "<\"&'>", Steps: []topology.Step{
		step("<b>\x00\n", "\"", ""), step("", "]]>"), step(strings.Repeat("x", 500), "\\", "<b>\x00\n"),
	}}
	complete := &topology.Topology{Name: "complete"}
	for i := range 128 {
		s := step(fmt.Sprintf("s%d", i), "t")
		for j := range i {
			s.DependOn = append(s.DependOn, fmt.Sprintf("s%d", j))
		}
		complete.Steps = append(complete.Steps, s)
	}
	for _, top := range []*topology.Topology{odd, complete, {Name: "empty"}} {
		for _, format := range graph.Formats() {
			got, err := graph.Render(top, format, map[string]graph.Status{"": {Word: "<>", Notes: []string{"]]>", "\x00"}}})
			if err != nil {
				t.Fatal(err)
			}
			if format == graph.SVG {
				wellFormed(t, got)
			}
		}
	}
}

func wellFormed(t *testing.T, s string) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(s))
	for {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
	}
}

func TestRenderRefuses(t *testing.T) {
	_, err := graph.Render(flagship(), "svgg", nil)
	if want := `unknown format "svgg": known formats are mermaid, dot, svg`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	loop := &topology.Topology{Name: "loop", Steps: []topology.Step{step("a", "t", "b"), step("b", "t", "a")}}
	if _, err := graph.Render(loop, graph.SVG, nil); !errors.As(err, new(*topology.Invalid)) {
		t.Errorf("got %v, want the cycle", err)
	}
}
