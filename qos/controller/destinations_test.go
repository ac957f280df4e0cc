package controller

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// crowd is the addresses of 5,000 pods in 10 namespaces, and 500 objects. Of the objects of a
// namespace, 45 have the pods of one role as a destination, those of ten roles in turn, and 5
// also those of role r0 in the namespaces of team a, which are two. All are on topology rail.
type crowd struct {
	*Destinations
	changed map[types.NamespacedName]bool
	has     map[types.NamespacedName]uint64 // what was written
}

const (
	crowdNamespaces = 10
	crowdPods       = 500 // of a namespace
	crowdObjects    = 50  // of a namespace
)

func crowdPolicy(t testing.TB, namespace, n int, dscp int, generation int64) *qos.Policy {
	t.Helper()
	to := fmt.Sprintf("{podSelector: {matchLabels: {role: r%d}}}", n%10)
	if n >= crowdObjects-5 {
		to += ", {namespaceSelector: {matchLabels: {team: a}}, podSelector: {matchLabels: {role: r0}}}"
	}
	objects, err := qostest.Objects(fmt.Appendf(nil, `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {namespace: ns-%d, name: q-%d, generation: %d}
spec:
  priority: %d
  networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: storage}}}}]
  egress: [{dscp: %d, classifier: {to: [%s]}}]
`, namespace, n, generation, n, dscp, to))
	if err != nil {
		t.Fatal(err)
	}
	objects[0].UID, objects[0].Generation = types.UID(fmt.Sprintf("of-q-%d-%d", namespace, n)), generation
	p := qos.New(objects[0])
	if p.Err != nil {
		t.Fatal(p.Err)
	}
	return p
}

func crowdPod(namespace, n int) types.NamespacedName {
	return types.NamespacedName{Namespace: fmt.Sprint("ns-", namespace), Name: fmt.Sprint("p-", n)}
}

func (c *crowd) held(namespace, n, last int) {
	key := crowdPod(namespace, n)
	c.SetClaim(key.String(), &claim.Held{Pod: key, UID: "u", Addresses: map[string][]netip.Addr{"rail": {netip.AddrFrom4([4]byte{10, byte(namespace), byte(n / 200), byte(n%200 + last)})}}})
}

func newCrowd(t testing.TB) *crowd {
	t.Helper()
	c := &crowd{Destinations: NewDestinations(), changed: map[types.NamespacedName]bool{}, has: map[types.NamespacedName]uint64{}}
	c.OnChange(func(key types.NamespacedName) { c.changed[key] = true })
	c.setTopology("rail", map[string]string{"rail": "storage"})
	for namespace := range crowdNamespaces {
		team := "b"
		if namespace < 2 {
			team = "a"
		}
		c.SetNamespace(fmt.Sprint("ns-", namespace), map[string]string{"team": team})
		for n := range crowdObjects {
			c.SetPolicy(crowdPolicy(t, namespace, n, 8, 1))
		}
		for n := range crowdPods {
			c.SetPod(crowdPod(namespace, n), "u", map[string]string{"role": fmt.Sprint("r", n%10)}, nil)
			c.held(namespace, n, 0)
		}
	}
	c.written(t)
	return c
}

// written compiles the objects that have changed, and writes those whose status is to be another. It
// returns how many these are, and the bytes that are written.
func (c *crowd) written(t testing.TB) (compiled, written, bytes int) {
	t.Helper()
	c.drain()
	for key := range c.changed {
		compiled++
		_, status := c.Status(key)
		now := digest(status)
		if c.has[key] == now {
			continue
		}
		c.has[key] = now
		raw, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		written++
		bytes += len(raw)
	}
	clear(c.changed)
	return compiled, written, bytes
}

// drain takes into account what SetClaim was given.
func (c *crowd) drain() {
	c.lock()
	c.mu.Unlock()
}

