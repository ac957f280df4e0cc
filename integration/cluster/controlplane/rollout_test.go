//go:build cluster

package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/topology/fault"
	topologyv1alpha1 "github.com/plumbline/plumbline/topology/v1alpha1"
)

const edited = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: edited}
spec:
  updatePolicy: InPlace
  rollout: {maxUnavailable: MOST}
  steps:
    - {name: vf0, type: sriov}
    - {name: v, type: vlan, dependOn: [vf0], config: {id: ID, name: data0}}
`

func (b *bench) edit(t *testing.T, id int, most string) int64 {
	t.Helper()
	b.mustKubectl(t, strings.NewReplacer("ID", fmt.Sprint(id), "MOST", most).Replace(edited), "apply", "-f", "-")
	return b.topology(t, "edited").Generation
}

// rolled waits for a status of the rollout: the nodes that it has reached, how many are
// updated, and the reason.
func (b *bench) rolled(t *testing.T, generation int64, nodes, updated, reason string) *topologyv1alpha1.NetworkTopology {
	t.Helper()
	var o *topologyv1alpha1.NetworkTopology
	b.eventually(t, "the rollout of "+updated, func() error {
		o = b.topology(t, "edited")
		c := meta.FindStatusCondition(o.Status.Conditions, topologyv1alpha1.ConditionUpdated)
		r := o.Status.Rollout
		if r == nil || c == nil || r.Generation != generation || strings.Join(r.Nodes, " ") != nodes || o.Status.Updated != updated || c.Reason != reason {
			return fmt.Errorf("rollout %+v, updated %q, condition %+v", r, o.Status.Updated, c)
		}
		return nil
	})
	return o
}

// agents writes into claims what agents report.
func (b *bench) agents(t *testing.T) *claimstatus.Reporter {
	t.Helper()
	kube, err := kubernetes.NewForConfig(b.Config())
	if err != nil {
		t.Fatal(err)
	}
	agents := claimstatus.New(claimstatus.Options{Client: kube, NodeName: "n", Log: slog.New(slog.DiscardHandler), Settle: time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- agents.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return agents
}

func claimOf(c *resourceapi.ResourceClaim) claims.Claim {
	return claims.Claim{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
}

// rollout is an edit in a cluster of three nodes, of whose agents nothing is there
// but what they write.
func (b *bench) rollout(t *testing.T) {
	first := b.edit(t, 100, "1")
	b.eventually(t, "its class", func() error {
		return b.Get(t.Context(), client.ObjectKey{Name: "edited-vf0"}, &resourceapi.DeviceClass{})
	})
	agents := b.agents(t)

	who := map[string]claims.Claim{}
	var all []*resourceapi.ResourceClaim
	for name, node := range map[string]string{"a": "n1", "b": "n1", "c": "n2", "d": "n3"} {
		c := b.allocateOn(t, node, name, "edited-vf0")
		all = append(all, c)
		who[name] = claimOf(c)
	}
	run := func(generation int64, names ...string) {
		for _, name := range names {
			agents.Runs(who[name], "edited", generation, nil)
		}
	}
	b.rolled(t, first, "", "", "Complete") // no pod was reported yet
	run(first, "a", "b", "c", "d")
	b.rolled(t, first, "", "4/4", "Complete")

	second := b.edit(t, 101, "1")
	b.rolled(t, second, "n1", "0/4", "RollingOut")
	b.event(t, "edited", "RollingOut", "0 of 4 pods")
	run(second, "a")
	b.rolled(t, second, "n1", "1/4", "RollingOut")
	run(second, "b")
	b.rolled(t, second, "n2", "2/4", "RollingOut")
	table := b.mustKubectl(t, "", "get", "nettopo", "edited")
	if want := fmt.Sprintf("%d:2 %d:2", second, first); !strings.Contains(table, "UPDATED") || !strings.Contains(table, "2/4") || !strings.Contains(table, want) {
		t.Errorf("kubectl get shows, without %q:\n%s", want, table)
	}

	// One pod stops nothing, whatever its owner did to it.
	invalid := fault.New(fault.Invalid, errors.New("no such thing"))
	agents.UpdateFailed(who["c"], "edited", first, second, invalid)
	b.rolled(t, second, "n3", "2/4", "RollingOut")
	agents.UpdateDelayed(who["d"], "edited", first, second, 1, errors.New("the name is taken"))
	o := b.rolled(t, second, "n3", "2/4", "Retrying")
	if r := o.Status.Rollout; r.Failure != nil || r.Failed != 1 || r.Retrying != 1 {
		t.Errorf("rollout %+v", r)
	}

	bad := b.edit(t, 4000, "100%")
	b.rolled(t, bad, "n1 n2 n3", "0/4", "RollingOut")
	for _, name := range []string{"a", "b", "c"} {
		agents.UpdateFailed(who[name], "edited", second, bad, invalid)
	}
	o = b.rolled(t, bad, "", "0/4", "Failed")
	if f := o.Status.Rollout.Failure; f == nil || f.Node != "n1" || f.Reason != "Invalid" {
		t.Errorf("failure %+v", f)
	}
	b.event(t, "edited", "UpdateFailed", "stopped until the next edit")

	third := b.edit(t, 102, "60%") // of three nodes: two
	b.rolled(t, third, "n1 n2", "0/4", "RollingOut")
	agents.HeldBack(who["a"], "edited", second, third, errors.New("it takes another device"))
	run(third, "b", "c")
	b.rolled(t, third, "n3", "2/4", "RollingOut")
	for _, c := range all {
		if c.Name == "d" { // its pod ends before it was updated
			if err := b.Delete(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	o = b.rolled(t, third, "", "2/3", "HeldBack")
	if o.Status.Rollout.HeldBack != 1 {
		t.Errorf("rollout %+v", o.Status.Rollout)
	}
	run(third, "a")
	b.rolled(t, third, "", "3/3", "Complete")
	b.event(t, "edited", "Updated", "3 of 3 pods")
	b.mustKubectl(t, "", "wait", "--for=condition=Updated", "nettopo/edited", "--timeout=10s")

	for _, wrong := range []string{"0", "0%", "101%", "some"} {
		if said := b.refused(t, strings.NewReplacer("ID", "1", "MOST", wrong, "name: edited", "name: wrong").Replace(edited)); !strings.Contains(said, "must be a number above 0, or 1% to 100%") {
			t.Errorf("maxUnavailable %s: %s", wrong, said)
		}
	}
	b.mustKubectl(t, "", "patch", "nettopo", "edited", "--type=merge", "-p", `{"spec":{"updatePolicy":"Immutable"}}`)
	b.eventually(t, "nobody updates any more", func() error {
		if o := b.topology(t, "edited"); o.Status.Rollout != nil || o.Status.Updated != "0/3" {
			return fmt.Errorf("status %+v", o.Status)
		}
		return nil
	})
	b.mustKubectl(t, "", "patch", "nettopo", "edited", "--type=merge", "-p", `{"spec":{"updatePolicy":"InPlace"}}`)
}

// deadNode is an edit in a cluster where a node with running pods has died: it holds up no other node, neither
// when it dies after it has begun nor when it was dead before, and is updated once it is ready again.
func (b *bench) deadNode(t *testing.T) {
	agents := b.agents(t)
	who := map[string]claims.Claim{}
	for _, name := range []string{"a", "b", "c"} { // of n1, n1 and n2
		var c resourceapi.ResourceClaim
		if err := b.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, &c); err != nil {
			t.Fatal(err)
		}
		who[name] = claimOf(&c)
	}
	run := func(generation int64, names ...string) {
		for _, name := range names {
			agents.Runs(who[name], "edited", generation, nil)
		}
	}
	ready := func(node, status string) {
		t.Helper()
		since := time.Now().Add(-24 * time.Hour).UTC().Format(time.RFC3339)
		b.mustKubectl(t, "", "patch", "node", node, "--subresource=status", "--type=merge", "-p",
			fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "status": %q, "reason": "Test", "lastTransitionTime": %q}]}}`, status, since))
	}
	waitsFor := func(generation int64, nodes, updated, unready string) {
		t.Helper()
		b.eventually(t, "the rollout waits for "+unready, func() error {
			o := b.rolled(t, generation, nodes, updated, "RollingOut")
			if c := meta.FindStatusCondition(o.Status.Conditions, topologyv1alpha1.ConditionUpdated); !strings.Contains(c.Message, "waiting until this node is ready: "+unready) {
				return fmt.Errorf("condition %+v", c)
			}
			return nil
		})
	}
	for _, node := range []string{"n1", "n2"} {
		b.mustKubectl(t, "apiVersion: v1\nkind: Node\nmetadata: {name: "+node+"}\n", "create", "-f", "-")
		ready(node, "True")
	}

	edit := b.edit(t, 110, "1")
	b.rolled(t, edit, "n1", "0/3", "RollingOut")
	ready("n1", "Unknown") // as the node lifecycle controller writes of a kubelet that is not heard
	waitsFor(edit, "n2", "0/3", "n1")
	run(edit, "c")
	waitsFor(edit, "", "1/3", "n1")

	urgent := b.edit(t, 111, "1")
	waitsFor(urgent, "n2", "0/3", "n1")
	run(urgent, "c")
	b.rolled(t, urgent, "", "1/3", "RollingOut")
	ready("n1", "True")
	b.rolled(t, urgent, "n1", "1/3", "RollingOut")
	run(urgent, "a", "b")
	b.rolled(t, urgent, "", "3/3", "Complete")
	b.mustKubectl(t, "", "delete", "node", "n1", "n2")
}

