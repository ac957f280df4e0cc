package deviceclass

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Use is who uses a topology.
type Use struct {
	Claims   []string // "namespace/name" of claims that are allocated for it, sorted
	Pods     int      // for which they are reserved
	Degraded int      // claims with a device whose condition Ready is False
	Runs     []Run    // what nodes say of the claims
}

// UseOf counts the claims that are allocated for this very topology: one that
// bore the same name before is another.
func UseOf(o *v1alpha1.NetworkTopology, claims []resourceapi.ResourceClaim) Use {
	var u Use
	for i := range claims {
		c := &claims[i]
		if !slices.ContainsFunc(claim.Uses(c), func(r claim.TopologyRef) bool {
			return r.Name == o.Name && (r.UID == "" || r.UID == o.UID)
		}) {
			continue
		}
		u.Claims = append(u.Claims, c.Namespace+"/"+c.Name)
		run := Run{Namespace: c.Namespace, Claim: c.Name}
		for _, r := range c.Status.ReservedFor {
			if r.APIGroup == "" && r.Resource == "pods" {
				u.Pods++
				run.Pod, run.PodUID = r.Name, r.UID
			}
		}
		for _, run.Reported = range claim.Reports(c) {
			if run.Topology == o.Name {
				u.Runs = append(u.Runs, run)
			}
		}
		if slices.ContainsFunc(c.Status.Devices, func(d resourceapi.AllocatedDeviceStatus) bool {
			return d.Driver == claim.Driver && meta.IsStatusConditionPresentAndEqual(d.Conditions, v1alpha1.ConditionReady, metav1.ConditionFalse)
		}) {
			u.Degraded++
		}
	}
	slices.SortFunc(u.Claims, cmp.Compare[string])
	return u
}
