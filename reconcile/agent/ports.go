package agent

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// portsChanged forwards changes of the ports of a sandbox.
func (s *Agent) portsChanged(r ports.Report) {
	s.failures.Report(r)
	if r.Succeeded {
		return // the pod has a new sandbox
	}
	if c, ok := s.claim(types.UID(r.Sandbox.Origin().ClaimUID)); ok {
		s.status.Links(claimstatus.SubjectOf(&c), r)
	}
}
