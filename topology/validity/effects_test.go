package validity_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/failures"
	"github.com/plumbline/plumbline/reconcile/pod/primary"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/pluginschema"
	pluginv1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// madeOfTopology is the output of the controller, the agent's decisions and the engine for a topology.
func madeOfTopology(t *testing.T, spec string) string {
	t.Helper()
	o := &v1alpha1.NetworkTopology{}
	read(t, spec, o)
	o.Generation = 5
	set, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	topo, notes, err := validity.Object(t.Context(), o, set)
	if err != nil {
		return err.Error()
	}
	classes := controller.Classes(o, topo, set)
	run := func(node string) controller.Run {
		r := controller.Run{Claim: node, PodUID: types.UID(node), Reported: claim.Reported{Node: node}}
		r.Generation = o.Generation - 1
		return r
	}
	status := controller.StatusOf(o, controller.Outcome{Use: controller.Use{Runs: []controller.Run{run("n1"), run("n2")}}})
	for i := range status.Conditions {
		status.Conditions[i].LastTransitionTime = metav1.Time{} // of the clock
	}
	var chosen []string
	for _, namespace := range []string{"ns", "other"} {
		if o.Spec.ClaimTemplate != nil && controller.Chooses(o.Spec.ClaimTemplate, namespace, map[string]string{"team": map[string]string{"ns": "a", "other": "b"}[namespace]}) {
			chosen = append(chosen, namespace)
		}
	}
	out := []any{notes, classes, claim.Template(topo, set, "ns"), status, chosen, primary.Selects(o, map[string]string{"pool": "a"}), tainted(o), told(t, set, topo), settable(topo)}
	if len(classes) == 0 && o.Spec.Role == "" { // the others need devices
		out = append(out, repaired(t, set, topo))
	}
	return asText(t, out...)
}

