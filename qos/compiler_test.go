package qos_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/qos/v1alpha1"
	topologyv1alpha1 "github.com/plumbline/plumbline/topology/v1alpha1"
)

// world is the input of a compiler in its raw form, and the oracle: it decides about a
// packet by reading every object, and shares no code with the compiler.
type world struct {
	rng        *rand.Rand
	names      []string // of namespaces
	namespaces map[string]map[string]string
	objects    map[types.NamespacedName]*v1alpha1.NetworkQoS
	pods       map[types.NamespacedName]*qos.Pod
	// networks have the same labels in all pods, as they do in a cluster, unless nil.
	networks map[qos.NetworkID]qos.Network
}

func newWorld(seed uint64) *world {
	return &world{
		rng: rand.New(rand.NewPCG(seed, 0)), names: []string{"red", "blue", "green"}, namespaces: map[string]map[string]string{},
		objects: map[types.NamespacedName]*v1alpha1.NetworkQoS{}, pods: map[types.NamespacedName]*qos.Pod{},
	}
}

// verdict is an object's decision about a packet.
type verdict struct {
	object types.NamespacedName
	rule   int
	dscp   int32
	rate   int64
}

// decide is the oracle. Precedence is 10000 + 20 × priority + index; of equal ones the
// object whose name is first decides.
func (w *world) decide(pod *qos.Pod, at *qos.Attachment, p qos.Packet) (best verdict, found bool) {
	precedence := -1
	for key, o := range w.objects {
		if key.Namespace != pod.Key.Namespace || !matches(o.Spec.PodSelector, pod.Labels) || !w.onNetwork(o, at) {
			continue
		}
		for i, rule := range o.Spec.Egress {
			mine := 10000 + 20*int(o.Spec.Priority) + i
			if mine < precedence || mine == precedence && key.Name > best.object.Name || !w.classifies(o, at, rule.Classifier, p) {
				continue
			}
			precedence, found = mine, true
			best = verdict{object: key, rule: i, dscp: *rule.DSCP}
			if rule.Bandwidth != nil {
				best.rate = *rule.Bandwidth.Rate
			}
		}
	}
	return best, found
}

// matches is a selector of labels; nil selects everything.
func matches(s *metav1.LabelSelector, of map[string]string) bool {
	if s == nil {
		return true
	}
	for k, v := range s.MatchLabels {
		if of[k] != v {
			return false
		}
	}
	return true
}

func (w *world) onNetwork(o *v1alpha1.NetworkQoS, at *qos.Attachment) bool {
	n := at.Network
	for _, s := range o.Spec.NetworkSelectors {
		if sel := s.NetworkTopologySelector; sel != nil && n.Kind == qos.NetworkTopology && matches(sel.NetworkSelector, n.Labels) {
			return true
		}
		if sel := s.NetworkAttachmentDefinitionSelector; sel != nil && n.Kind == qos.NetworkAttachmentDefinition &&
			matches(sel.NetworkSelector, n.Labels) && matches(sel.NamespaceSelector, w.namespaces[n.Namespace]) {
			return true
		}
	}
	for _, r := range o.Spec.NetAttachRefs {
		if string(n.Kind) == r.Kind && n.Name == r.Name && (n.Kind == qos.NetworkTopology || n.Namespace == r.Namespace) {
			return true
		}
	}
	return len(o.Spec.NetworkSelectors) == 0 && len(o.Spec.NetAttachRefs) == 0 && n.Primary
}

