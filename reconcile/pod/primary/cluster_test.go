package primary

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
)

// TestClusterCIDRs: a pod that is masqueraded is not when it sends to the cluster's own pods,
// beside what the topology excepts, and nothing is added to a step that does not masquerade.
func TestClusterCIDRs(t *testing.T) {
	s := newServer(t)
	shared := &topology.Topology{Name: "pods", Steps: []topology.Step{
		{Name: "eth", Type: "bridge", Config: map[string]any{"ipMasq": true, "nonMasqueradeCIDRs": []any{"203.0.113.0/24"}}},
		{Name: "more", Type: "bridge", Config: map[string]any{"ipMasq": true}},
		{Name: "plain", Type: "bridge", Config: map[string]any{"ipMasq": false}},
	}}
	n := Network{Topology: shared, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	s.Network = func() (Network, error) { return n, nil }
	s.add("before")
	n.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.0.0/16"), netip.MustParsePrefix("fd00::/48")}
	s.add("a")
	excepts := func(container string) []any {
		var out []any
		for _, step := range s.book.records[reconcile.IDOfPrimary(container, "eth0", "pods")].Sandbox.Topology.Steps {
			out = append(out, step.Config["ipMasqExcept"], step.Config["nonMasqueradeCIDRs"])
		}
		return out
	}
	if diff := cmp.Diff([]any{nil, []any{"203.0.113.0/24"}, nil, nil, nil, nil}, excepts("before")); diff != "" {
		t.Errorf("without the cluster's CIDRs (-want +got):\n%s", diff)
	}
	want := []any{nil, []any{"203.0.113.0/24", "192.0.0.0/16", "fd00::/48"}, []any{"192.0.0.0/16", "fd00::/48"}, nil, nil, nil}
	if diff := cmp.Diff(want, excepts("a")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, has := shared.Steps[1].Config["ipMasqExcept"]; has {
		t.Error("the topology of all pods was changed")
	}
}

// TestUsesPodCIDRs: whether routes to other nodes' pods are needed follows from the topology, and
// is not known before it can be.
func TestUsesPodCIDRs(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	podCIDRs := []string{"10.244.1.0/24"}
	o := FollowerOptions{
		NodeName: "n", Contracts: reg, File: filepath.Join(t.TempDir(), "primary"), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Node: func() (map[string]string, []string, bool) { return nil, podCIDRs, true },
	}
	f := NewFollower(o)
	role := func(config string) []any {
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(`{"apiVersion": "networking.dra.io/v1alpha1", "kind": "NetworkTopology", "metadata": {"name": "pods"}, "spec": {"role": "primary", "steps": [{"name": "eth", "type": "bridge", "config": `+config+`}]}}`), &u.Object); err != nil {
			t.Fatal(err)
		}
		return []any{u}
	}
	for _, c := range []struct {
		what        string
		objects     []any
		podCIDRs    []string
		uses, known bool
	}{
		{"before the API server has answered", nil, podCIDRs, false, false},
		{"no topology", []any{}, podCIDRs, false, true},
		{"pod CIDRs", role(`{"isDefaultGateway": true}`), podCIDRs, true, true},
		{"a pool", role(`{"ipam": {"type": "pool", "pool": "p"}}`), podCIDRs, false, true},
		{"a topology that is refused", role(`{"vlan": 5000}`), podCIDRs, false, false},
		{"a node without pod CIDRs", role(`{"isDefaultGateway": true}`), nil, false, false},
		{"pod CIDRs again", role(`{"isDefaultGateway": true}`), podCIDRs, true, true},
	} {
		if podCIDRs = c.podCIDRs; c.objects != nil {
			f.decide(t.Context(), c.objects)
		}
		if uses, known := f.UsesPodCIDRs(); uses != c.uses || known != c.known {
			t.Errorf("%s: uses %t, known %t", c.what, uses, known)
		}
	}
	if uses, known := NewFollower(o).UsesPodCIDRs(); !uses || !known {
		t.Errorf("an agent that was started again: uses %t, known %t", uses, known)
	}
}

// TestTranslateBridged: pods of a bridge are given a network once what the bridge forwards is translated, and again when
// that is no longer so and cannot be restored. Those of no bridge need nothing of it.
func TestTranslateBridged(t *testing.T) {
	set, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for typ, needs := range map[string]bool{"bridge": true, "ptp": false} {
		var answer error
		asked := 0
		f := NewFollower(FollowerOptions{
			NodeName: "n", Contracts: set, File: filepath.Join(t.TempDir(), "none"), Proc: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
			TranslateBridged: func() error { asked++; return answer },
		})
		f.network = &Network{Topology: &topology.Topology{Name: "pods", Steps: []topology.Step{{Name: "eth", Type: typ, Config: map[string]any{"ipam": map[string]any{"type": "pool", "pool": "a"}}}}}}
		for _, answer = range []error{nil, errors.New("no br_netfilter"), nil} {
			f.translate()
			_, err := f.Network()
			if fails := needs && answer != nil; (err != nil) != fails || fails && !strings.Contains(err.Error(), "no br_netfilter") {
				t.Errorf("%s, answered %v: %v", typ, answer, err)
			}
		}
		if (asked > 0) != needs {
			t.Errorf("%s: asked %d times", typ, asked)
		}
	}
}

// TestForwards: of the families of the node's pod CIDRs only those count of which its pods have addresses.
func TestForwards(t *testing.T) {
	set, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	proc := t.TempDir()
	for name, value := range map[string]string{"ipv4/ip_forward": "1\n", "ipv6/conf/all/forwarding": "0\n"} {
		file := filepath.Join(proc, "sys/net", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(value), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	f := NewFollower(FollowerOptions{NodeName: "n", Contracts: set, Proc: proc})
	for _, c := range []struct {
		config map[string]any
		want   string
	}{
		{nil, "net.ipv6.conf.all.forwarding"},
		{map[string]any{"ipam": map[string]any{"type": "pool", "pool": "a"}}, ""},
	} {
		f.network = &Network{
			Topology: &topology.Topology{Name: "pods", Steps: []topology.Step{{Name: "eth", Type: "ptp", Config: c.config}}},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("2001:db8::/64")},
		}
		if _, err := f.Network(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.config, err, c.want)
		}
	}
}

// TestDecidesQuietly: the follower compares what it knows every two seconds. A reason that lasts is logged
// once, and what the status of a topology says is no decision.
func TestDecidesQuietly(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	changed := 0
	f := NewFollower(FollowerOptions{
		NodeName: "n", Contracts: reg, File: filepath.Join(t.TempDir(), "none", "primary"), Log: slog.New(slog.NewTextHandler(&out, nil)),
		Node: func() (map[string]string, []string, bool) { return nil, []string{"10.244.1.0/24"}, true },
	})
	decided := table.Woken(&f.Decided)
	object := func(text string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		return u
	}
	broken := object(`{"metadata": {"name": "broken"}, "spec": {"role": 5}}`)
	good := object(`{"metadata": {"name": "pods", "generation": 1}, "spec": {"role": "primary", "steps": [{"name": "eth", "type": "ptp", "config": {"isDefaultGateway": true}}]}}`)
	decide := func(what string, lines, changes int, words ...string) {
		t.Helper()
		out.Reset()
		changed = 0
		for i := range 100 {
			if err := unstructured.SetNestedField(good.Object, int64(i), "status", "observedGeneration"); err != nil {
				t.Fatal(err)
			}
			good.SetResourceVersion(fmt.Sprint(i))
			f.decide(t.Context(), []any{good, broken})
			select {
			case <-decided:
				changed++
			default:
			}
		}
		if n := strings.Count(out.String(), "\n"); n != lines || changed != changes {
			t.Errorf("%s: %d lines and %d changes, want %d and %d:\n%.500s", what, n, changed, lines, changes, out.String())
		}
		for _, w := range words {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: the log has no %q", what, w)
			}
		}
	}
	decide("nothing can be written", 2, 0, "topology=broken", "cannot record")
	f.File = filepath.Join(t.TempDir(), "primary")
	decide("it can", 1, 1, "the network of new pods")
	good.SetGeneration(2)
	f.File = filepath.Join(t.TempDir(), "none", "primary")
	decide("it cannot any more", 1, 0, "cannot record")
}
