package all_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
)

// FuzzKeys holds the laws on random topologies in which random keys of contracts have values that other topologies give them.
func FuzzKeys(f *testing.F) {
	fuzzKeys(f, func(t *testing.T, reg *ops.Registry, g *generator, _, c *optest.Case) {
		t.Helper()
		if topology.Validate(t.Context(), c.Topology, reg) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := optest.Hold(ctx, t, reg, c, g.others, g.drift)
		if err != nil && !errors.As(err, new(*ops.StepError)) {
			t.Error(err)
		}
	})
}

// FuzzEditKeys holds the law of edits on random topologies, of which random keys are set.
func FuzzEditKeys(f *testing.F) {
	fuzzKeys(f, func(t *testing.T, reg *ops.Registry, _ *generator, before, after *optest.Case) {
		t.Helper()
		edited(t, reg, before, after, nil)
	})
}

// fuzzKeys draws topologies, and sets keys of them.
func fuzzKeys(f *testing.F, hold func(t *testing.T, reg *ops.Registry, g *generator, before, after *optest.Case)) {
	f.Helper()
	var e *effects
	draw(f, 100, func(t *testing.T, reg *ops.Registry, g *generator) {
		t.Helper()
		if e == nil { // inputs run one after the other
			e = readEffects(t, reg)
		}
		before := g.build(t)
		text := g.withKeys(t, e)
		top, err := topology.Decode([]byte(text))
		if err != nil {
			return
		}
		after := *before
		after.Topology = top
		hold(t, reg, g, before, &after)
		if t.Failed() {
			t.Logf("%s\nand\n%s\ngiven: %+v", g.text.String(), text, before.Given)
		}
	})
}

// unobserved are keys of devices whose values the random world does not have.
var unobserved = []string{"promisc", "allmulti"}

// withKeys is the topology that was drawn, with a few keys set.
func (g *generator) withKeys(t *testing.T, e *effects) string {
	t.Helper()
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(g.text.String()), &doc); err != nil {
		t.Fatal(err)
	}
	steps := doc["spec"].(map[string]any)["steps"].([]any)
	for range 1 + g.IntN(4) {
		step := steps[g.IntN(len(steps))].(map[string]any)
		typ := step["type"].(string)
		c, _ := e.reg.Contract(typ)
		keys := slices.DeleteFunc(paths(c.Params), func(p place) bool {
			return slices.Contains(namesDevice, p[0].Name) || slices.Contains(unobserved, p[0].Name) || p.key().Ignored != "" || p[0].Name == "require"
		})
		if len(keys) == 0 {
			continue
		}
		key := keys[g.IntN(len(keys))]
		if values := e.values(typ, key); len(values) > 0 {
			step["config"] = set(step["config"], key, clone(values[g.IntN(len(values))]))
		}
		config, _ := step["config"].(map[string]any)
		if ipam, _ := config["ipam"].(map[string]any); ipam["type"] == "slaac" && config["dad"] == "wait" {
			delete(config, "dad") // the world has no router to wait for
		}
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