func (w *world) classifies(o *v1alpha1.NetworkQoS, at *qos.Attachment, c *v1alpha1.Classifier, p qos.Packet) bool {
	if c == nil {
		return true
	}
	portIn := func(q v1alpha1.Port) bool {
		return map[string]qos.Protocol{"TCP": 6, "UDP": 17, "SCTP": 132}[q.Protocol] == p.Protocol &&
			(q.Port == nil || !p.Fragment && int32(p.Port) == *q.Port)
	}
	if c.Port != nil && *c.Port != (v1alpha1.Port{}) && !portIn(*c.Port) || len(c.Ports) > 0 && !slices.ContainsFunc(c.Ports, portIn) {
		return false
	}
	return len(c.To) == 0 || slices.ContainsFunc(c.To, func(d v1alpha1.Destination) bool {
		if d.IPBlock != nil {
			return netip.MustParsePrefix(d.IPBlock.CIDR).Contains(p.Destination) && !slices.ContainsFunc(d.IPBlock.Except, func(e string) bool {
				return netip.MustParsePrefix(e).Contains(p.Destination)
			})
		}
		for _, pod := range w.pods {
			known, ok := w.namespaces[pod.Key.Namespace]
			if !matches(d.PodSelector, pod.Labels) ||
				d.NamespaceSelector == nil && pod.Key.Namespace != o.Namespace ||
				d.NamespaceSelector != nil && (!ok || !matches(d.NamespaceSelector, known)) {
				continue
			}
			for _, a := range pod.Attachments {
				// The compiler may be given a network with other labels for each pod, as while they change: an
				// address counts by those of its own pod.
				if a.Network.NetworkID == at.Network.NetworkID && slices.Contains(a.Addresses, p.Destination) && w.onNetwork(o, &a) {
					return true
				}
			}
		}
		return false
	})
}

func (w *world) label() map[string]string {
	return map[string]string{"a": fmt.Sprint(w.rng.IntN(2)), "b": fmt.Sprint(w.rng.IntN(2))}
}

func (w *world) selector() *metav1.LabelSelector {
	switch w.rng.IntN(4) {
	case 0:
		return nil
	case 1:
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{pick(w.rng, "a", "b"): fmt.Sprint(w.rng.IntN(2))}}
}

func (w *world) namespace() string { return pick(w.rng, w.names...) }

func (w *world) address() netip.Addr {
	if w.rng.IntN(3) == 0 {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%x", w.rng.IntN(32)))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", w.rng.IntN(2), w.rng.IntN(32)))
}

func (w *world) prefix() string {
	a := w.address()
	p, _ := a.Prefix(a.BitLen() - w.rng.IntN(10))
	return p.String()
}

func (w *world) network() qos.Network {
	n := qos.Network{Labels: w.label(), Primary: w.rng.IntN(3) == 0}
	n.NetworkID = qos.NetworkID{Kind: qos.NetworkTopology, Name: pick(w.rng, "fast", "slow")}
	if w.rng.IntN(2) == 0 {
		n.NetworkID = qos.NetworkID{Kind: qos.NetworkAttachmentDefinition, Namespace: w.namespace(), Name: "net"}
	}
	if known, ok := w.networks[n.NetworkID]; ok {
		return known
	}
	if w.networks != nil {
		w.networks[n.NetworkID] = n
	}
	return n
}

func (w *world) pod() *qos.Pod {
	p := &qos.Pod{
		Key:    types.NamespacedName{Namespace: w.namespace(), Name: fmt.Sprintf("pod%d", w.rng.IntN(6))},
		Labels: w.label(),
	}
	for i := range w.rng.IntN(3) {
		a := qos.Attachment{Network: w.network(), Interface: fmt.Sprintf("net%d", i)}
		for range w.rng.IntN(3) {
			a.Addresses = append(a.Addresses, w.address())
		}
		p.Attachments = append(p.Attachments, a)
	}
	return p
}

func (w *world) port() v1alpha1.Port {
	p := v1alpha1.Port{Protocol: pick(w.rng, "TCP", "UDP", "SCTP")}
	if w.rng.IntN(2) == 0 {
		p.Port = new(int32(80 + w.rng.IntN(3)))
	}
	return p
}

func (w *world) classifier() *v1alpha1.Classifier {
	c := &v1alpha1.Classifier{}
	for range w.rng.IntN(3) {
		var d v1alpha1.Destination
		switch w.rng.IntN(3) {
		case 0:
			d.IPBlock = &v1alpha1.IPBlock{CIDR: w.prefix()}
			for range w.rng.IntN(3) {
				d.IPBlock.Except = append(d.IPBlock.Except, w.prefix())
			}
		case 1:
			d.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "1"}}
			d.PodSelector = w.selector()
		default:
			d.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"b": "1"}}
		}
		c.To = append(c.To, d)
	}
	if w.rng.IntN(4) == 0 {
		c.Port = new(w.port())
		return c
	}
	for range w.rng.IntN(5) {
		c.Ports = append(c.Ports, w.port())
	}
	return c
}

