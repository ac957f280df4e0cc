package kernel

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
)

// layer is a link on others: as a step, and as the commands that make it.
type layer struct{ step, commands string }

// lowers are created from the dummies d0 and e0, under the name low0; "dummy" is d0.
var lowers = map[string]layer{
	"dummy":   {"", ""},
	"bond":    {"{name: low, type: bond, dependOn: [d, e], config: {name: low0, mode: active-backup, miimon: 100}}", "link add low0 type bond mode active-backup miimon 100; link set d0 master low0; link set e0 master low0; link set low0 up"},
	"bridge":  {"{name: low, type: bridge, dependOn: [d], config: {bridge: low0}}", "link add low0 type bridge; link set d0 master low0; link set low0 up"},
	"ipvlan":  {"{name: low, type: ipvlan, dependOn: [d], config: {name: low0}}", "link set d0 up; link add low0 link d0 type ipvlan mode l2; link set low0 up"},
	"macvlan": {"{name: low, type: macvlan, dependOn: [d], config: {name: low0}}", "link set d0 up; link add low0 link d0 type macvlan mode bridge; link set low0 up"},
	"ptp":     {"{name: low, type: ptp, config: {name: low0}}", "link add low0 type veth peer name peer0; link set low0 up"},
	"vlan":    {"{name: low, type: vlan, dependOn: [d], config: {name: low0, id: 5}}", "link set d0 up; link add low0 link d0 type vlan id 5; link set low0 up"},
	"vxlan":   {"{name: low, type: vxlan, dependOn: [d], config: {name: low0, id: 5, remote: 192.0.2.6}}", "link set d0 up; link add low0 type vxlan id 5 dev d0 remote 192.0.2.6 dstport 4789; link set low0 up"},
	"vrf":     {"{name: low, type: vrf, dependOn: [d], config: {vrfname: low0, table: 9}}", "link add low0 type vrf table 9; link set d0 master low0; link set low0 up"},
}

// uppers stand on the link TARGET, of the step STEP, under the name up0.
var uppers = map[string]layer{
	"bond":    {"{name: up, type: bond, dependOn: [STEP, f], config: {name: up0, mode: active-backup, miimon: 100, links: [TARGET, f0]}}", "link add up0 type bond mode active-backup miimon 100; link set TARGET down; link set TARGET master up0; link set f0 master up0; link set up0 up"},
	"bridge":  {"{name: up, type: bridge, dependOn: [STEP], config: {bridge: up0}}", "link add up0 type bridge; link set TARGET master up0; link set up0 up"},
	"ipvlan":  {"{name: up, type: ipvlan, dependOn: [STEP], config: {name: up0, master: TARGET}}", "link add up0 link TARGET type ipvlan mode l2; link set up0 up"},
	"macvlan": {"{name: up, type: macvlan, dependOn: [STEP], config: {name: up0, master: TARGET}}", "link add up0 link TARGET type macvlan mode bridge; link set up0 up"},
	"vlan":    {"{name: up, type: vlan, dependOn: [STEP], config: {name: up0, id: 7, master: TARGET}}", "link add up0 link TARGET type vlan id 7; link set up0 up"},
	"vxlan":   {"{name: up, type: vxlan, dependOn: [STEP], config: {name: up0, id: 7, master: TARGET}}", "link add up0 type vxlan id 7 dev TARGET dstport 4789; link set up0 up"},
	"vrf":     {"{name: up, type: vrf, dependOn: [STEP], config: {vrfname: up0, table: 10, interfaces: [TARGET]}}", "link add up0 type vrf table 10; link set TARGET master up0; link set up0 up"},
}

// masters are the types that take d0 in. Two of them contradict each other, and the
// kernel does the last part.
var masters = map[string]bool{"bond": true, "bridge": true, "vrf": true}

// moved are the pairs that the kernel takes and makes something else of: the upper
// link stands on what the lower one stands on, so that no plan of it converges.
var moved = map[string]bool{"ipvlan on low0 of ipvlan": true, "macvlan on low0 of macvlan": true}

// TestStackedPairs compares planner and kernel for each type of link on each
// other, and on what is below that: what is refused in advance the kernel refuses,
// and anything else is created and verified. The short form takes every eighth lower one.
func TestStackedPairs(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, low := range effort.Sample(t, 8, slices.Sorted(maps.Keys(lowers))) {
		lower := lowers[low]
		for up, upper := range uppers {
			for _, target := range []string{"low0", "d0"} {
				step := map[string]string{"low0": "low", "d0": "d"}[target]
				if low == "dummy" && target == "low0" || low == "vrf" && up == "bridge" && target == "low0" {
					continue // there is no such link; no step can name it
				}
				if target == "d0" && masters[low] && masters[up] {
					continue
				}
				name := fmt.Sprintf("%s on %s of %s", up, target, low)
				t.Run(name, func(t *testing.T) {
					fill := strings.NewReplacer("TARGET", target, "STEP", step)
					steps := "    - {name: d, type: dummy, config: {name: d0}}\n    - {name: e, type: dummy, config: {name: e0}}\n    - {name: f, type: dummy, config: {name: f0}}\n"
					if lower.step != "" {
						steps += "    - " + lower.step + "\n"
					}
					steps += "    - " + fill.Replace(upper.step) + "\n"
					top, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n" + steps))
					if err != nil {
						t.Fatal(err)
					}
					path := newNetns(t)
					if refusal := topology.Validate(t.Context(), top, reg); refusal != nil {
						said, err := commands(path, "link add d0 type dummy; link add e0 type dummy; link add f0 type dummy; "+lower.commands+"; "+fill.Replace(upper.commands))
						if err == nil && !moved[name] {
							t.Errorf("refused in advance, and the kernel takes it: %v\n%s", refusal, said)
						}
						return
					}
					r := newLane(t).engine(nil)
					sandbox := reconcile.Sandbox{ID: "t/t", Netns: path, Topology: top}
					if _, err := r.Ensure(ctxFor(t), sandbox); err != nil {
						t.Errorf("accepted in advance, and the kernel refuses it: %v", err)
						return
					}
					if again, err := r.Ensure(ctxFor(t), sandbox); err != nil || !again.Unchanged {
						t.Errorf("applied again: %v %v", again.Changes, err)
					}
				})
			}
		}
	}
}

// commands runs ip in a namespace until one fails.
func commands(path, list string) (string, error) {
	for command := range strings.SplitSeq(list, ";") {
		args := strings.Fields(command)
		if len(args) == 0 {
			continue
		}
		if out, err := exec.Command("ip", append([]string{"-n", filepath.Base(path)}, args...)...).CombinedOutput(); err != nil {
			return command + ": " + string(out), err
		}
	}
	return "", nil
}