// crowdChanges are changes, each with another one that reverses it, and how many objects are compiled
// and written for one of them.
var crowdChanges = []struct {
	name              string
	compiled, written int
	do                func(t testing.TB, c *crowd, on bool)
}{
	{"a pod that no destination selects", 0, 0, func(_ testing.TB, c *crowd, on bool) {
		key := types.NamespacedName{Namespace: "ns-5", Name: "web"}
		if !on {
			c.SetClaim("web", nil)
			c.DeletePod(key)
			return
		}
		c.SetPod(key, "u", map[string]string{"role": "web"}, nil)
		c.SetClaim("web", &claim.Held{Pod: key, UID: "u", Addresses: map[string][]netip.Addr{"rail": {netip.MustParseAddr("10.99.0.1")}}})
	}},
	{"a pod of a role in a namespace", 5, 5, func(_ testing.TB, c *crowd, on bool) {
		key := types.NamespacedName{Namespace: "ns-5", Name: "more"}
		if !on {
			c.SetClaim("more", nil)
			c.DeletePod(key)
			return
		}
		c.SetPod(key, "u", map[string]string{"role": "r3"}, nil)
		c.SetClaim("more", &claim.Held{Pod: key, UID: "u", Addresses: map[string][]netip.Addr{"rail": {netip.MustParseAddr("10.99.0.1")}}})
	}},
	{"a pod that all namespaces may select", 5 + 5*crowdNamespaces, 5 + 5*crowdNamespaces, func(_ testing.TB, c *crowd, on bool) {
		key := types.NamespacedName{Namespace: "ns-0", Name: "more"}
		if !on {
			c.SetClaim("more", nil)
			c.DeletePod(key)
			return
		}
		c.SetPod(key, "u", map[string]string{"role": "r0"}, nil)
		c.SetClaim("more", &claim.Held{Pod: key, UID: "u", Addresses: map[string][]netip.Addr{"rail": {netip.MustParseAddr("10.99.0.1")}}})
	}},
	{"the address of a destination", 5, 5, func(_ testing.TB, c *crowd, on bool) { c.held(5, 3, map[bool]int{true: 50}[on]) }},
	{"the label of a pod", 10, 10, func(_ testing.TB, c *crowd, on bool) {
		c.SetPod(crowdPod(5, 3), "u", map[string]string{"role": map[bool]string{true: "r4", false: "r3"}[on]}, nil)
	}},
	{"another label of a pod", 0, 0, func(_ testing.TB, c *crowd, on bool) {
		c.SetPod(crowdPod(5, 3), "u", map[string]string{"role": "r3", "a": fmt.Sprint(on)}, nil)
	}},
	{"the label of a namespace", 5 * crowdNamespaces, 5 * crowdNamespaces, func(_ testing.TB, c *crowd, on bool) {
		c.SetNamespace("ns-5", map[string]string{"team": map[bool]string{true: "a", false: "b"}[on]})
	}},
	{"an object", 1, 1, func(t testing.TB, c *crowd, on bool) {
		c.SetPolicy(crowdPolicy(t, 5, 3, map[bool]int{true: 9, false: 8}[on], map[bool]int64{true: 2, false: 3}[on]))
	}},
	{"an object the second time", 0, 0, func(t testing.TB, c *crowd, _ bool) { c.SetPolicy(crowdPolicy(t, 5, 4, 8, 1)) }},
	{"the labels of the topology of all pods", crowdNamespaces * crowdObjects, 0, func(_ testing.TB, c *crowd, on bool) {
		c.setTopology("rail", map[string]string{"rail": "storage", "a": fmt.Sprint(on)})
	}},
}

// TestDestinationsOfMany holds how many of 500 objects are compiled and written for one change
// among 5,000 pods, that the reverse change restores what was, and what all of it takes in memory.
func TestDestinationsOfMany(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	c := newCrowd(t)
	if bytes := (heap() - before) / (crowdNamespaces * crowdPods); bytes > 4096 {
		t.Errorf("a pod takes %d bytes", bytes)
	} else {
		t.Logf("%d bytes for each of %d pods, with the %d objects", bytes, crowdNamespaces*crowdPods, crowdNamespaces*crowdObjects)
	}
	all := func() map[types.NamespacedName][]v1alpha1.DestinationSet {
		out := map[types.NamespacedName][]v1alpha1.DestinationSet{}
		for key := range c.policies {
			_, status := c.Status(key)
			out[key] = status.Sets
		}
		return out
	}
	was := all()
	// 50 pods have a role in a namespace, and r0 in the namespaces of team a is 100.
	if sets := was[types.NamespacedName{Namespace: "ns-5", Name: "q-45"}]; len(sets) != 2 || len(sets[0].Addresses) != 50 || len(sets[1].Addresses) != 100 {
		t.Fatalf("sets %+v", sets)
	}
	for _, change := range crowdChanges {
		change.do(t, c, true)
		if compiled, written, _ := c.written(t); compiled != change.compiled || written != change.written {
			t.Errorf("%s: %d objects are compiled and %d written, want %d and %d", change.name, compiled, written, change.compiled, change.written)
		}
		change.do(t, c, false)
		if compiled, written, _ := c.written(t); compiled != change.compiled || written != change.written {
			t.Errorf("%s, reversed: %d objects are compiled and %d written, want %d and %d", change.name, compiled, written, change.compiled, change.written)
		}
		for key, sets := range all() {
			if !slices.EqualFunc(sets, was[key], func(a, b v1alpha1.DestinationSet) bool {
				return a.Rule == b.Rule && a.To == b.To && a.Topology == b.Topology && slices.Equal(a.Addresses, b.Addresses)
			}) {
				t.Fatalf("%s, and its reverse: %s has other sets", change.name, key)
			}
		}
	}
}

