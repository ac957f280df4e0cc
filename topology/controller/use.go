package controller

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology/claim"
)

// Use counts the users of a topology.
type Use struct {
	Claims   int   // that are allocated for it
	Pods     int   // for which they are reserved
	Degraded int   // claims with a device whose condition Ready is False
	Runs     []Run // what nodes say of the claims
	// Unprepared is how many claims no node has reported to have prepared. Their
	// nodes still read the topology; of a claim that is prepared the node keeps it.
	Unprepared int
}

// count adds a claim to the use of a topology, if it is allocated for that one.
func (r *record) count(u *Use, key, name string, uid types.UID) {
	if !r.uses(name, uid) {
		return
	}
	u.Claims++
	u.Pods += r.pods
	if r.degraded {
		u.Degraded++
	}
	i := slices.IndexFunc(r.reports, func(s claim.Reported) bool { return s.Topology == name })
	if i < 0 || r.reports[i].Generation == 0 {
		u.Unprepared++
	}
	if i < 0 {
		return
	}
	namespace, claimName, _ := strings.Cut(key, "/")
	u.Runs = append(u.Runs, Run{Namespace: namespace, Claim: claimName, PodUID: r.podUID, Reported: r.reports[i]})
}
