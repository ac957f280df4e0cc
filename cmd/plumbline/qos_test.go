package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/tc"
	"github.com/plumbline/plumbline/reconcile"
)

// TestExplained: the rule is named that decides about a packet, with its mark and limit, and what limits a fragment before that.
func TestExplained(t *testing.T) {
	port := qos.Rule{Precedence: 10001, Index: 1, DSCP: 26, RateKbit: 8000, Any: true, Ports: []qos.Port{{Protocol: qos.TCP, Port: 443}}}
	all := qos.Rule{Precedence: 10000, DSCP: 8, Any: true}
	for i, r := range []*qos.Rule{&port, &all} {
		r.Policy.Namespace, r.Policy.Name, r.Index = "ai", "a", 1-i
	}
	compiled, err := tc.Compile([]qos.Rule{port, all}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := &reconcile.Record{Sandbox: reconcile.Sandbox{ID: "blue/t", Rules: ops.Rules{Filters: compiled.Objects()}}}
	for _, link := range []string{"net2", "net1"} {
		for _, f := range compiled.Objects() {
			f.Link, f.Rule = link, "its earlier name"
			rec.History = append(rec.History, netstate.Change{Step: "s", After: f})
		}
	}
	for to, want := range map[string]string{
		"10.0.0.5:443/tcp":         "ai/a[1] decides: dscp 26, limit 8000 kbit/s",
		"[2001:db8::5]:443/udp":    "ai/a[0] decides: dscp 8",
		"10.0.0.5":                 "ai/a[0] decides: dscp 8",
		"10.0.0.5:80/tcp fragment": "ai/a[0] decides: dscp 8; as a fragment also within the limit of ai/a[1], 8000 kbit/s",
	} {
		text, fragment := strings.CutSuffix(to, " fragment")
		packet, err := tc.ParsePacket(text)
		if err != nil {
			t.Fatal(err)
		}
		packet.Fragment = fragment
		x, err := explainRecord(rec, packet)
		if have := x.lines(); err != nil || !slices.Equal(have, []string{"blue/t: net1: " + want, "blue/t: net2: " + want}) {
			t.Errorf("%s: %q, %v, want %q", to, have, err, want)
		}
	}
	for want, sb := range map[string]reconcile.Sandbox{
		"blue/t: no rule covers it":                         {ID: "blue/t"},
		"blue/t: rules that OVN enforces are not evaluated": {ID: "blue/t", Rules: ops.Rules{LogicalRules: make([]netstate.LogicalRule, 1)}},
	} {
		x, err := explainRecord(&reconcile.Record{Sandbox: sb}, qos.Packet{})
		if have := x.lines(); err != nil || !slices.Equal(have, []string{want}) {
			t.Errorf("%q, %v, want %q", have, err, want)
		}
	}
}

// TestExplainedJSON: scripts have what people are told, and null where no rule decides.
func TestExplainedJSON(t *testing.T) {
	port := qos.Rule{Precedence: 10001, Index: 1, DSCP: 0, RateKbit: 8000, Any: true, Ports: []qos.Port{{Protocol: qos.TCP, Port: 443}}}
	port.Policy.Namespace, port.Policy.Name = "ai", "a"
	compiled, err := tc.Compile([]qos.Rule{port}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := &reconcile.Record{Sandbox: reconcile.Sandbox{ID: "blue/t", Rules: ops.Rules{Filters: compiled.Objects()}}}
	for _, f := range compiled.Objects() {
		f.Link = "net1"
		rec.History = append(rec.History, netstate.Change{Step: "s", After: f})
	}
	for to, want := range map[string]string{
		"10.0.0.5:443/tcp": `{"sandbox":"blue/t","interfaces":[{"interface":"net1","decides":{"rule":"ai/a[1]","dscp":0,"limitKbit":8000},"within":[]}],"ovn":false}`,
		"10.0.0.5:80/tcp":  `{"sandbox":"blue/t","interfaces":[{"interface":"net1","decides":null,"within":[]}],"ovn":false}`,
	} {
		packet, err := tc.ParsePacket(to)
		if err != nil {
			t.Fatal(err)
		}
		x, err := explainRecord(rec, packet)
		if err != nil {
			t.Fatal(err)
		}
		if have, err := json.Marshal(x); err != nil || string(have) != want {
			t.Errorf("%s: %s, %v, want %s", to, have, err, want)
		}
	}
}
