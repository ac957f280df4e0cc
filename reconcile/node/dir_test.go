package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
)

const topologyFile = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: ai}
spec:
  steps:
  - {name: a, type: dummy}
`

// inline is a file that describes a topology "ai" of one dummy in a namespace.
func inline(netns, config string) string {
	return "netns: " + netns + "\ntopology:\n  apiVersion: networking.dra.io/v1alpha1\n  kind: NetworkTopology\n  metadata: {name: ai}\n" +
		"  spec:\n    steps:\n    - {name: a, type: dummy, config: {" + config + "}}\n"
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadDir(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, elsewhere, map[string]string{"far.yaml": topologyFile})
	write(t, dir, map[string]string{
		"blue.yaml":    "netns: blue\ntopologyFile: ai.yaml\ndevices: {a: eth0}\n",
		"far.yaml":     "netns: far\ntopologyFile: " + elsewhere + "/far.yaml\n",
		"red.yaml":     inline("/proc/7/ns/net", ""),
		"given.yaml":   "netns: given\ntopologyFile: ai.yaml\naddresses: {a: [192.0.2.5/24, \"2001:DB8::5/64\"]}\n",
		"twice.yaml":   inline("/run/netns/blue", "mtu: 1400"),
		"ai.yaml":      topologyFile, // not a sandbox
		"role.yaml":    strings.NewReplacer("spec:\n", "spec:\n    role: primary\n", "dummy", "ptp, allowDuplicate: true").Replace(inline("role", "isDefaultGateway: true, addresses: [192.0.2.9/24]")),
		"notes.txt":    "not a sandbox",
		".hidden.yaml": "not a sandbox",

		"broken-address.yaml": "netns: x\ntopologyFile: ai.yaml\naddresses: {a: [192.0.2.5]}\n",
		"broken-both.yaml":    inline("x", "") + "topologyFile: ai.yaml\n",
		"broken-field.yaml":   "netns: x\ntopologyFyle: ai.yaml\n",
		"broken-file.yaml":    "netns: blue\ntopologyFile: missing.yaml\n",
		"broken-netns.yaml":   "netns: ..\ntopologyFile: ai.yaml\n",
		"broken-given.yaml":   "netns: x\ntopologyFile: ai.yaml\naddresses: {b: [192.0.2.5/24]}\n",
		"broken-neither.yaml": "netns: blue\n",
		"broken-kind.yaml":    "netns: x\ntopologyFile: ai.yaml\naddresses: {a: 192.0.2.5/24}\nlabels: {app: 1, tier: yes}\nnetworkQoS: q.yaml\ndevice: {a: eth0}\n",
		"broken-list.yaml":    "- netns: x\n",
		"broken-nowhere.yaml": "topologyFile: ai.yaml\n",
		"broken-repeat.yaml":  "netns: x\nnetns: z\ntopologyFile: ai.yaml\n",
		"broken-two.yaml":     "netns: x\ntopologyFile: ai.yaml\n---\nnetns: z\ntopologyFile: ai.yaml\n",
		"broken-role.yaml":    strings.NewReplacer("spec:\n", "spec:\n    role: primary\n", "dummy", "ptp").Replace(inline("x", "isDefaultGateway: true")),
		"broken-steps.yaml":   inline("x", "mtu: wide"),
		"broken-syntax.yaml":  "netns: [\n",
	})
	r, err := readDir(t.Context(), dir, registry(t))
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]reconcile.SandboxID{}
	for name, w := range r.desired {
		ids[name] = w.ID
	}
	want := map[string]reconcile.SandboxID{"blue.yaml": "run/blue/ai", "far.yaml": "run/far/ai", "given.yaml": "run/given/ai", "red.yaml": "run/pid7/ai", "role.yaml": "run/role/ai"}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("sandboxes (-want +got):\n%s", diff)
	}
	problems := map[string]string{}
	for name, err := range r.broken {
		problems[name] = strings.TrimPrefix(strings.ReplaceAll(err.Error(), dir, "DIR"), `config file "`+name+`": `)
		if !strings.Contains(err.Error(), `config file "`+name+`": `) {
			t.Errorf("error without its file: %v", err)
		}
	}
	if given := fmt.Sprint(r.desired["given.yaml"].Given.Addresses()); given != "map[a:[192.0.2.5/24 2001:db8::5/64]]" {
		t.Errorf("given %s", given)
	}
	if w := r.desired["role.yaml"]; w.Topology == nil || w.Topology.Steps[0].Config["ifName"] != topology.PodInterface {
		t.Errorf("the interface of a topology with a role is not called as in pods: %v", w.Topology)
	}
	wantProblems := map[string]string{
		"broken-address.yaml": `addresses.a[0]: "192.0.2.5" has no prefix length: write that of the subnet, as in "192.0.2.5/24", or "192.0.2.5/32" for the one address`,
		"broken-given.yaml":   `topologyFile "ai.yaml": NetworkTopology "ai", step "b": given addresses: the topology has no such step`,
		"broken-both.yaml":    "topology and topologyFile are both given: keep one",
		"broken-field.yaml":   `unknown field "topologyFyle", did you mean "topologyFile"?`,
		"broken-file.yaml":    "topologyFile: open DIR/missing.yaml: no such file or directory",
		"broken-kind.yaml": `addresses.a: want a list, got the string "192.0.2.5/24": write [192.0.2.5/24]
