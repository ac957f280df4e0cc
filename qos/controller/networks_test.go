package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// attachmentDefinition is a NetworkAttachmentDefinition.
func attachmentDefinition(namespace, name, net string) *qos.Definition {
	return &qos.Definition{
		NetworkID: qos.NetworkID{Kind: qos.NetworkAttachmentDefinition, Namespace: namespace, Name: name}, Labels: map[string]string{"net": net},
	}
}

// selecting is an object that selects networks by labels, and has pods as a destination.
func selecting(t testing.TB, name, selectors string) *qos.Policy {
	t.Helper()
	objects, err := qostest.Objects(fmt.Appendf(nil, `{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: %s, uid: %[1]s}, spec: {priority: 1,
networkSelectors: [%s], egress: [{dscp: 1, classifier: {to: [{podSelector: {}}]}}]}}`, name, selectors))
	if err != nil {
		t.Fatal(err)
	}
	p := qos.New(objects[0])
	if p.Err != nil {
		t.Fatal(p.Err)
	}
	return p
}

const ofTeam = "{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {namespaceSelector: {matchLabels: {team: a}}, networkSelector: {matchLabels: {net: blue}}}}"

// TestNetworksByLabels holds what is written of an object that selects networks by labels, as objects of others and namespaces come, change and
// go, with the addresses of destinations on these networks; and that a change concerns the objects that select something else since, and no others.
func TestNetworksByLabels(t *testing.T) {
	d := NewDestinations()
	d.SetPolicy(selecting(t, "q", ofTeam))
	d.SetPolicy(selecting(t, "other", strings.ReplaceAll(ofTeam, "blue", "red")))
	pod := types.NamespacedName{Namespace: "ns", Name: "p"}
	d.SetPod(pod, "u", nil, nil)
	d.setDefinitions("rail", map[string]string{"net": "x/one"})
	d.SetClaim("ns/c", &claim.Held{Pod: pod, UID: "u", Addresses: map[string][]netip.Addr{"rail": {netip.MustParseAddr("192.0.2.1")}}})
	changed := map[string]bool{}
	d.OnChange(func(key types.NamespacedName) { changed[key.Name] = true })
	of := func(name string) string {
		_, status := d.Status(types.NamespacedName{Namespace: "ns", Name: name})
		return fmt.Sprint(status.Networks, len(status.Sets))
	}
	of("q")
	of("other")
	clear(changed)
	for _, step := range []struct {
		what   string
		change func()
		want   string
		queued bool
	}{
		{"a definition in a namespace that is not known", func() { d.setNetwork(attachmentDefinition("x", "one", "blue")) }, "[] 0", false},
		{"its namespace", func() { d.SetNamespace("x", map[string]string{"team": "a"}) }, "[x/one] 1", true},
		{"one of other labels", func() { d.setNetwork(attachmentDefinition("x", "two", "green")) }, "[x/one] 1", false},
		{"which change", func() { d.setNetwork(attachmentDefinition("x", "two", "blue")) }, "[x/one x/two] 1", true},
		{"nothing", func() { d.setNetwork(attachmentDefinition("x", "two", "blue")) }, "[x/one x/two] 1", false},
		{"one is gone", func() { d.deleteNetwork(attachmentDefinition("x", "one", "").NetworkID) }, "[x/two] 0", true},
		{"another label of the namespace", func() { d.SetNamespace("x", map[string]string{"team": "a", "more": "b"}) }, "[x/two] 0", false},
		{"its label", func() { d.SetNamespace("x", map[string]string{"team": "b"}) }, "[] 0", true},
		{"and again", func() { d.SetNamespace("x", map[string]string{"team": "a"}) }, "[x/two] 0", true},
		{"the namespace is gone", func() { d.DeleteNamespace("x") }, "[] 0", true},
	} {
		step.change()
		if changed["q"] != step.queued {
			t.Errorf("%s: the object is queued: %t", step.what, changed["q"])
		}
		if have := of("q"); have != step.want {
			t.Errorf("%s: %s, want %s", step.what, have, step.want)
		}
		of("other")
		clear(changed)
	}
	// Of two selectors, a namespace may match one before and the other one after.
	d.SetPolicy(selecting(t, "two", ofTeam+", {networkSelectionType: SecondaryUserDefinedNetworks, secondaryUserDefinedNetworkSelector: {namespaceSelector: {matchLabels: {team: b}}, networkSelector: {}}}"))
	d.setNetwork(&qos.Definition{NetworkID: qos.NetworkID{Kind: qos.UserDefinedNetwork, Namespace: "x", Name: "second"}, Primary: new(false)})
	for _, step := range []struct{ team, want string }{{"a", "[x/two] 0"}, {"b", "[x/second] 0"}, {"a", "[x/two] 0"}, {"c", "[] 0"}} {
		clear(changed)
		d.SetNamespace("x", map[string]string{"team": step.team})
		if queued, have := changed["two"], of("two"); !queued || have != step.want {
			t.Errorf("two selectors, team %s: %s, want %s; queued: %t", step.team, have, step.want, queued)
		}
	}
	of("other")
	d.DeletePolicy(types.NamespacedName{Namespace: "ns", Name: "two"})
	d.DeletePolicy(types.NamespacedName{Namespace: "ns", Name: "q"})
	if len(d.stale)+len(d.selected) > 1 {
		t.Errorf("kept of an object that is gone: %v, %v", d.stale, d.selected)
	}
}

