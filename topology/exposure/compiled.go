package exposure

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Compiled reads policies, and keeps those that have not changed since: to compile a selector takes milliseconds.
// It is safe for concurrent use, and its zero value has read nothing.
type Compiled struct {
	mu       sync.Mutex
	policies map[types.UID]*Policy
}

// Read returns all policies of a cluster, ordered and limited as nodes do (Limit).
func (c *Compiled) Read(objects []v1alpha1.DeviceExposurePolicy) []*Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := map[types.UID]*Policy{}
	var all []*Policy
	for i := range objects {
		o := &objects[i]
		p := c.policies[o.UID]
		if p == nil || p.Generation != o.Generation {
			p = New(o)
		}
		kept[o.UID] = p
		all = append(all, p)
	}
	c.policies = kept
	ordered, _ := Limit(all)
	return ordered
}
