// Package all is the only list of step types.
package all

import (
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/bond"
	"github.com/plumbline/plumbline/ops/bridge"
	"github.com/plumbline/plumbline/ops/dummy"
	"github.com/plumbline/plumbline/ops/hostdevice"
	"github.com/plumbline/plumbline/ops/ipoib"
	"github.com/plumbline/plumbline/ops/ipvlan"
	"github.com/plumbline/plumbline/ops/macvlan"
	"github.com/plumbline/plumbline/ops/ovnk8scnioverlay"
	"github.com/plumbline/plumbline/ops/ptp"
	"github.com/plumbline/plumbline/ops/rdma"
	"github.com/plumbline/plumbline/ops/rxe"
	"github.com/plumbline/plumbline/ops/sriov"
	"github.com/plumbline/plumbline/ops/tuning"
	"github.com/plumbline/plumbline/ops/vfiopci"
	"github.com/plumbline/plumbline/ops/vlan"
	"github.com/plumbline/plumbline/ops/vrf"
	"github.com/plumbline/plumbline/ops/vxlan"
)

// Registry returns the step types plumbline knows.
func Registry() (*ops.Registry, error) {
	return ops.NewRegistry(
		sriov.Op,
		hostdevice.Op,
		bond.Op,
		vlan.Op,
		vrf.Op,
		tuning.Op,
		ipvlan.Op,
		macvlan.Op,
		bridge.Op,
		dummy.Op,
		vfiopci.Op,
		vxlan.Op,
		ptp.Op,
		ovnk8scnioverlay.Op,
		rdma.Op,
		rxe.Op,
		ipoib.Op,
	)
}