// TestNetworksOfOwners holds that a definition that comes after its owner is selected with it.
func TestNetworksOfOwners(t *testing.T) {
	d := NewDestinations()
	d.SetPolicy(selecting(t, "q", "{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {networkSelector: {matchLabels: {net: blue}}}}"))
	of := func() string {
		_, status := d.Status(types.NamespacedName{Namespace: "ns", Name: "q"})
		return fmt.Sprint(status.Networks)
	}
	owner := qos.NetworkID{Kind: qos.ClusterUserDefinedNetwork, Name: "tenant"}
	d.setNetwork(&qos.Definition{NetworkID: owner, Labels: map[string]string{"net": "blue"}})
	if have := of(); have != "[ns/tenant]" {
		t.Errorf("%s", have)
	}
	made := attachmentDefinition("ns", "made", "")
	made.Owner = ownerOf([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c"}, {APIVersion: "k8s.ovn.org/v1", Kind: "ClusterUserDefinedNetwork", Name: "tenant"}}, "ns")
	d.setNetwork(made)
	if have := of(); have != "[ns/made ns/tenant]" {
		t.Errorf("with what it owns: %s", have)
	}
	d.deleteNetwork(owner)
	if have := of(); have != "[]" {
		t.Errorf("without the owner: %s", have)
	}
}

// TestObjectsOfOVNKubernetes: an object that selects networks by labels alone, and is not enforced by plumbline, has no conditions of ours where
// ovn-kubernetes enforces such objects, and says why otherwise.
func TestObjectsOfOVNKubernetes(t *testing.T) {
	valid, invalid := selecting(t, "q", ofTeam), *selecting(t, "bad", ofTeam)
	invalid.Err = &topology.Listed{Title: `NetworkQoS "ns/bad"`, Problems: []string{"spec.priority: is 101"}}
	for reason, p := range map[string]*qos.Policy{reasonTooMany: valid, reasonInvalid: &invalid} {
		if o, is := Without(p, false, true); is {
			t.Errorf("beside ovn-kubernetes: %+v", o.Conditions)
		}
		if o, is := Without(p, true, true); !is || o.Conditions[0].Reason != reason {
			t.Errorf("alone: %+v, want %s", o.Conditions, reason)
		}
	}
	// One that plumbline has enforced says that it no longer does.
	c, had := &NetworkQoS{}, &qosv1alpha1.Status{Conditions: []metav1.Condition{{Type: qosv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: reasonAccepted}}}
	for reason, p := range map[string]*qos.Policy{reasonTooMany: valid, reasonInvalid: &invalid} {
		if o, is := Without(p, c.speaks(&qosv1alpha1.Status{}), true); is {
			t.Errorf("beside ovn-kubernetes: %+v", o.Conditions)
		}
		if o, is := Without(p, c.speaks(had), true); !is || o.Conditions[0].Reason != reason || o.Conditions[0].Status != metav1.ConditionFalse {
			t.Errorf("after it was enforced: %t, %+v, want %s", is, o.Conditions, reason)
		}
	}
	apart := Conditions([]*qos.Policy{valid}, func(*qos.Policy) Decision { return Decision{Networks: []string{"x/one"}} }, nil, nil, true, nil)[0]
	if !apart.Elsewhere || apart.Conditions[0].Reason != reasonNoNetwork || strings.Contains(apart.Conditions[0].Message, "x/one") {
		t.Errorf("on no network of a topology: %+v", apart)
	}
}

// TestTiesByLabels: objects that select one network in different ways tie, and those that have no effect do not.
func TestTiesByLabels(t *testing.T) {
	const clusterWide = "{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {networkSelector: {}}}"
	const ofTopologies = "{networkSelectionType: NetworkTopologies, networkTopologySelector: {}}"
	topologies := []v1alpha1.NetworkTopology{
		{ObjectMeta: metav1.ObjectMeta{Name: "one", Annotations: map[string]string{v1alpha1.AnnotationDefinition: "x/one"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "two", Annotations: map[string]string{v1alpha1.AnnotationDefinition: "x/two"}}},
	}
	for _, tt := range []struct {
		what, a, b string
		of         map[string]Decision
		want       string
	}{
		{"the same network", ofTeam, clusterWide, map[string]Decision{"a": {Networks: []string{"x/one"}}, "b": {Networks: []string{"x/one", "x/two"}}}, "SamePrecedence SamePrecedence"},
		{"two networks", ofTeam, clusterWide, map[string]Decision{"a": {Networks: []string{"x/one"}}, "b": {Networks: []string{"x/two"}}}, "NoTie NoTie"},
		{"two networks of one kind", ofTeam, ofTeam, map[string]Decision{"a": {Networks: []string{"x/one"}}, "b": {Networks: []string{"x/two"}}}, "NoTie NoTie"},
		{"any topology", ofTeam, ofTopologies, map[string]Decision{"a": {Networks: []string{"x/one"}}}, "SamePrecedence SamePrecedence"},
		{"networks of ovn-kubernetes", ofTeam, clusterWide, map[string]Decision{"a": {Networks: []string{"x/none"}}, "b": {Networks: []string{"x/none"}}}, "NoTie NoTie"},
		{"without effect", ofTeam, ofTopologies, map[string]Decision{"a": {Networks: []string{"x/one"}, Over: true}}, "NoTie NoTie"},
	} {
		var have []string
		for _, o := range Conditions([]*qos.Policy{selecting(t, "a", tt.a), selecting(t, "b", tt.b)}, func(p *qos.Policy) Decision { return tt.of[p.Key.Name] }, topologies, nil, false, nil) {
			have = append(have, o.Conditions[1].Reason)
		}
		if strings.Join(have, " ") != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, have, tt.want)
		}
	}
}

// TestRoles holds how the role of a UserDefinedNetwork is read.
func TestRoles(t *testing.T) {
	for spec, want := range map[string]string{
		"{topology: Layer2, layer2: {role: Primary}}":   "true",
		"{topology: Layer3, layer3: {role: Secondary}}": "false",
		"{topology: Layer3}":                            "none",
		"7":                                             "none",
		"{layer2: {role: [Primary]}}":                   "none",
	} {
		var content map[string]any
		if err := yaml.Unmarshal([]byte("{metadata: {name: n}, spec: "+spec+"}"), &content); err != nil {
			t.Fatal(err)
		}
		have := "none"
		if p := roleOf(&unstructured.Unstructured{Object: content}).primary; p != nil {
			have = fmt.Sprint(*p)
		}
		if have != want {
			t.Errorf("%s: %s, want %s", spec, have, want)
		}
	}
}

// TestNetworksOfHostileTenants bounds what an edit of an object of others costs, with as many objects as 20 namespaces may have enforced, all of
// which select everything, and 10,000 networks: the edit itself, and what is computed then of one object; and that the object remains in force
// on the networks that topologies are on.
func TestNetworksOfHostileTenants(t *testing.T) {
	d := NewDestinations()
	const networks = 10_000
	for i := range networks {
		namespace := fmt.Sprint("x-", i%500)
		d.SetNamespace(namespace, map[string]string{"team": "a"})
		d.setNetwork(attachmentDefinition(namespace, fmt.Sprint("n-", i), "blue"))
	}
	d.setNamed("rail", []string{"x-1/n-1", "x-2/n-2", "elsewhere/n"})
	const namespaces = 20
	for n := range namespaces {
		for i := range qos.MaxObjects {
			p := selecting(t, fmt.Sprint("q-", i), "{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {namespaceSelector: {}, networkSelector: {}}}")
			p.Key.Namespace = fmt.Sprint("ns-", n)
			d.SetPolicy(p)
		}
	}
	q := types.NamespacedName{Namespace: "ns-1", Name: "q-1"}
	i := 0
	edit := testing.AllocsPerRun(5, func() {
		i++
		d.setNetwork(attachmentDefinition("x-1", "n-1", fmt.Sprint("other-", i)))
	})
	if len(d.selected) > 0 || len(d.stale) != namespaces*qos.MaxObjects {
		t.Errorf("an edit of a network computes what %d objects select, and marks %d", len(d.selected), len(d.stale))
	}
	one := testing.AllocsPerRun(5, func() {
		d.stale[q] = true
		d.Status(q)
	})
	t.Logf("an edit allocates %.0f times, one object %.0f times", edit, one)
	if edit > 100 || one > 4*networks { // not for each object, and not for each pair of networks
		t.Errorf("an edit allocates %.0f times, one object %.0f times", edit, one)
	}
	want := []string{"x-1/n-1", "x-2/n-2"}
	if _, status := d.Status(q); status == nil || status.TooManyNetworks || !slices.Equal(status.Networks, want) {
		t.Errorf("an object that selects 10,000 networks, on two of which topologies are: %+v", status)
	}
	changed := false
	d.OnChange(func(key types.NamespacedName) { changed = changed || key == q })
	d.setNamed("other", []string{"x-3/n-3"})
	if _, status := d.Status(q); !changed || !slices.Equal(status.Networks, append(want, "x-3/n-3")) {
		t.Errorf("with a topology on another: queued %t, %q", changed, status.Networks)
	}
}
