package all_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
)

// FuzzEdit holds the law of edits (optest.Edited) on random topologies, of which keys and steps are removed.
func FuzzEdit(f *testing.F) {
	draw(f, 400, func(t *testing.T, reg *ops.Registry, g *generator) {
		t.Helper()
		before := g.build(t)
		after, text := g.edited(t, before, g.text.String())
		if g.IntN(4) == 0 {
			before, after = after, before
		}
		edited(t, reg, before, after, nil)
		if t.Failed() {
			t.Logf("%s\nand\n%s\ngiven: %+v", g.text.String(), text, before.Given)
		}
	})
}

// FuzzEditTwice holds it for the second of two edits, which each remove some keys and steps and add others.
func FuzzEditTwice(f *testing.F) {
	draw(f, 400, func(t *testing.T, reg *ops.Registry, g *generator) {
		t.Helper()
		full := g.build(t)
		var cases [3]*optest.Case
		var texts [3]string
		for i := range cases {
			cases[i], texts[i] = full, g.text.String()
			for range g.IntN(3) {
				cases[i], texts[i] = g.edited(t, cases[i], texts[i])
			}
		}
		editedTwice(t, reg, cases)
		if t.Failed() {
			t.Logf("%s\ngiven: %+v", strings.Join(texts[:], "\nand\n"), full.Given)
		}
	})
}

// FuzzEditBeside holds it beside another topology of the pod.
func FuzzEditBeside(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, seed*7919)
	}
	reg, err := all.Registry()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		g := &generator{Rand: rand.New(rand.NewPCG(a, b))}
		have := []netstate.Object{
			netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new(""), MAC: new("00:00:00:00:00:00")},
			netstate.Sysctl{Path: "net/core/somaxconn", Value: new([]string{"128", "500"}[g.IntN(2)])},
		}
		var text [2]string
		var cases [2]*optest.Case
		for i := range cases {
			text[i] = g.ofNamespace(i)
			text[i] += fmt.Sprintf("    - {name: u, type: tuning, dependOn: [d], config: {dev: d%d%s%s%s}}\n", i, g.mtu(), g.maybe("txQLen: 9"), g.maybe("promisc: true"))
			cases[i] = &optest.Case{Topology: decode(t, text[i]), Have: have}
		}
		after, text2 := g.edited(t, cases[0], text[0])
		edited(t, reg, cases[0], after, cases[1])
		if t.Failed() {
			t.Logf("%s\nand\n%s\nbeside\n%s", text[0], text2, text[1])
		}
	})
}

func edited(t *testing.T, reg *ops.Registry, before, after, beside *optest.Case) (holds bool) {
	t.Helper()
	return accepted(t, reg, []*optest.Case{before, after}, func(ctx context.Context) error {
		return optest.Edited(ctx, t, reg, before, after, beside)
	})
}

func editedTwice(t *testing.T, reg *ops.Registry, cases [3]*optest.Case) (holds bool) {
	t.Helper()
	return accepted(t, reg, cases[:], func(ctx context.Context) error { return optest.EditedTwice(ctx, t, reg, cases[0], cases[1], cases[2]) })
}

// accepted reports whether a law was checked. It is not where a topology is refused.
func accepted(t *testing.T, reg *ops.Registry, cases []*optest.Case, law func(context.Context) error) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range cases {
		if topology.Validate(ctx, c.Topology, ops.Giving(reg, c.Given)) != nil {
			return false
		}
	}
	err := law(ctx)
	if err != nil && !errors.As(err, new(*ops.StepError)) {
		t.Error(err)
	}
	return err == nil
}