func (w *world) object() *v1alpha1.NetworkQoS {
	o := &v1alpha1.NetworkQoS{}
	o.Namespace, o.Name = w.namespace(), fmt.Sprintf("qos%d", w.rng.IntN(4))
	o.Spec.Priority, o.Spec.PodSelector = int32(w.rng.IntN(3)), w.selector()
	for range pick(w.rng, 0, 1, 2, 5, 14) {
		r := v1alpha1.Rule{DSCP: new(int32(w.rng.IntN(64)))}
		if w.rng.IntN(2) == 0 {
			r.Bandwidth = &v1alpha1.Bandwidth{Rate: new(int64(1 + w.rng.IntN(1000)))}
		}
		if w.rng.IntN(4) > 0 {
			r.Classifier = w.classifier()
		}
		o.Spec.Egress = append(o.Spec.Egress, r)
	}
	switch w.rng.IntN(3) {
	case 0:
		o.Spec.NetworkSelectors = []v1alpha1.NetworkSelector{
			{Type: v1alpha1.NetworkTopologies, NetworkTopologySelector: &v1alpha1.Selector{NetworkSelector: w.selector()}},
			{Type: v1alpha1.NetworkAttachmentDefinitions, NetworkAttachmentDefinitionSelector: &v1alpha1.Selector{NetworkSelector: w.selector(), NamespaceSelector: w.selector()}},
		}[w.rng.IntN(2):]
	case 1:
		n := w.network()
		o.Spec.NetAttachRefs = append(o.Spec.NetAttachRefs, objectReference(n))
	}
	return o
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// change changes one thing in the world and in the compiler.
func (w *world) change(c *qos.Compiler) (string, qos.Changed) {
	switch w.rng.IntN(8) {
	case 0, 1, 2:
		p := w.pod()
		w.pods[p.Key] = p
		return "set pod " + p.Key.String(), c.SetPod(p)
	case 3:
		key := w.pod().Key
		delete(w.pods, key)
		return "delete pod " + key.String(), c.DeletePod(key)
	case 4, 5:
		o := w.object()
		key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		w.objects[key] = o
		return "set object " + key.String(), c.SetPolicy(qos.New(o))
	case 6:
		o := w.object()
		key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		delete(w.objects, key)
		return "delete object " + key.String(), c.DeletePolicy(key)
	}
	name := w.namespace()
	if w.rng.IntN(4) == 0 {
		delete(w.namespaces, name)
		return "delete namespace " + name, c.DeleteNamespace(name)
	}
	w.namespaces[name] = w.label()
	return "set namespace " + name, c.SetNamespace(name, maps.Clone(w.namespaces[name]))
}

// outcome is all that a compiler returns: the rules of all pods, and the members of all sets
// in them.
type outcome struct {
	rules map[types.NamespacedName][][]qos.Rule
	sets  map[qos.SetID][]netip.Addr
	// written are the sets of each object as its status has them.
	written map[types.NamespacedName]*topologyv1alpha1.Destinations
}

func (w *world) outcome(c *qos.Compiler) outcome {
	out := outcome{map[types.NamespacedName][][]qos.Rule{}, map[qos.SetID][]netip.Addr{}, map[types.NamespacedName]*topologyv1alpha1.Destinations{}}
	for key := range w.objects {
		out.written[key] = written(c, key)
	}
	for key := range w.pods {
		out.rules[key] = c.Rules(key)
		for _, rules := range out.rules[key] {
			for _, r := range rules {
				for _, id := range r.Sets {
					out.sets[id] = c.Members(id)
				}
			}
		}
	}
	return out
}

// written is the written form of an object's sets.
func written(c *qos.Compiler, key types.NamespacedName) *topologyv1alpha1.Destinations {
	sets, over := c.Sets(key)
	return qos.WriteSets(1, sets, over)
}

// TestCompiler holds three laws over random histories. The compiled rules decide about
// every packet as the oracle does. A compiler that saw every change has the same outcome as
// one that saw the result alone. A change reports all that it alters.
func TestCompiler(t *testing.T) {
	for seed := range uint64(40) {
		w, c := newWorld(seed), qos.NewCompiler()
		if seed%2 == 0 {
			w.networks = map[qos.NetworkID]qos.Network{}
		}
		before := w.outcome(c)
		for step := range 60 {
			what, changed := w.change(c)
			what = fmt.Sprintf("%s (seed %d, step %d)", what, seed, step)
			after := w.outcome(c)
			for key, rules := range after.rules {
				if !reflect.DeepEqual(before.rules[key], rules) && !changed.Pods[key] {
					t.Fatalf("%s: pod %s has other rules, which is not reported", what, key)
				}
			}
			for id, members := range after.sets {
				if was, known := before.sets[id]; known && !slices.Equal(was, members) && !changed.Sets[id] {
					t.Fatalf("%s: set %+v has other members, which is not reported:\n%v\n%v", what, id, was, members)
				}
			}
			for key, written := range after.written {
				if was := before.written[key]; was != nil && !reflect.DeepEqual(was, written) && !strings.HasSuffix(strings.Split(what, " (")[0], "object "+key.String()) &&
					!touches(changed, key) {
					t.Fatalf("%s: object %s has other sets, which is not reported:\n%+v\n%+v", what, key, was, written)
				}
			}
			if w.networks != nil {
				w.read(t, c, what)
			}
			for id := range changed.Sets {
				if strings.HasPrefix(what, "set pod") && w.objects[id.Policy] == nil {
					t.Fatalf("%s: set %+v of no object is reported", what, id)
				}
			}
			before = after
			w.check(t, c, what)
		}
		if again := w.outcome(w.compile()); !reflect.DeepEqual(again, before) {
			t.Fatalf("seed %d: compiled at once, the outcome is another:\n%+v\n%+v", seed, again, before)
		}
	}
}

// touches reports whether a change is reported of a set of an object.
func touches(changed qos.Changed, object types.NamespacedName) bool {
	for id := range changed.Sets {
		if id.Policy == object {
			return true
		}
	}
	return false
}

// read holds that what is read of the status of an object are the members of the sets that the
// rules of its pods name, on topologies.
func (w *world) read(t *testing.T, c *qos.Compiler, what string) {
	t.Helper()
	for key := range w.pods {
		for _, rules := range c.Rules(key) {
			for _, r := range rules {
				for _, id := range r.Sets {
					if id.Network.Kind != qos.NetworkTopology {
						continue
					}
					if have := qos.ReadSets(id.Policy, written(c, id.Policy))[id]; !slices.Equal(have, c.Members(id)) {
						t.Fatalf("%s: of set %+v the status has %v, want %v", what, id, have, c.Members(id))
					}
				}
			}
		}
	}
}

// compile returns a new compiler of the whole world, policies first.
func (w *world) compile() *qos.Compiler {
	c := qos.NewCompiler()
	for _, o := range w.objects {
		c.SetPolicy(qos.New(o))
	}
	for _, p := range w.pods {
		c.SetPod(p)
	}
	for name, of := range w.namespaces {
		c.SetNamespace(name, of)
	}
	return c
}

// check compares the compiler with the oracle, on packets to every address there is.
func (w *world) check(t *testing.T, c *qos.Compiler, what string) {
	t.Helper()
	for key, pod := range w.pods {
		for i, rules := range c.Rules(key) {
			at := &pod.Attachments[i]
			for range 12 {
				p := qos.Packet{Destination: w.address(), Protocol: pick(w.rng, qos.TCP, qos.UDP, qos.SCTP, 1), Port: uint16(80 + w.rng.IntN(4)), Fragment: w.rng.IntN(6) == 0}
				want, found := w.decide(pod, at, p)
				n := slices.IndexFunc(rules, func(r qos.Rule) bool { return qostest.Matches(&r, p, c.Members) })
				if (n >= 0) != found {
					t.Fatalf("%s: pod %s on %s, packet %+v: rule %d, want %+v", what, key, at.Interface, p, n, want)
				}
				if !found {
					continue
				}
				if got := (verdict{rules[n].Policy, rules[n].Index, int32(rules[n].DSCP), int64(rules[n].RateKbit)}); got != want {
					t.Fatalf("%s: pod %s on %s, packet %+v: %+v, want %+v", what, key, at.Interface, p, got, want)
				}
			}
		}
	}
}

// TestOnePodMore: a pod that no destination selects changes its own rules alone.
func TestOnePodMore(t *testing.T) {
	c := qos.NewCompiler()
	for i := range 50 {
		c.SetPolicy(qos.New(&v1alpha1.NetworkQoS{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprintf("q%d", i)},
			Spec: v1alpha1.Spec{Priority: int32(i), Egress: []v1alpha1.Rule{{DSCP: new(int32(i)), Classifier: &v1alpha1.Classifier{
				To: []v1alpha1.Destination{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}},
			}}}},
		}))
	}
	attached := []qos.Attachment{{Network: qos.Network{Primary: true}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}
	for i := range 100 {
		c.SetPod(&qos.Pod{Key: types.NamespacedName{Namespace: "n", Name: fmt.Sprintf("p%d", i)}, Attachments: attached})
	}
	web := types.NamespacedName{Namespace: "n", Name: "web"}
	changed := c.SetPod(&qos.Pod{Key: web, Attachments: attached})
	if len(changed.Pods) != 1 || !changed.Pods[web] || len(changed.Sets) != 0 {
		t.Errorf("a pod more changed %d pods and %d sets", len(changed.Pods), len(changed.Sets))
	}
	changed = c.SetPod(&qos.Pod{Key: types.NamespacedName{Namespace: "n", Name: "db"}, Labels: labels.Set{"app": "db"}, Attachments: attached})
	if len(changed.Pods) != 1 || len(changed.Sets) != 50 {
		t.Errorf("a destination more changed %d pods and %d sets", len(changed.Pods), len(changed.Sets))
	}
}