labels.app: want a string, got the number 1: put it in quotes
labels.tier: want a string, got the boolean true: put it in quotes (YAML reads y, yes and on as true, n, no and off as false)
networkQoS: want a list, got the string "q.yaml": write [q.yaml]
unknown field "device", did you mean "devices"?`,
		"broken-list.yaml":    "document 1: want an object, got a list",
		"broken-repeat.yaml":  `document 1: line 2: key "netns" is given twice`,
		"broken-two.yaml":     "2 documents, exactly one is wanted: put each in a file of its own",
		"broken-netns.yaml":   `netns: network namespace "..": not a name or a path`,
		"broken-neither.yaml": "topology: is missing: give one, or the name of its file as topologyFile",
		"broken-nowhere.yaml": "netns: is missing: name a network namespace or its path",
		"broken-role.yaml":    "NetworkTopology \"ai\": it has the role \"primary\", and the agent of a node gives its pods addresses of the node's pod CIDRs: see it with `plumbline plan`, or write a copy without role and with addresses",
		"broken-steps.yaml":   `NetworkTopology "ai", step "a": config.mtu: want an integer, got the string "wide"`,
		"broken-syntax.yaml":  "document 1: yaml: line 1: did not find expected node content",
		"twice.yaml":          `topology "ai" in network namespace "blue" is described by file "blue.yaml" already`,
	}
	if diff := cmp.Diff(wantProblems, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if want := []string{dir, elsewhere}; !slices.Equal(r.dirs, slices.Sorted(slices.Values(want))) {
		t.Errorf("directories: %q, want %q", r.dirs, want)
	}
	if _, err := readDir(t.Context(), filepath.Join(dir, "missing"), registry(t)); err == nil {
		t.Error("no error for a missing directory")
	}
}

func TestTake(t *testing.T) {
	dir := t.TempDir()
	var c config
	take := func(files map[string]string) []reconcile.SandboxID {
		t.Helper()
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			os.Remove(filepath.Join(dir, e.Name()))
		}
		write(t, dir, files)
		r, err := readDir(t.Context(), dir, registry(t))
		if err != nil {
			t.Fatal(err)
		}
		return c.replace(r, nil)
	}
	check := func(what string, got, want []reconcile.SandboxID, unknown bool) {
		t.Helper()
		if !slices.Equal(got, want) || c.unknown != unknown {
			t.Errorf("%s: changed %q, unknown %t; want %q, %t", what, got, c.unknown, want, unknown)
		}
	}
	ids := func(ids ...reconcile.SandboxID) []reconcile.SandboxID { return ids }
	a, b, broken := inline("a", ""), inline("b", ""), "netns: [\n"

	check("two files", take(map[string]string{"a.yaml": a, "b.yaml": b}), ids("run/a/ai", "run/b/ai"), false)
	check("nothing new", take(map[string]string{"a.yaml": a, "b.yaml": b}), nil, false)
	check("one changes", take(map[string]string{"a.yaml": inline("a", "mtu: 1400"), "b.yaml": b}), ids("run/a/ai"), false)
	check("one is given an address", take(map[string]string{"a.yaml": inline("a", "mtu: 1400") + "addresses: {a: [192.0.2.5/24]}\n", "b.yaml": b}), ids("run/a/ai"), false)
	check("one becomes invalid and keeps its last content", take(map[string]string{"a.yaml": broken, "b.yaml": b}), nil, false)
	check("a new one is broken", take(map[string]string{"a.yaml": broken, "b.yaml": b, "c.yaml": broken}), nil, true)
	check("one is renamed", take(map[string]string{"a.yaml": broken, "z.yaml": b}), nil, false)
	check("one is removed while invalid", take(map[string]string{"z.yaml": b}), ids("run/a/ai"), false)
	check("one moves elsewhere", take(map[string]string{"z.yaml": a}), ids("run/a/ai", "run/b/ai"), false)
}
