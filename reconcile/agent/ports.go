package agent

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// portsChanged forwards changes of the ports of a sandbox.
func (s *Agent) portsChanged(r ports.Report) {
	s.plugin.HealthChanged()
	s.failures.Report(r)
	uid := r.Sandbox.Origin().ClaimUID
	if r.Gone && slices.ContainsFunc(s.ports.Reports(), func(other ports.Report) bool {
		o := other.Sandbox.Origin()
		return o.ClaimUID == uid && o.Topology == r.Sandbox.Origin().Topology
	}) {
		return // the pod has a new sandbox
	}
	c, ok := s.claim(types.UID(uid))
	if !ok {
		return
	}
	s.status.Links(claimstatus.SubjectOf(&c), r)
}