// editedInUse holds the warnings at an edit of a topology in use.
func (b *bench) editedInUse(t *testing.T) {
	apply := func(manifest string) string {
		t.Helper()
		_, err := b.Kubectl(t.Context(), strings.NewReader(manifest), "apply", "--dry-run=server", "--warnings-as-errors", "-f", "-")
		if err == nil {
			t.Fatal("no warning")
		}
		return err.Error()
	}
	now := strings.NewReplacer("ID", "105", "MOST", "1").Replace(edited)
	for _, c := range []struct{ name, manifest, want string }{
		{"an edit", now, `is in use by 3 claims: the change is applied to their running pods`},
		{"a device more", now + "    - {name: vf1, type: sriov}\n", `step "vf1" takes a device that running pods do not have`},
		{"another selector", strings.Replace(now, "{name: vf0, type: sriov}", `{name: vf0, type: sriov, selector: {cel: "true"}}`, 1), `step "vf0" has another selector`},
		{"immutable again", strings.Replace(now, "InPlace", "Immutable", 1), `spec.rollout has an effect only with updatePolicy InPlace`},
	} {
		if said := apply(c.manifest); !strings.Contains(said, c.want) {
			t.Errorf("%s: said %q, want %q", c.name, said, c.want)
		}
	}
	b.mustKubectl(t, "", "delete", "resourceclaim", "a", "b", "c", "--timeout=30s")
	b.mustKubectl(t, "", "delete", "nettopo", "edited", "--timeout=30s")
}
