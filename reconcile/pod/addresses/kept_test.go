package addresses_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestRefusedLease holds that a lease which the API server refuses to write stops no other one: neither what is
// reported, nor the search of another pod, nor is its block lost.
func TestRefusedLease(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newServer(kept("p", "192.0.2.0/29"))
	a := s.agent(t, "n", fileOf(t), &now)
	had := map[string]string{}
	for range 2 { // both have an address before a pass reports either
		a.pass()
		for _, pod := range []string{"web-0", "web-1"} {
			if got, err := a.take(types.UID("c"+strings.TrimPrefix(pod, "web-")), pod, "p"); err == nil {
				had[got] = pod
			}
		}
	}
	both := slices.Sorted(maps.Keys(had)) // in the order in which they are reported
	first, second := both[0], both[1]
	name := func(address string) string { return "p-" + address + "-32" }
	s.refuse = func(l *v1alpha1.AddressLease) error {
		if l.Name == name(first) {
			return apierrors.NewInvalid(schema.GroupKind{Kind: v1alpha1.AddressLeaseKind}, l.Name, nil)
		}
		return nil
	}
	now = now.Add(time.Minute)
	if err := a.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), first) {
		t.Errorf("a refused report is not an error: %v", err)
	}
	if l := s.leases[name(second)]; l.Spec.Used != 1 || l.Spec.For != "ns/"+had[second]+"/net/t/s" {
		t.Errorf("after a lease that is refused, another one is reported as %+v", l.Spec)
	}

	a.giveBack(types.UID("c" + strings.TrimPrefix(had[first], "web-")))
	a.has("c2", "web-2", "p")
	if got := a.has("c3", had[first], "p"); got != first {
		t.Errorf("the pod gets %s, want %s, which rests on the node", got, first)
	}
	a.giveBack("c3")
	_ = a.Pass(t.Context())
	now = now.Add(2 * time.Hour)
	if got := a.has("c4", "db-0", "p"); got != first {
		t.Errorf("after its time another pod gets %s, and the node holds %s for nobody", got, first)
	}
}

// TestTakenOver holds that an address which a process has taken over for a pod, and died before it recorded that, is
// given to no other pod; that pod gets it, and if it does not come the address is kept again.
func TestTakenOver(t *testing.T) {
	for _, comes := range []bool{true, false} {
		now := time.Unix(1e9, 0)
		s := newServer(kept("p", "192.0.2.0/30"))
		s.pools[0].Spec.Exclude = []string{"192.0.2.2"}
		name := s.put("p", "192.0.2.1/32", v1alpha1.AddressLeaseSpec{Node: "n", NodeUID: "uid-of-n", For: "ns/web-0/net/t/s"}).Name
		a := s.agent(t, "n", fileOf(t), &now)
		for range 3 {
			_ = a.Pass(t.Context()) // nothing is left to lease for the other
			if got, err := a.take("other", "db-0", "p"); err == nil {
				t.Fatalf("another pod gets %s", got)
			}
		}
		if _, err := a.take("other", "db-0", "p"); !strings.Contains(err.Error(), "no address is free on this node") {
			t.Errorf("another pod: %v", err)
		}
		if comes {
			if got := a.has("c", "web-0", "p"); got != "192.0.2.1" {
				t.Errorf("the pod gets %s", got)
			}
			continue
		}
		now = now.Add(2 * time.Minute)
		_ = a.Pass(t.Context())
		if l := s.leases[name]; l.Spec.KeptUntil == nil || !l.Spec.KeptUntil.Equal(new(metav1.NewTime(now.Add(time.Hour)))) || l.Spec.For != "ns/web-0/net/t/s" {
			t.Errorf("what nobody waits for is %+v", l.Spec)
		}
	}
}