// TestDestinations holds whose addresses are in the sets of an object, as pods, claims and topologies
// come and go in any order.
func TestDestinations(t *testing.T) {
	c := &crowd{Destinations: NewDestinations(), changed: map[types.NamespacedName]bool{}, has: map[types.NamespacedName]uint64{}}
	c.OnChange(func(key types.NamespacedName) { c.changed[key] = true })
	key, pod := types.NamespacedName{Namespace: "ns-1", Name: "q-3"}, types.NamespacedName{Namespace: "ns-1", Name: "p"}
	has := func(what string, want ...string) {
		t.Helper()
		_, status := c.Status(key)
		var have []string
		for _, s := range status.Sets {
			have = append(have, s.Topology+" "+strings.Join(s.Addresses, ","))
		}
		if !slices.Equal(have, want) {
			t.Errorf("%s: %q, want %q", what, have, want)
		}
	}
	addresses := func(of map[string]string) map[string][]netip.Addr {
		out := map[string][]netip.Addr{}
		for name, a := range of {
			out[name] = []netip.Addr{netip.MustParseAddr(a)}
		}
		return out
	}
	if _, status := c.Status(key); status != nil {
		t.Errorf("an object that is not known: %+v", status)
	}
	c.SetPolicy(crowdPolicy(t, 1, 3, 8, 1))
	has("alone")
	c.SetClaim("one", &claim.Held{Pod: pod, UID: "u", Addresses: addresses(map[string]string{"rail": "192.0.2.1", "tail": "192.0.2.2"})})
	has("a claim whose pod is not known")
	c.SetPod(pod, "u", map[string]string{"role": "r3"}, nil)
	has("a topology whose labels are not known")
	c.setTopology("rail", map[string]string{"rail": "storage"})
	has("one topology of two", "rail 192.0.2.1")
	c.SetClaim("two", &claim.Held{Pod: pod, UID: "u", Addresses: addresses(map[string]string{"rail": "192.0.2.3"})})
	has("two claims of a pod", "rail 192.0.2.1,192.0.2.3")
	c.SetClaim("one", nil)
	has("the first is deleted", "rail 192.0.2.3")
	c.setTopology("rail", nil)
	has("the topology has no label")
	c.setTopology("rail", map[string]string{"rail": "storage"})
	has("and has it again", "rail 192.0.2.3")
	c.SetPod(pod, "v", map[string]string{"role": "r3"}, nil)
	has("another pod of the name")
	c.SetClaim("two", &claim.Held{Pod: pod, UID: "v", Addresses: addresses(map[string]string{"rail": "192.0.2.4"})})
	has("and its claim", "rail 192.0.2.4")
	c.DeletePod(pod)
	has("the pod has ended")
	c.SetPod(pod, "v", map[string]string{"role": "r3"}, nil)
	has("the pod is read again", "rail 192.0.2.4")
	c.deleteTopology("rail")
	has("the topology is deleted, and the pod keeps it", "rail 192.0.2.4")
	c.SetClaim("two", &claim.Held{Pod: pod, UID: "v", Addresses: addresses(map[string]string{"rail": "192.0.2.5"})})
	has("with another address", "rail 192.0.2.5")
	c.setTopology("rail", nil)
	has("a later one of the name has no label")
	c.setTopology("rail", map[string]string{"rail": "storage"})
	c.deleteTopology("rail")
	c.SetClaim("two", nil)
	c.DeletePod(pod)
	c.DeletePolicy(key)
	c.drain()
	if n := len(c.deleted) + len(c.pods) + len(c.claims) + len(c.of) + len(c.using) + len(c.labels) + len(c.policies) + len(c.shares) + len(c.decided); n > 0 {
		t.Errorf("%d entries are left", n)
	}

	// More addresses than one object may have: none is listed.
	c.SetPolicy(crowdPolicy(t, 1, 3, 8, 1))
	c.setTopology("rail", map[string]string{"rail": "storage"})
	for n := range v1alpha1.MaxDestinationAddresses + 1 {
		p := types.NamespacedName{Namespace: "ns-1", Name: fmt.Sprint("many-", n)}
		c.SetPod(p, "u", map[string]string{"role": "r3"}, nil)
		c.SetClaim(p.String(), &claim.Held{Pod: p, UID: "u", Addresses: map[string][]netip.Addr{"rail": {netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})}}})
	}
	if _, status := c.Status(key); status.TooMany != v1alpha1.MaxDestinationAddresses+1 || len(status.Sets) > 0 {
		t.Errorf("too many: %d, %d sets", status.TooMany, len(status.Sets))
	}
	c.SetClaim("ns-1/many-0", nil)
	if _, status := c.Status(key); status.TooMany != 0 || len(status.Sets) != 1 || len(status.Sets[0].Addresses) != v1alpha1.MaxDestinationAddresses {
		t.Errorf("as many as may be: %d, %d sets", status.TooMany, len(status.Sets))
	}

	// A namespace has a bounded number of objects, and those that are not kept do nothing.
	c = &crowd{Destinations: NewDestinations(), changed: map[types.NamespacedName]bool{}, has: map[types.NamespacedName]uint64{}}
	for n := range qos.MaxObjects + 1 {
		p := crowdPolicy(t, 1, n%crowdObjects, 8, 1)
		p.Key.Name = fmt.Sprint("many-", n)
		c.SetPolicy(p)
	}
	if n := len(slices.Collect(maps.Keys(c.policies))); n != qos.MaxObjects {
		t.Errorf("%d objects are kept", n)
	}
	// When one of them goes, those that are enforced now and were left out are read.
	var rooms []string
	c.room = func(namespace string) { rooms = append(rooms, namespace) }
	c.OnChange(func(key types.NamespacedName) { c.changed[key] = true })
	enforced := slices.Collect(maps.Values(c.policies))
	last := crowdPolicy(t, 1, 3, 8, 1)
	last.Key.Name = fmt.Sprint("many-", qos.MaxObjects)
	for n := range qos.MaxObjects {
		name := types.NamespacedName{Namespace: "ns-1", Name: fmt.Sprint("many-", n)}
		if c.policies[name] == nil {
			last.Key = name
		}
	}
	c.reread("ns-1", append(enforced, last))
	if len(rooms) > 0 || c.changed[last.Key] {
		t.Fatalf("there is no room yet: %v", rooms)
	}
	c.DeletePolicy(enforced[0].Key)
	c.reread("ns-1", append(enforced[1:], last))
	if !slices.Equal(rooms, []string{"ns-1"}) || !c.take(last.Key) {
		t.Fatalf("%s is not read: %v", last.Key, rooms)
	}
	c.SetPolicy(last)
	if _, status := c.Status(last.Key); status == nil || len(c.policies) != qos.MaxObjects {
		t.Errorf("%s is not kept: %d objects", last.Key, len(c.policies))
	}
}

