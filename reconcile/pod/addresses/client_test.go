package addresses

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestPoolsDecoded holds that pools are decoded when they change, and not whenever they are read.
func TestPoolsDecoded(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	const n = 200
	var objects []runtime.Object
	for i := range n {
		o := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}}
		o.Spec.Subnets = []v1alpha1.AddressSubnet{{Prefix: "10.0.0.0/24"}}
		objects = append(objects, o)
	}
	dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme, map[schema.GroupVersionResource]string{
		v1alpha1.AddressPoolResource(): "AddressPoolList", v1alpha1.AddressLeaseResource(): "AddressLeaseList",
	}, objects...)
	c := NewClient(nil, dyn, "n1", time.Now)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	eventually.Holds(t, 10*time.Second, "the pools are known", func() string {
		if pools, err := c.Pools(); err != nil || len(pools) != n {
			return fmt.Sprint(len(pools), err)
		}
		return ""
	})
	pools, err := c.Pools()
	if err != nil || pools[0].Spec.Subnets[0].Prefix != "10.0.0.0/24" || pools[0].ManagedFields != nil {
		t.Errorf("%+v: %v", pools[0], err)
	}
	if each := testing.AllocsPerRun(3, func() { _, _ = c.Pools() }) / n; each > 1 {
		t.Errorf("%.0f allocations for each pool", each)
	}
}

// TestSameButCounts: what the controller counts in a pool is no reason for a pass of all nodes; anything else is.
func TestSameButCounts(t *testing.T) {
	read := func(text string) *v1alpha1.AddressPool {
		t.Helper()
		o := &v1alpha1.AddressPool{}
		if err := yaml.Unmarshal([]byte(text), o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	was := read(`{metadata: {uid: a, generation: 1, resourceVersion: "7", finalizers: [f]}, status: {size: 100, leased: 10, nodes: 3, conditions: [{type: Low, status: "False", message: 10 of 100}]}}`)
	for text, same := range map[string]bool{
		`{metadata: {uid: a, generation: 1, resourceVersion: "8", finalizers: [f]}, status: {size: 100, leased: 20, nodes: 4, conditions: [{type: Low, status: "False", message: 20 of 100}]}}`: true,
		`{metadata: {uid: a, generation: 2, finalizers: [f]}, status: {conditions: [{type: Low, status: "False"}]}}`:                                                                            false,
		`{metadata: {uid: b, generation: 1, finalizers: [f]}, status: {conditions: [{type: Low, status: "False"}]}}`:                                                                            false,
		`{metadata: {uid: a, generation: 1}, status: {conditions: [{type: Low, status: "False"}]}}`:                                                                                             false,
		`{metadata: {uid: a, generation: 1, finalizers: [f], deletionTimestamp: "2026-01-01T00:00:00Z"}, status: {conditions: [{type: Low, status: "False"}]}}`:                                 false,
		`{metadata: {uid: a, generation: 1, finalizers: [f]}, status: {conditions: [{type: Low, status: "True"}]}}`:                                                                             false,
		`{metadata: {uid: a, generation: 1, finalizers: [f]}}`:                                                                                                                                  false,
		`{metadata: {uid: a, generation: 1, finalizers: [f]}, status: {conditions: [{type: Low, status: "False"}, {type: Exhausted, status: "True"}]}}`:                                         false,
	} {
		if is := sameButCounts(was, read(text)); is != same {
			t.Errorf("%s: %t, want %t", text, is, same)
		}
	}
}