// TestTwoAgents holds that of two agents of a node, as during an update, one does not end what the other has taken over
// for a pod that waits there.
func TestTwoAgents(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newServer(kept("web", "192.0.2.0/29"))
	name := s.put("web", "192.0.2.1/32", v1alpha1.AddressLeaseSpec{Node: v1alpha1.KeptNode, For: "ns/web-0/net/t/s", KeptUntil: new(metav1.NewTime(now.Add(time.Hour)))}).Name
	file := fileOf(t)
	one, two := s.agent(t, "n", file, &now), s.agent(t, "n", file, &now)
	if got, err := one.take("c", "web-0", "web"); err == nil {
		t.Fatalf("the pod gets %s of a pool that is not known", got)
	}
	one.pass()
	if got, err := one.take("c", "web-0", "web"); err == nil {
		t.Fatalf("the pod gets %s before it was looked up", got)
	}
	one.pass()
	two.pass()
	if l := s.leases[name]; l.Spec.Node != "n" {
		t.Errorf("the lease is ended by the other agent: %+v", l.Spec)
	}
	if got, err := one.take("c", "web-0", "web"); err != nil || got != "192.0.2.1" {
		t.Errorf("the pod gets %s, %v", got, err)
	}
}

// TestClockAhead holds that addresses which are released while the clock of the node is ahead rest, and are kept, for as
// long as their pool says once it is right.
func TestClockAhead(t *testing.T) {
	single, several := kept("single", "192.0.2.0/29"), kept("several", "198.51.100.0/30")
	several.Spec.BlockSize, several.Spec.ReclaimAfter, several.Spec.QuarantineSeconds = new(int32(4)), "", new(int32(60))
	several.Spec.Exclude = []string{"198.51.100.2"}
	s := newServer(single, several)
	right := time.Unix(1e9, 0)
	now := right.AddDate(10, 0, 0)
	a := s.agent(t, "n", fileOf(t), &now)
	one, two := a.has("c1", "web-0", "single"), a.has("c2", "db-0", "several")
	a.giveBack("c1")
	a.giveBack("c2")
	now = right
	a.pass()
	if l := s.leases["single-"+one+"-32"]; l.Spec.KeptUntil == nil || !l.Spec.KeptUntil.Equal(new(metav1.NewTime(right.Add(time.Hour)))) {
		t.Errorf("the lease is %+v", l.Spec)
	}
	now = right.Add(59 * time.Second)
	if got, err := a.take("c3", "db-1", "several"); err == nil {
		t.Errorf("%s is allocated before it has rested", got)
	}
	now = right.Add(time.Minute)
	if got, err := a.take("c3", "db-1", "several"); err != nil || got != two {
		t.Errorf("after its rest another pod gets %s, %v", got, err)
	}
}

// TestPreviousPod holds that the next pod of a name waits on the same node while the claim of the previous one has not
// ended, and then has its address, in blocks of one address and of several; and that two claims of one pod do not wait
// for each other.
func TestPreviousPod(t *testing.T) {
	single, several := kept("single", "192.0.2.0/29"), kept("several", "198.51.100.0/29")
	several.Spec.BlockSize = new(int32(8))
	for _, pool := range []string{"single", "several"} {
		now := time.Unix(1e9, 0)
		a := newServer(single, several).agent(t, "n", fileOf(t), &now)
		had := a.has("c1", "web-0", pool)
		for range 2 {
			if got, err := a.take("c2", "web-0", pool); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), `still in use on node "n"`) {
				t.Errorf("%s: beside the previous pod, the next one has %s, %v", pool, got, err)
			}
			a.pass()
		}
		if got, err := a.take("c1", "web-0", pool); err != nil || got != had {
			t.Errorf("%s: the claim has %s once more, %v, and had %s", pool, got, err, had)
		}
		a.giveBack("c1")
		if got := a.has("c2", "web-0", pool); got != had {
			t.Errorf("%s: the next pod has %s, and the previous one had %s", pool, got, had)
		}
		for range 3 {
			if _, err := a.takeIn("c3", "web-0", "pod-of-c2", pool); err != nil && strings.Contains(err.Error(), "in use") {
				t.Errorf("%s: two claims of one pod wait for each other: %v", pool, err)
			}
			a.pass()
		}
		if _, err := a.takeIn("c3", "web-0", "pod-of-c2", pool); err != nil {
			t.Errorf("%s: another claim of the pod: %v", pool, err)
		}
		if _, err := a.takeIn("c2", "web-0", "later", pool); err != nil {
			t.Errorf("%s: a claim that outlives its pod: %v", pool, err)
		}
		a.giveBack("c3")
		a.pass()
		if _, err := a.takeIn("c4", "web-0", "later", pool); err != nil && strings.Contains(err.Error(), "in use") {
			t.Errorf("%s: beside a claim that has outlived its pod, another one of the next pod: %v", pool, err)
		}
	}
}

