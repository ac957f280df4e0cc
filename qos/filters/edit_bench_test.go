package filters

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops/all"
)

// BenchmarkEdit is an edit of one rule of an object of 20 rules to the 50 pods of a node.
func BenchmarkEdit(b *testing.B) {
	contracts, err := all.Registry()
	if err != nil {
		b.Fatal(err)
	}
	f, n := crowded(b, 100) // half of which has the topology
	f.Contracts = contracts
	var rules []string
	for i := range 20 {
		rules = append(rules, fmt.Sprintf("{dscp: %%[1]d, classifier: {to: [{ipBlock: {cidr: 198.51.100.%d/32}}]}}", i))
	}
	read := func(i int) *object {
		text := fmt.Sprintf(`{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: q, uid: q}, spec: {priority: 1, egress: [`+strings.Join(rules, ", ")+`],
networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: storage}}}}]}}`, 1+i%60)
		content := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &content); err != nil {
			b.Fatal(err)
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGeneration(int64(i + 1))
		return objectOf(u)
	}
	objects := []*object{read(0), read(1)}
	b.ReportAllocs()
	for i := range b.N {
		n.put(objects[i%2])
		for uid := range f.behind {
			c := f.claims[uid]
			if out, err := f.Of(c, &c.Topologies[0]); err != nil || len(out.Filters) != 20 {
				b.Fatal(len(out.Filters), err)
			}
		}
		clear(f.behind)
	}
}
