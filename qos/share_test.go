package qos

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos/v1alpha1"
)

// TestShare holds that the policies of a namespace that are enforced are the oldest within all bounds, in whatever order they
// come and go, as long as those that were left out are put again when there may be room.
func TestShare(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 0))
		world := map[types.NamespacedName]*Policy{}
		s := &Share{}
		for step := range 600 {
			key := types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("q", rng.IntN(400))}
			if p := world[key]; p != nil && rng.IntN(3) == 0 {
				delete(world, key)
				s.Delete(key)
			} else {
				created := metav1.Unix(int64(rng.IntN(1000)), 0)
				if p != nil {
					created = p.Created
				}
				p = &Policy{Key: key, Created: created, bytes: rng.IntN(MaxNamespaceBytes / 100), labels: rng.IntN(MaxNamespaceLabels / 100)}
				world[key] = p
				s.Put(p)
			}
			if s.Stale() {
				s = &Share{}
				for _, p := range world {
					s.Put(p)
				}
			}
			all := make([]*Policy, 0, len(world))
			for _, p := range world {
				all = append(all, p)
			}
			slices.SortFunc(all, older)
			n, bytes, labels := 0, 0, 0
			for _, p := range all {
				if bytes, labels = bytes+p.bytes, labels+p.labels; n == MaxObjects || bytes > MaxNamespaceBytes || labels > MaxNamespaceLabels {
					break
				}
				n++
			}
			if !slices.Equal(s.Policies(), all[:n]) {
				t.Fatalf("seed %d, step %d: of %d policies %d are enforced, want the oldest %d", seed, step, len(all), len(s.Policies()), n)
			}
		}
	}
}

// TestMembersAreBounded holds that a compiler keeps no more members than it may, for an object and for a namespace, and that it
// says so; and that it lists them again once they are few enough.
func TestMembersAreBounded(t *testing.T) {
	rail := Network{NetworkID: NetworkID{Kind: NetworkTopology, Name: "rail"}}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c := NewCompiler()
		c.mostMembers, c.mostOfNamespace = 6, 15
		pods, objects := map[string]map[string]string{}, map[string]*Policy{}
		said := map[types.NamespacedName]Over{}
		for step := range 400 {
			var changed Changed
			name, role := fmt.Sprint("p", rng.IntN(20)), map[string]string{"role": fmt.Sprint(rng.IntN(3))}
			switch rng.IntN(6) {
			case 0:
				delete(pods, name)
				changed = c.DeletePod(types.NamespacedName{Namespace: "ns", Name: name})
			case 1:
				p := New(&v1alpha1.NetworkQoS{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("q", rng.IntN(6))},
					Spec: v1alpha1.Spec{
						NetworkSelectors: []v1alpha1.NetworkSelector{{Type: v1alpha1.NetworkTopologies, NetworkTopologySelector: &v1alpha1.Selector{}}},
						Egress: []v1alpha1.Rule{{DSCP: new(int32(1)), Classifier: &v1alpha1.Classifier{To: []v1alpha1.Destination{
							{PodSelector: &metav1.LabelSelector{MatchLabels: role}}, {PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "1"}}},
						}}}},
					},
				})
				objects[p.Name()] = p
				changed = c.SetPolicy(p)
				changed.Sets[SetID{Policy: p.Key}] = true
			default:
				pods[name] = role
				changed = c.SetPod(&Pod{Key: types.NamespacedName{Namespace: "ns", Name: name}, Labels: role, Attachments: []Attachment{{Network: rail, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(len(name) + step)})}}}})
			}
			kept := 0
			for _, p := range objects {
				for _, d := range c.policies["ns"][p.Key.Name].destinations {
					kept += len(d.members)
				}
			}
			if kept != c.kept["ns"] || kept > 15 {
				t.Fatalf("seed %d, step %d: %d members are kept, counted %d", seed, step, kept, c.kept["ns"])
			}
			for id := range changed.Sets { // as their owner does, in any order
				_, said[id.Policy] = c.Sets(id.Policy)
			}
			all := 0
			for _, p := range objects {
				want := 0
				for _, d := range p.Rules[0].To {
					for _, of := range pods {
						if d.pods.Matches(labels.Set(of)) {
							want++
						}
					}
				}
				all += want
				switch over := said[p.Key]; {
				case want > 6 && over != OverObject:
					t.Fatalf("seed %d, step %d: %s selects %d pods, and says %q", seed, step, p.Name(), want, over)
				case want <= 6 && over == OverObject:
					t.Fatalf("seed %d, step %d: %s selects %d pods, and says that they are too many", seed, step, p.Name(), want)
				case over == OverNamespace && c.kept["ns"]+want <= 15:
					t.Fatalf("seed %d, step %d: %s has %d members, and there is room beside the %d that are kept", seed, step, p.Name(), want, c.kept["ns"])
				}
			}
		}
	}
}

// TestComparisonsAreBounded: what objects may tie with others of a namespace is found within a bound of comparisons, whatever they
// are, and for objects that people write completely.
func TestComparisonsAreBounded(t *testing.T) {
	of := func(n, labels int) *Policy {
		o := &v1alpha1.NetworkQoS{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("q", n)}, Spec: v1alpha1.Spec{
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{}},
			Egress:      []v1alpha1.Rule{{DSCP: new(int32(1))}, {DSCP: new(int32(2)), Classifier: &v1alpha1.Classifier{To: []v1alpha1.Destination{{IPBlock: &v1alpha1.IPBlock{CIDR: "192.0.2.0/24"}}}}}},
		}}
		for i := range labels {
			o.Spec.PodSelector.MatchLabels[fmt.Sprint("label-", i)] = fmt.Sprint("value-", i)
		}
		return New(o)
	}
	for _, tt := range []struct {
		objects, labels int
		complete        bool
	}{{MaxObjects, 2, true}, {64, 250, true}, {MaxObjects, 250, false}} {
		var policies []*Policy
		for n := range tt.objects {
			policies = append(policies, of(n, tt.labels))
		}
		var n comparisons
		ties := n.ties(policies)
		if n.over() == tt.complete || n > maxCompared+MaxRules*maxPorts*maxPorts {
			t.Errorf("%d objects with %d labels: %d comparisons, complete %t, want %t", tt.objects, tt.labels, n, !n.over(), tt.complete)
		}
		if len(ties) == 0 {
			t.Errorf("%d objects with %d labels: no ties", tt.objects, tt.labels)
		}
	}
}
