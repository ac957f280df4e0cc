package hostroutes

import (
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Addresses are the addresses of the host that the node publishes in its leases: a Keeper writes them, and
// who writes the leases reads them.
type Addresses struct{ table.Value[found] }

// found holds the results of the last pass, by pool.
type found struct {
	own    map[string][]v1alpha1.HostAddress
	unsure map[string]bool // pools with a need that was never found
}

// Of returns what the node publishes in its leases of a pool; false while that is not known.
func (a *Addresses) Of(pool string) ([]v1alpha1.HostAddress, bool) {
	f, passed := a.Get()
	return f.own[pool], passed && !f.unsure[pool]
}