func decode(t *testing.T, text string) *topology.Topology {
	t.Helper()
	top, err := topology.Decode([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return top
}

// edited removes a few keys, and steps on which no other depends.
func (g *generator) edited(t *testing.T, c *optest.Case, text string) (*optest.Case, string) {
	t.Helper()
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	spec := doc["spec"].(map[string]any)
	after := *c
	after.Given = maps.Clone(c.Given)
	for range 1 + g.IntN(3) {
		steps := spec["steps"].([]any)
		i := g.IntN(len(steps))
		step := steps[i].(map[string]any)
		used := slices.ContainsFunc(steps, func(s any) bool {
			deps, _ := s.(map[string]any)["dependOn"].([]any)
			return slices.Contains(deps, step["name"])
		})
		config, _ := step["config"].(map[string]any)
		switch {
		case step["type"] == "vfio-pci": // a pod that runs does not get such an edit
		case !used && len(steps) > 1 && g.IntN(3) == 0:
			spec["steps"] = slices.Delete(steps, i, i+1)
			delete(after.Given, step["name"].(string))
		case len(config) > 0:
			g.removeKey(config)
		}
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	after.Topology = decode(t, string(out))
	return &after, string(out)
}

// removeKey removes a random key of an object, or of one within it. Names of links stay.
func (g *generator) removeKey(object map[string]any) {
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(object)), func(k string) bool { return strings.HasSuffix(strings.ToLower(k), "name") })
	if len(keys) == 0 {
		return
	}
	key := keys[g.IntN(len(keys))]
	inner := object[key]
	if list, ok := inner.([]any); ok && len(list) > 1 && g.IntN(2) == 0 {
		i := g.IntN(len(list))
		if entry, isObject := list[i].(map[string]any); isObject && g.IntN(2) == 0 {
			g.removeKey(entry)
		} else {
			object[key] = slices.Delete(list, i, i+1)
		}
		return
	}
	if nested, ok := inner.(map[string]any); ok && g.IntN(2) == 0 {
		g.removeKey(nested)
		return
	}
	delete(object, key)
}

// keyless are keys whose removal does not lead to what a new attachment makes, with the reason.
var keyless = map[string]string{}

// TestRemovedKeys holds the law of edits for each key of each contract: with each of its values, the key is removed.
func TestRemovedKeys(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	e := readEffects(t, reg)
	for _, typ := range effort.Sample(t, 4, reg.Types()) {
		t.Run(typ, func(t *testing.T) {
			c, _ := reg.Contract(typ)
			for _, path := range paths(c.Params) {
				if slices.Contains(namesDevice, path[0].Name) || len(path) > 1 && typ != "dummy" && shared(reg, path[0]) || path.key().Ignored != "" || path[0].Name == "require" {
					continue // as TestEveryValueCounts
				}
				t.Run(path.String(), func(t *testing.T) {
					if why := keyless[typ+": "+path.String()]; why != "" {
						t.Skip(why)
					}
					tried := 0
					for _, base := range e.bases(t.Context(), typ, path) {
						s, config := base()
						after, err := e.caseOf(s, set(config, path, nil))
						if err != nil {
							continue
						}
						for _, v := range e.values(typ, path) {
							s, config := base()
							before, err := e.caseOf(s, set(config, path, clone(v)))
							if err != nil || !edited(t, reg, before, after, nil) {
								continue
							}
							tried++
							if t.Failed() {
								t.Fatalf("%s: without %v", s.text, v)
							}
						}
						if tried > 1 {
							return
						}
					}
				})
			}
		})
	}
}

// TestEditedBridge holds it for a bridge of the sandbox, which the kernel changes by itself with its ports.
func TestEditedBridge(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const ports = "  - {name: a, type: dummy, config: {name: a0}}\n  - {name: b, type: dummy, config: {name: b0}}\n"
	configs := []string{
		"addresses: [192.0.2.5/24]", "mtu: 1400, addresses: [192.0.2.5/24]", "promiscMode: true", "mtu: 1500", "vlan: 5",
		"hairpinMode: true, portIsolation: true, vlanTrunk: [{id: 5}]", "mac: \"02:00:00:00:00:01\"",
	}
	for _, before := range configs {
		for _, after := range configs {
			version := func(config string) *optest.Case {
				return &optest.Case{Topology: steps(t, ports+"  - {name: c, type: bridge, dependOn: [a, b], config: {name: c0, "+config+"}}\n")}
			}
			if !edited(t, reg, version(before), version(after), nil) || t.Failed() {
				t.Fatalf("%s, edited to %s", before, after)
			}
		}
	}
}

// TestEditedBelow holds it for links that are made again on a link whose MTU grows in the same edit.
func TestEditedBelow(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const mac = `mac: "02:00:00:00:00:07"`
	for typ, key := range map[string]string{"vlan": "id: 7", "macvlan": "mode: bridge"} {
		version := func(below, above string) *optest.Case {
			return &optest.Case{Topology: steps(t, "  - {name: c, type: dummy, config: {name: c0"+below+"}}\n"+
				"  - {name: v, type: "+typ+", dependOn: [c], config: {name: v0, "+key+above+"}}\n")}
		}
		before, after := version(", mtu: 1400", ", mtu: 1300, "+mac), version("", "")
		small, large := version(", mtu: 1400", ""), version(", mtu: 9000", "") // which the link above follows
		for _, edit := range [][2]*optest.Case{
			{before, after}, {after, before}, {small, large}, {large, small}, {small, after}, {after, large}, {large, before},
		} {
			if !edited(t, reg, edit[0], edit[1], nil) || t.Failed() {
				t.Fatalf("%s: edited from %+v", typ, edit[0].Topology.Steps)
			}
		}
	}
}

// TestEditedPort holds it for links that stand on others and are in a bond, of which the MTU or the mode changes.
func TestEditedPort(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const leased = "ipam: {type: dhcp, request: [{option: interface-mtu}]}"
	ports := map[string]string{
		"vlan":               "type: vlan, dependOn: [c], config: {name: v0, id: 7}",
		"a vlan of a tunnel": "type: vlan, dependOn: [x], config: {name: v0, id: 7}",
		"leased":             "type: dummy, config: {name: v0, " + leased + "}",
		"a leased device":    "type: host-device, config: {name: v0, " + leased + "}",
		"a leased tunnel":    "type: vxlan, dependOn: [c], config: {name: v0, id: 8, " + leased + "}",
	}
	bonds := []string{"", "mode: active-backup", "mode: balance-rr, mtu: 1280", "mode: active-backup, mtu: 1400", "mode: balance-xor, mtu: 9000"}
	for name, port := range ports {
		given := ops.Givens{}
		if strings.Contains(port, "host-device") {
			given = given.WithDevices(map[string]string{"v": "0000:01:10.0"})
		}
		for _, before := range bonds {
			for _, after := range bonds {
				version := func(bond string) *optest.Case {
					text := "  - {name: c, type: dummy, config: {name: c0}}\n  - {name: d, type: dummy, config: {name: d0}}\n" +
						"  - {name: x, type: vxlan, dependOn: [c], config: {name: x0, id: 9}}\n  - {name: v, " + port + "}\n"
					if bond != "" {
						text += "  - {name: b, type: bond, dependOn: [d, v], config: {name: b0, " + bond + "}}\n"
					}
					return &optest.Case{Topology: steps(t, text), Have: vf(0), Given: given}
				}
				// A bond of the default MTU on a tunnel is refused.
				if !edited(t, reg, version(before), version(after), nil) && !strings.Contains(name, "tunnel") || t.Failed() {
					t.Fatalf("%s: %q, edited to %q", name, before, after)
				}
			}
		}
	}
}

// TestEditedIPv6 holds it for a link that is large enough for IPv6 before an edit, or after it.
func TestEditedIPv6(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	configs := []string{
		"", ", mtu: 1000", ", mtu: 1000, addresses: [192.0.2.5/24]", `, mtu: 1400, addresses: ["2001:db8::5/64"]`, `, addresses: ["2001:db8::5/64"]`,
	}
	for _, before := range configs {
		for _, after := range configs {
			version := func(config string) *optest.Case {
				return &optest.Case{
					Topology: steps(t, "  - {name: c, type: dummy, config: {name: c0"+config+"}}\n"+
						"  - {name: v, type: vlan, dependOn: [c], config: {name: v0, id: 7}}\n"),
					Have: []netstate.Object{netstate.Sysctl{Path: "net/ipv6/conf/default/accept_ra", Value: new("1")}},
				}
			}
			if !edited(t, reg, version(before), version(after), nil) || t.Failed() {
				t.Fatalf("%q, edited to %q", before, after)
			}
		}
	}
}

// TestRemovedSteps holds it for each step of each case on which no other depends.
func TestRemovedSteps(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	e := readEffects(t, reg)
	for _, s := range e.starts {
		before, err := e.caseOf(s, s.config())
		if err != nil || len(before.Topology.Steps) < 2 {
			continue
		}
		after := *before
		name := before.Topology.Steps[s.step].Name
		top := *before.Topology
		top.Steps = slices.Delete(slices.Clone(top.Steps), s.step, s.step+1)
		after.Topology, after.Given = &top, maps.Clone(before.Given)
		delete(after.Given, name)
		t.Run(s.typ+" "+s.file, func(t *testing.T) {
			edited(t, reg, before, &after, nil)
			if t.Failed() {
				t.Logf("%s: without %s", s.text, name)
			}
		})
	}
}