// TestForAtOnce holds that a lease says for whom it is at once, as the next pod of the name may be on another node, and
// how many addresses are used later.
func TestForAtOnce(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newServer(kept("p", "192.0.2.0/29"))
	a, b := s.agent(t, "a", fileOf(t), &now), s.agent(t, "b", fileOf(t), &now)
	a.has("other", "db-0", "p")
	a.pass() // what is used is reported at most every 15 s
	had := a.has("c1", "web-0", "p")
	a.pass()
	if l := s.leases["p-"+had+"-32"]; l.Spec.For != "ns/web-0/net/t/s" {
		t.Errorf("the lease is %+v", l.Spec)
	}
	b.pass()
	for range 3 {
		if got, err := b.take("c2", "web-0", "p"); err == nil {
			t.Errorf("on another node the next pod has %s, and the previous one had %s", got, had)
		}
		b.pass()
	}
	writes := s.writes
	a.pass()
	if s.writes != writes {
		t.Errorf("%d writes although nothing has changed", s.writes-writes)
	}
}

// TestTakeSoon holds that a caller without patience gets an address that has to be looked up and leased, with its first
// call, and that it does not wait where a pool is full.
func TestTakeSoon(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := newServer(kept("p", "192.0.2.0/30"))
	a := s.agent(t, "n", fileOf(t), &now)
	a.pass()
	soon := func(pod string) error {
		taken := make(chan error)
		go func() {
			_, err := a.TakeSoon(t.Context(), addresses.Claim{UID: types.UID(pod), Namespace: "ns", Pod: pod, InPod: "eth0"}, []addresses.Want{{Topology: "t", Step: "s", Pool: "p"}})
			taken <- err
		}()
		for {
			select {
			case err := <-taken:
				return err
			default:
				_ = a.Pass(t.Context()) // the pool becomes full
			}
		}
	}
	for _, pod := range []string{"web-0", "web-1"} {
		if err := soon(pod); err != nil {
			t.Errorf("%s: %v", pod, err)
		}
	}
	if err := soon("web-2"); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "no address is free on this node") {
		t.Errorf("of a full pool: %v", err)
	}
}

// TestDiscarded holds that an address which was on no link is kept for nobody once the step of its claim wants another pool; and that
// the address of an earlier claim stays kept.
func TestDiscarded(t *testing.T) {
	for name, before := range map[string]bool{"new": false, "kept before": true} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1e9, 0)
			s := newServer(kept("p", "192.0.2.0/30"), kept("q", "198.51.100.0/30"))
			s.pools[0].Spec.Exclude = []string{"192.0.2.2"}
			a := s.agent(t, "n", fileOf(t), &now)
			if before {
				a.has("earlier", "web-0", "p")
				a.giveBack("earlier")
				a.pass()
			}
			a.has("c", "web-0", "p")
			claim := addresses.Claim{UID: "c", Namespace: "ns", Name: "c", Pod: "web-0", PodUID: "pod-of-c", InPod: "net", New: true}
			var err error
			for range 5 {
				if _, err = a.Take(claim, []addresses.Want{{Topology: "t", Step: "s", Pool: "q"}}); err == nil {
					break
				}
				_ = a.Pass(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			now = now.Add(2 * time.Minute) // nobody waits for what was taken over
			for range 3 {
				_ = a.Pass(t.Context())
				_, err = a.take("other", "db-0", "p")
			}
			if (err == nil) == before {
				t.Errorf("another pod: %v", err)
			}
		})
	}
}
