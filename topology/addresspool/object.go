package addresspool

import (
	"fmt"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// MaxQuarantine is the longest rest of an address, a day in seconds.
const MaxQuarantine = 86400

// Of reads and checks the object of a pool. The error is a *topology.Listed. It applies the
// bounds of the CRD once more: an object need not have come through the API server's
// validation.
func Of(o *v1alpha1.AddressPool) (*Layout, error) {
	spec := Spec{
		Name: o.Name, Subnets: o.Spec.Subnets, Exclude: o.Spec.Exclude, Routes: o.Spec.Routes, BlockSize: int(value(o.Spec.BlockSize)),
		HostBlock: int(value(o.Spec.HostBlock)), InterfaceBlock: int(value(o.Spec.InterfaceBlock)),
	}
	l, err := New(spec)
	wrong := problems(FieldErrors(err))
	if n := o.Spec.QuarantineSeconds; n != nil && (*n < 0 || *n > MaxQuarantine) {
		wrong.add("quarantineSeconds", "%d is not from 0 to %d", *n, MaxQuarantine)
	}
	if o.Spec.ReclaimAfter != "" && v1alpha1.Seconds(o.Spec.ReclaimAfter) == 0 {
		wrong.add("reclaimAfter", "%q is not a whole number up to 99999 with s, m or h, such as 24h", o.Spec.ReclaimAfter)
	}
	if len(wrong) > 0 {
		invalid := &topology.Listed{Title: fmt.Sprintf("%s %q", v1alpha1.AddressPoolKind, o.Name), Err: wrong.err()}
		for _, f := range wrong {
			invalid.Problems = append(invalid.Problems, fmt.Sprintf("spec.%v", f))
		}
		return nil, invalid
	}
	l.Switch = o.Annotations[v1alpha1.AnnotationSwitch]
	return l, nil
}

func value(p *int32) int32 {
	if p == nil {
		return 0
	}
	return *p
}

// Reclaim is for how many seconds an address of the pool is kept for the next pod of the same
// name.
func Reclaim(o *v1alpha1.AddressPool) int64 {
	return int64(v1alpha1.Seconds(o.Spec.ReclaimAfter)) // Of refuses other forms
}

// ReportSeconds is the average time between a node's writes of how many addresses are used into its leases of a pool that so many
// nodes have: each write is sent to all of them, 20 a second. The longest time is half as long again.
func ReportSeconds(nodes int) int { return max(30, nodes/20) }

// Quarantine is for how many seconds an address of the pool rests that was given back.
func Quarantine(o *v1alpha1.AddressPool) int64 {
	if o.Spec.QuarantineSeconds == nil {
		return 60
	}
	return int64(*o.Spec.QuarantineSeconds)
}