// BenchmarkDestinations measures what one change among 5,000 pods and 500 objects takes, until the
// statuses of the objects that it is about are there as JSON.
func BenchmarkDestinations(b *testing.B) {
	for _, change := range crowdChanges {
		b.Run(strings.ReplaceAll(change.name, " ", "-"), func(b *testing.B) {
			c := newCrowd(b)
			b.ReportAllocs()
			on, compiled, written, bytes := false, 0, 0, 0
			for b.Loop() {
				on = !on
				change.do(b, c, on)
				compiled, written, bytes = c.written(b)
			}
			b.ReportMetric(float64(compiled), "compiled")
			b.ReportMetric(float64(written), "written")
			b.ReportMetric(float64(bytes), "written-B")
		})
	}
}

// TestBytesOfWrites: while pods come and go without a pause, a node is sent about the same of an object in a
// second, however many addresses that has.
func TestBytesOfWrites(t *testing.T) {
	const most = 8 << 10 // in a second
	last := lastWrite{time.Unix(1_700_000_000, 0), 1}
	for n := 1; n <= v1alpha1.MaxDestinationAddresses; n *= 2 {
		set := qos.Set{SetID: qos.SetID{Network: qos.NetworkID{Name: "rail"}}}
		for i := range n {
			set.Addresses = append(set.Addresses, netip.MustParseAddr(fmt.Sprintf("2001:db8:1234:5678:9abc:def0:1234:%x", 0x1000+i)))
		}
		status := qos.WriteSets(1, []qos.Set{set}, "")
		raw, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		pause := last.pause(status).Sub(last.at)
		if rate := float64(len(raw)) / pause.Seconds(); rate > most || pause > 10*time.Second {
			t.Errorf("%d addresses: %d bytes once in %s", n, len(raw), pause)
		}
		status.ObservedGeneration++
		if got := last.pause(status).Sub(last.at); got != time.Second {
			t.Errorf("an edit of an object with %d addresses waits %s", n, got)
		}
	}
}