// told has the variables of containers for an interface with an address.
func told(t *testing.T, set contract.Set, topo *topology.Topology) []topology.Variable {
	t.Helper()
	result := topology.Result{
		Interfaces: []topology.Interface{{Name: "d0", MAC: "02:00:00:00:00:01", Sandbox: "/n"}},
		IPs:        []topology.IP{{Address: "192.0.2.1/24", Interface: new(0)}},
	}
	out, err := topo.Variables(set, []topology.StepResult{{Name: "d", Result: result}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// settable are those of some parameters that a claim may set.
func settable(topo *topology.Topology) (out []string) {
	for _, p := range []topology.Parameters{
		{Step: "a", MAC: "02:00:00:00:00:01"},
		{Step: "a", MAC: "04:00:00:00:00:01"},
		{Step: "b", MAC: "02:00:00:00:00:01"},
		{Step: "a", Name: "a"},
		{Step: "a", Name: "b"},
		{Step: "a", Addresses: []string{"10.0.0.5"}},
		{Step: "a", Addresses: []string{"10.0.0.200"}},
		{Step: "a", Addresses: []string{"10.0.1.5"}},
	} {
		if permitted, err := topo.Permitted([]topology.Parameters{p}); err == nil {
			out = append(out, fmt.Sprint(permitted))
		}
	}
	return out
}

// tainted returns the taint of a device in a pod that is down for as long as the topology's onFailure says.
func tainted(o *v1alpha1.NetworkTopology) (out []string) {
	c := claims.Claim{UID: "c1", Topologies: []claims.Topology{{Object: *o, Devices: []claims.Device{{Device: claim.Device{Step: "d", Name: "dev"}}}}}}
	for _, severity := range []ports.Severity{ports.Degraded, ports.Lost} {
		now := time.Unix(0, 0)
		tracker := failures.New(failures.Options{
			Claim: func(types.UID) (claims.Claim, bool) { return c, true },
			InUse: func() []string { return []string{"dev"} }, Changed: func() {}, Now: func() time.Time { return now },
		})
		tracker.Report(ports.Report{Sandbox: reconcile.IDOfClaim("s", "c1", o.Name), Topology: &topology.Topology{Name: o.Name}, Outcome: ports.Outcome{Devices: map[string]ports.Severity{"d": severity}}})
		for range 2 {
			now = now.Add(time.Minute)
			out = append(out, fmt.Sprintf("%+v", tracker.Failing()))
		}
	}
	return out
}

// repaired is a sandbox of the topology's steps, by our model of the kernel, after a change from outside and a repair.
func repaired(t *testing.T, set *ops.Registry, topo *topology.Topology) string {
	t.Helper()
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := modelled{netstate.NewSnapshot(
		netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), MTU: new(uint32(65536)), Master: new("")},
		netstate.Link{Name: "ext0", LinkKind: "veth", Up: new(true), MTU: new(uint32(1500)), Master: new("")},
		netstate.Route{Link: "ext0", Dst: "0.0.0.0/0", Gateway: "192.0.2.1", Table: netstate.TableMain, Protocol: 3},
	)}
	engine := reconcile.New(reconcile.Options{
		Registry: set, Store: store, BootID: "b", Patience: time.Nanosecond,
		Open: func(string) (reconcile.Domain, error) { return m, nil },
	})
	sandbox := reconcile.Sandbox{ID: "s/t", Netns: "/run/netns/s", Topology: topo}
	if _, err := engine.Ensure(t.Context(), sandbox); err != nil {
		return err.Error()
	}
	links := func() (out []string) {
		for _, l := range netstate.All[netstate.Link](m.Snapshot) {
			out = append(out, fmt.Sprint(l.Name, " ", *l.MTU))
		}
		slices.Sort(out)
		return out
	}
	applied := links()
	if l, ok := m.Link("d0"); ok {
		before := l
		l.MTU = new(uint32(1280))
		m.Snapshot.Apply(netstate.Change{Before: before, After: l})
	}
	_, err = engine.Repair(t.Context(), sandbox.ID)
	return fmt.Sprint(applied, links(), err)
}

// modelled is the kernel's domain as package netstate models it.
type modelled struct{ *netstate.Snapshot }

func (m modelled) Observe(ctx context.Context, queried []netstate.Object) (*netstate.Snapshot, error) {
	seen := netstate.NewSnapshot(netstate.All[netstate.Object](m.Snapshot)...)
	return seen, m.Extend(ctx, seen, queried)
}

func (m modelled) Extend(_ context.Context, seen *netstate.Snapshot, queried []netstate.Object) error {
	for _, o := range queried {
		if _, written := m.Get(o.Key()); written {
			continue
		}
		if sysctl, ok := o.(netstate.Sysctl); ok {
			seen.Put(netstate.Sysctl{Path: sysctl.Path, Value: new("0")})
		} else if !seen.Known(o) {
			seen.PutAbsent(o.Key())
		}
	}
	return nil
}

func (m modelled) Apply(_ context.Context, c netstate.Change) error {
	m.Snapshot.Apply(c)
	return nil
}

func (modelled) NetnsID() reconcile.NetnsID { return reconcile.NetnsID{Inode: 1} }
func (modelled) Close() error               { return nil }

// madeOfSchema is how plumbline reads configs and results of the step type that a CNIPluginSchema describes.
func madeOfSchema(t *testing.T, spec string) string {
	t.Helper()
	o := &pluginv1alpha1.CNIPluginSchema{}
	read(t, spec, o)
	set, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	known, problems := pluginschema.Known(set, []pluginv1alpha1.CNIPluginSchema{*o})
	if len(problems) > 0 {
		return fmt.Sprint(problems)
	}
	c, _ := known.Contract("x")
	return asText(t, c.Type, c.Summary, c.Params, fmt.Sprintf("%+v", c.Input), c.Output, c.Additional, c.Explain, c.ExplainTo)
}

// schemaFields are the fields of a CNIPluginSchema, in which lists of parameters are three times.
func schemaFields() map[string]field {
	out := map[string]field{
		"cniType":                              {`cniType: x`, `cniType: y`},
		"description":                          {`cniType: x`, `cniType: x, description: A sentence.`},
		"input.device":                         {`cniType: x`, `cniType: x, input: {device: false}`},
		"input.prevResult.required":            {`cniType: x, input: {device: false}`, `cniType: x, input: {device: false, prevResult: {required: true}}`},
		"input.prevResult.interfaces.minItems": {`cniType: x, input: {device: false}`, `cniType: x, input: {device: false, prevResult: {interfaces: {minItems: 1}}}`},
		"input.prevResult.interfaces.maxItems": {`cniType: x, input: {device: false}`, `cniType: x, input: {device: false, prevResult: {interfaces: {maxItems: 1}}}`},
		"input.prevResult.ips.required":        {`cniType: x, input: {device: false}`, `cniType: x, input: {device: false, prevResult: {ips: {required: true}}}`},
		"input.prevResult.routes.required":     {`cniType: x, input: {device: false}`, `cniType: x, input: {device: false, prevResult: {routes: {required: true}}}`},
		"output.devices.appends":               {`cniType: x, output: {devices: {appends: 1}}`, `cniType: x, output: {devices: {appends: []}}`},
		"configParameters.additional":          {`cniType: x`, `cniType: x, configParameters: {additional: true}`},
		"output.explain":                       {`cniType: x`, `cniType: x, output: {explain: A sentence.}`},
		"output.explainTo[].cniType":           {`cniType: x, output: {explainTo: [{cniType: a, explain: A sentence.}]}`, `cniType: x, output: {explainTo: [{cniType: b, explain: A sentence.}]}`},
		"output.explainTo[].explain":           {`cniType: x, output: {explainTo: [{cniType: a, explain: A sentence.}]}`, `cniType: x, output: {explainTo: [{cniType: a, explain: Another one.}]}`},
	}
	for _, list := range []string{"interfaces", "ips", "routes"} {
		with := func(key string) field {
			return field{`cniType: x, output: {` + list + `: {}}`, `cniType: x, output: {` + list + `: {` + key + `}}`}
		}
		out["output."+list+".appends"], out["output."+list+".passthrough"] = with("appends: 1"), with("passthrough: true")
		out["output."+list+".modifies"], out["output."+list+".conditional"] = with("modifies: true"), with("conditional: true")
	}
	parameter := map[string]field{
		"name":               {`name: pciAddress, type: string`, `name: iommuGroup, type: string`},
		"type":               {`type: string`, `type: integer`},
		"description":        {`type: string`, `type: string, description: A sentence.`},
		"aliases[]":          {`type: string`, `type: string, aliases: [other]`},
		"format":             {`type: string`, `type: string, format: mac`},
		"enum[]":             {`type: string`, `type: string, enum: [one]`},
		"default":            {`type: string`, `type: string, default: one`},
		"minimum":            {`type: integer`, `type: integer, minimum: 1`},
		"maximum":            {`type: integer`, `type: integer, maximum: 1`},
		"minItems":           {`type: "[]string"`, `type: "[]string", minItems: 1`},
		"maxItems":           {`type: "[]string"`, `type: "[]string", maxItems: 1`},
		"required":           {`type: string`, `type: string, required: true`},
		"properties[]":       {`type: object`, `type: object, properties: {a: {type: string}}`},
		"items.format":       {`type: "[]string"`, `type: "[]string", items: {format: mac}`},
		"items.enum[]":       {`type: "[]string"`, `type: "[]string", items: {enum: [one]}`},
		"items.minimum":      {`type: "[]integer"`, `type: "[]integer", items: {minimum: 1}`},
		"items.maximum":      {`type: "[]integer"`, `type: "[]integer", items: {maximum: 1}`},
		"items.minItems":     {`type: "[][]string"`, `type: "[][]string", items: {minItems: 1}`},
		"items.maxItems":     {`type: "[][]string"`, `type: "[][]string", items: {maxItems: 1}`},
		"items.items":        {`type: "[][]string"`, `type: "[][]string", items: {items: {format: mac}}`},
		"items.properties[]": {`type: "[]object"`, `type: "[]object", items: {properties: {a: {type: string}}}`},
	}
	for _, list := range []string{"configParameters.required", "configParameters.optional", "output.devices.properties"} {
		open, end := map[string]string{"c": "configParameters: {" + list[len("configParameters."):] + ": [{", "o": "output: {devices: {properties: [{"}[list[:1]], map[string]string{"c": "}]}", "o": "}]}}"}[list[:1]]
		for name, f := range parameter {
			with := func(what string) string {
				if name != "name" {
					what = "name: pciAddress, " + what
				}
				return "cniType: x, " + open + what + end
			}
			out[list+"[]."+name] = field{with(f.without), with(f.with)}
		}
	}
	maps.DeleteFunc(out, func(path string, _ field) bool { return path == "configParameters.required[].required" })
	return out
}