// TestCovering: objects without networkSelectors cover the primary network of a pod alone.
func TestCovering(t *testing.T) {
	object := func(name string, priority int32, to ...string) *qos.Policy {
		o := &v1alpha1.NetworkQoS{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Spec: v1alpha1.Spec{Priority: priority}}
		for _, cidr := range to {
			o.Spec.Egress = append(o.Spec.Egress, v1alpha1.Rule{DSCP: new(int32(1)), Classifier: &v1alpha1.Classifier{
				To: []v1alpha1.Destination{{IPBlock: &v1alpha1.IPBlock{CIDR: cidr}}},
			}})
		}
		return qos.New(o)
	}
	c := qos.NewCompiler()
	for _, p := range []*qos.Policy{
		object("a", 1, "10.0.0.0/8", "192.0.2.0/24"), object("b", 1, "10.1.0.0/16", "198.51.100.0/24"), object("other", 2, "10.0.0.0/8"),
	} {
		c.SetPolicy(p)
	}
	c.SetPod(&qos.Pod{Key: types.NamespacedName{Namespace: "n", Name: "p"}, Attachments: []qos.Attachment{{Network: qos.Network{Primary: true}}, {Network: qos.Network{}}}})
	if covering := c.Covering(types.NamespacedName{Namespace: "n", Name: "p"}); len(covering) != 2 || len(covering[0]) != 3 || len(covering[1]) != 0 {
		t.Errorf("the pod is covered by %v", covering)
	}
}

// BenchmarkChange is one change in a cluster of 100 namespaces, 5,000 pods and 500 objects,
// and all that is read again after it.
func BenchmarkChange(b *testing.B) {
	w, c := newWorld(1), qos.NewCompiler()
	w.names = nil
	for i := range 100 {
		w.names = append(w.names, fmt.Sprintf("namespace%d", i))
	}
	w.fill(c, 5000, 500)
	for b.Loop() {
		_, changed := w.change(c)
		for key := range changed.Pods {
			c.Rules(key)
		}
		for id := range changed.Sets {
			c.Members(id)
		}
	}
}

func (w *world) fill(c *qos.Compiler, pods, objects int) {
	for i := range objects {
		o := w.object()
		o.Name = fmt.Sprintf("object%d", i)
		c.SetPolicy(qos.New(o))
	}
	for i := range pods {
		p := w.pod()
		p.Key.Name = fmt.Sprintf("p%d", i)
		c.SetPod(p)
	}
}
