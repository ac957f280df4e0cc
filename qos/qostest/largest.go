package qostest

import (
	"fmt"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/v1alpha1"
)

// Largest returns the n-th of the largest objects of a namespace that are accepted: with as many rules,
// destinations, exceptions, labels and bytes of labels as an object may have. It covers pods with the label
// app=web on topologies with the label rail=storage, and each of its destinations that is pods selects
// those without the labels of its expressions, of all namespaces, each by another selector.
func Largest(namespace string, n int) *v1alpha1.NetworkQoS {
	labels, length := largest()
	return large(namespace, n, labels, length)
}

// largest is how many labels each selector may have, and of which length.
var largest = sync.OnceValues(func() (labels, length int) {
	for l := 256; l > 0; l /= 2 {
		for _, n := range []int{63, 16, 5} {
			if qos.New(large("ns", 100, l, n)).Err == nil && l*n > labels*length {
				labels, length = l, n
			}
		}
	}
	return labels, length
})

// large is an object whose selectors have labels with values of a length.
func large(namespace string, n, labels, length int) *v1alpha1.NetworkQoS {
	value := func(i int) string { return (fmt.Sprintf("v%d-", i) + strings.Repeat("x", 63))[:length] }
	selector := func(seed string, of map[string]string) *metav1.LabelSelector {
		s := &metav1.LabelSelector{MatchLabels: of}
		for i := range labels {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: fmt.Sprintf("%s-%d", seed, i), Operator: metav1.LabelSelectorOpNotIn, Values: []string{value(i)},
			})
		}
		if len(s.MatchExpressions) > 0 { // an expression and its value count as two
			s.MatchExpressions = s.MatchExpressions[:max(1, (len(s.MatchExpressions)-len(of))/2)]
		}
		return s
	}
	o := &v1alpha1.NetworkQoS{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("largest-%03d", n), UID: types.UID(fmt.Sprintf("of-%s-%d", namespace, n)), Generation: 1,
	}}
	o.Spec.PodSelector = selector("mine", map[string]string{"app": "web"})
	o.Spec.NetworkSelectors = []v1alpha1.NetworkSelector{{
		Type: v1alpha1.NetworkTopologies, NetworkTopologySelector: &v1alpha1.Selector{NetworkSelector: selector("net",
			map[string]string{"rail": "storage"})},
	}}
	for rule := range qos.MaxRules {
		r := v1alpha1.Rule{DSCP: new(int32(1)), Classifier: &v1alpha1.Classifier{}}
		for port := range 64 {
			r.Classifier.Ports = append(r.Classifier.Ports, v1alpha1.Port{Protocol: "UDP", Port: new(int32(1 + 64*rule + port))})
		}
		for to := range 64 {
			d := v1alpha1.Destination{IPBlock: &v1alpha1.IPBlock{CIDR: fmt.Sprintf("2001:db8:%x:%x::/64", rule, to)}}
			switch {
			case rule == 0:
				d = v1alpha1.Destination{
					PodSelector:       selector(fmt.Sprintf("to-%d-%d", n, to), nil),
					NamespaceSelector: &metav1.LabelSelector{},
				}
			case rule <= 16 && to == 0:
				for i := range 64 {
					d.IPBlock.Except = append(d.IPBlock.Except, fmt.Sprintf("2001:db8:%x:0:%x::/96", rule, 2*i+1))
				}
			}
			r.Classifier.To = append(r.Classifier.To, d)
		}
		o.Spec.Egress = append(o.Spec.Egress, r)
	}
	return o
}