// TestStatusOf: a backend that no longer enforces an object leaves its status, and an equal status is not
// written.
func TestStatusOf(t *testing.T) {
	c := &NetworkQoS{Now: time.Now}
	of := func(names ...string) (out []qosv1alpha1.Backend) {
		for _, name := range names {
			out = append(out, qosv1alpha1.Backend{Backend: name, Pods: 1, InPlace: 1})
		}
		return out
	}
	for _, tt := range []struct {
		have, want []qosv1alpha1.Backend
		writes     bool
	}{
		{of("tc", "PF"), of("tc"), true},
		{of("tc", "PF"), of("tc", "PF"), false},
		{of("tc", "another's"), of("tc"), false},
		{of("tc"), of("OVN"), true},
		{of("OVN"), of("OVN", "PF"), true},
	} {
		status, err := c.statusOf(&qosv1alpha1.Status{Backends: tt.have}, &Outcome{Backends: tt.want})
		if err != nil || (status != nil) != tt.writes {
			t.Errorf("%v, then %v: %v, %v", tt.have, tt.want, status, err)
		}
	}
}

// TestDestinationsByDefinition: an object that refers to a NetworkAttachmentDefinition has the addresses of pods on the topology of which a
// step joins that network, from the time when that is known, and those of no other topology.
func TestDestinationsByDefinition(t *testing.T) {
	objects, err := qostest.Objects([]byte(`{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: q, uid: q}, spec: {priority: 1,
netAttachRefs: [{kind: NetworkAttachmentDefinition, name: blue}], egress: [{dscp: 1, classifier: {to: [{podSelector: {}}]}}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	d := NewDestinations()
	d.SetPolicy(qos.New(objects[0]))
	pod := types.NamespacedName{Namespace: "ns", Name: "p"}
	d.SetPod(pod, "u", nil, nil)
	d.SetClaim("ns/c", &claim.Held{Pod: pod, UID: "u", Addresses: map[string][]netip.Addr{"rail": {netip.MustParseAddr("192.0.2.1")}, "tail": {netip.MustParseAddr("192.0.2.2")}}})
	of := func() string {
		_, status := d.Status(types.NamespacedName{Namespace: "ns", Name: "q"})
		return fmt.Sprint(status.Sets)
	}
	if have := of(); have != "[]" {
		t.Errorf("before the steps of the topology are known: %s", have)
	}
	d.setDefinitions("rail", map[string]string{"net": "ns/blue", "other": "ns/red"})
	if have := of(); have != "[{0 0 rail [192.0.2.1]}]" {
		t.Errorf("with a step on the network: %s", have)
	}
	d.setDefinitions("rail", map[string]string{"other": "ns/red"})
	if have := of(); have != "[]" {
		t.Errorf("without: %s", have)
	}
}

// TestDestinationsOnPrimary: of 5,000 pods on their primary network those that an object selects are its destinations, if they are
// not too many, and a change of a pod concerns the objects that select it alone. Without --pod-network there are none.
func TestDestinationsOnPrimary(t *testing.T) {
	object := func(name, selector string) *qos.Policy {
		objects, err := qostest.Objects(fmt.Appendf(nil, "{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: %s, uid: %s}, spec: {priority: 1, egress: [{dscp: 1, classifier: {to: [{podSelector: {%s}}]}}]}}", name, name, selector))
		if err != nil {
			t.Fatal(err)
		}
		return qos.New(objects[0])
	}
	for _, ours := range []bool{true, false} {
		d := NewDestinations()
		d.PodNetwork = ours
		d.SetPrimary("pods", nil, false)
		d.SetPolicy(object("few", "matchLabels: {role: r3}"))
		d.SetPolicy(object("all", ""))
		pod := func(n int) types.NamespacedName {
			return types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("p-", n)}
		}
		address := func(n int) []netip.Addr {
			return []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(n / 250), byte(n % 250)})}
		}
		for n := range 5000 {
			d.SetPod(pod(n), "u", map[string]string{"role": fmt.Sprint("r", n%10)}, address(n))
		}
		has := func(name string) (addresses, over int) {
			_, status := d.Status(types.NamespacedName{Namespace: "ns", Name: name})
			if status == nil {
				return 0, 0
			}
			for _, s := range status.Sets {
				if s.Topology != "pods" {
					t.Errorf("addresses on %q", s.Topology)
				}
				addresses += len(s.Addresses)
			}
			return addresses, int(status.TooMany)
		}
		few, over := has("few")
		none, tooMany := has("all")
		if ours && (few != 500 || over != 0 || none != 0 || tooMany == 0) || !ours && few+over+none+tooMany > 0 {
			t.Errorf("ours %t: %d addresses (over: %d), and of all pods %d (over: %d)", ours, few, over, none, tooMany)
		}
		changed := map[types.NamespacedName]bool{}
		d.OnChange(func(key types.NamespacedName) { changed[key] = true })
		clear(changed)
		d.SetPod(pod(13), "u", map[string]string{"role": "r3"}, address(4999))
		if ours && (!changed[types.NamespacedName{Namespace: "ns", Name: "few"}] || len(changed) > 1) || !ours && len(changed) > 0 {
			t.Errorf("ours %t: another address of a pod changes %v", ours, changed)
		}
	}
}

// TestPodAddresses holds which addresses a pod has on its primary network.
func TestPodAddresses(t *testing.T) {
	for object, want := range map[string]string{
		"{status: {podIPs: [{ip: 10.244.0.9}, {ip: 'fd00::9'}]}}":                             "[10.244.0.9 fd00::9]",
		"{status: {podIPs: [{ip: '::ffff:10.244.0.9'}]}}":                                     "[10.244.0.9]",
		"{status: {phase: Pending}}":                                                          "[]",
		"{spec: {hostNetwork: true}, status: {podIPs: [{ip: 192.0.2.1}]}}":                    "[]",
		"{status: {podIPs: [{ip: none}, {ip: 'fe80::1%eth0'}, 7]}}":                           "[]",
		"{status: {podIPs: [{ip: 10.244.0.1}, {ip: 10.244.0.2}, {ip: 10.244.0.3}, {ip: x}]}}": "[10.244.0.1 10.244.0.2]",
	} {
		var content map[string]any
		if err := yaml.Unmarshal([]byte(object), &content); err != nil {
			t.Fatal(err)
		}
		if have := fmt.Sprint(podAddresses(content)); have != want {
			t.Errorf("%s: %s, want %s", object, have, want)
		}
	}
}

// TestUnaddressed: a destination that selects only pods without an address on the network, such as those of the host's network, is named.
func TestUnaddressed(t *testing.T) {
	objects, err := qostest.Objects([]byte(`{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: q}, spec: {priority: 1,
egress: [{dscp: 1, classifier: {to: [{podSelector: {matchLabels: {app: web}}}, {namespaceSelector: {matchLabels: {team: a}}}]}}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	p := qos.New(objects[0])
	d := NewDestinations()
	d.PodNetwork = true
	d.SetPrimary("pods", nil, false)
	d.SetPolicy(p)
	web, host := types.NamespacedName{Namespace: "ns", Name: "web"}, types.NamespacedName{Namespace: "other", Name: "host"}
	address := []netip.Addr{netip.MustParseAddr("10.244.0.9")}
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, ""}, // selects no pod at all
		{func() { d.SetPod(web, "u", map[string]string{"app": "web"}, nil) }, "egress[0].classifier.to[0]"},
		{func() { d.SetPod(web, "u", map[string]string{"app": "web"}, address) }, ""},
		{func() { d.SetPod(host, "u", nil, nil) }, ""}, // of a namespace that is not selected
		{func() { d.SetNamespace("other", map[string]string{"team": "a"}) }, "egress[0].classifier.to[1]"},
		{func() { d.SetPod(types.NamespacedName{Namespace: "other", Name: "pod"}, "u", nil, address) }, ""},
	} {
		step.change()
		left := maxMeant
		if have := d.unaddressed(p, &left); have != step.want {
			t.Errorf("%q, want %q", have, step.want)
		}
		none := 0
		if have := d.unaddressed(p, &none); have != "" {
			t.Errorf("%q, and nothing may be compared", have)
		}
	}
}
