package podstatus

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Finding is one thing to know of the network of a pod.
type Finding struct {
	// Problem: the pod does not have the network that it asks for. Else it is a remark.
	Problem bool   `json:"problem"`
	What    string `json:"what"`
	Do      string `json:"do,omitempty"` // what to do
}

// findings collects them.
type findings []Finding

func (f *findings) problem(do, format string, args ...any) {
	*f = append(*f, Finding{Problem: true, What: fmt.Sprintf(format, args...), Do: do})
}

func (f *findings) remark(do, format string, args ...any) {
	*f = append(*f, Finding{What: fmt.Sprintf(format, args...), Do: do})
}

// Explain says what is wrong with the network of the pod, or what it waits for, the cause first. It is empty if nothing
// is.
func (s *Status) Explain() []Finding {
	var out findings
	switch {
	case len(s.Claims) == 0:
		out.remark("to give it a network of plumbline, request a topology: plumbline claim -f TOPOLOGY prints a claim",
			"the pod has no claim, and none was made for its extended resources: it has only its network of the cluster")
	case s.Phase == "Succeeded" || s.Phase == "Failed":
		out.remark("", "the pod has ended (%s): it has no network any more", s.Phase)
		return out
	case s.Deleting:
		out.remark("if this lasts, a device has not been returned: see the status of the pod's claims, or the log of the node's agent",
			"the pod is being deleted")
	}
	for i := range s.Claims {
		out = append(out, s.ofClaim(&s.Claims[i])...)
	}
	for i := range s.Topologies {
		if t := &s.Topologies[i]; t.Deleting {
			out.remark("pods that run keep their network; let new ones use another topology", "NetworkTopology %q is being deleted", t.Name)
		}
	}
	// Conditions of others count only until the pod has its network.
	if e, found := s.lastWarning(); found && (s.Phase == "Pending" || slices.ContainsFunc(out, func(f Finding) bool { return f.Problem })) {
		what := fmt.Sprintf("Event %s of %s", e.Reason, e.From)
		if e.Count > 1 {
			what += fmt.Sprintf(" (%d times)", e.Count)
		}
		out.problem(adviceFor(e), "%s: %s", what, e.Message)
	}
	return out
}

// lastWarning is the latest Event that says what failed.
func (s *Status) lastWarning() (Event, bool) {
	for _, e := range slices.Backward(s.Events) {
		if e.Type == "Warning" {
			return e, true
		}
	}
	return Event{}, false
}

func adviceFor(e Event) string {
	switch e.Reason {
	case "FailedScheduling":
		return "compare the selectors of the steps with kubectl get resourceslices -o yaml, and see whether other pods have the devices"
	case "FailedPrepareDynamicResources":
		return "the kubelet tries again within 90 s; docs/troubleshooting.md, \"A pod starts a minute late\", has each message"
	case "FailedResourceClaimCreation":
		return "create the ResourceClaimTemplate that the pod names, or correct its name"
	}
	return ""
}

// ofClaim are the findings about one claim.
func (s *Status) ofClaim(c *Claim) (out findings) {
	switch c.State {
	case NotCreated:
		out.problem(fmt.Sprintf("see whether it exists: kubectl get resourceclaimtemplate -n %s %s", s.Namespace, c.Template),
			"the claim %q of the pod was not created from ResourceClaimTemplate %q yet", c.As, c.Template)
	case Missing:
		out.problem("create it, for example with plumbline claim -f TOPOLOGY, or correct the name in the pod",
			"ResourceClaim %q does not exist: the pod waits for it", c.Name)
	case NotAllocated:
		out.problem("", "ResourceClaim %q is not allocated: no node has free devices for all of its requests (DeviceClasses %s)", c.Name,
			strings.Join(c.Classes, ", "))
		for _, u := range c.Uses {
			out = append(out, s.notAllocated(u.Topology)...)
		}
		for i := range c.modes {
			c.modes[i].explain(&out)
		}
	case Allocated:
		if c.Invalid != "" {
			out.problem("", "the allocation of the claim cannot be used: %s", c.Invalid)
		}
		for i := range c.Uses {
			out = append(out, s.ofUse(c, &c.Uses[i])...)
		}
	case Unreadable, OfOthers:
	}
	return out
}

// notAllocated are the reasons for which a topology offers no devices.
func (s *Status) notAllocated(name string) (out findings) {
	t := s.topology(name)
	if t == nil {
		return nil
	}
	if t.Missing {
		out.problem("create it, or request another", "NetworkTopology %q does not exist", name)
		return out
	}
	for _, of := range []struct{ kind, do string }{
		{"Valid", "correct the topology: plumbline validate -f FILE shows all problems"},
		{"Programmed", "do what the message says"},
		{"Shared", "apply the DeviceExposurePolicy that the message has (docs/policies.md, \"Shared devices\")"},
	} {
		for _, c := range t.Conditions {
			if c.Type == of.kind && c.Status == "False" && c.Reason != "NoDevice" {
				out.problem(of.do, "NetworkTopology %q has the condition %s: False (%s): %s", name, of.kind, c.Reason, c.Message)
			}
		}
	}
	return out
}

// ofUse are the findings about one topology in an allocated claim.
func (s *Status) ofUse(c *Claim, u *Use) (out []Finding) {
	problem := func(do, format string, args ...any) {
		f := Finding{Problem: true, What: fmt.Sprintf(format, args...), Do: do}
		if !slices.ContainsFunc(out, func(have Finding) bool { return have.What == f.What }) { // of another device of the topology
			out = append(out, f)
		}
	}
	reported := false
	for _, d := range u.Devices {
		if d.Failure != nil {
			problem(adviceOn(d.Failure.Kind), "topology %q failed (%s): %s", u.Topology, d.Failure.Kind, d.Failure.Message)
		}
		for _, k := range d.Conditions {
			reported = true
			if k.Status == "True" {
				continue
			}
			switch k.Type {
			case claim.Ready:
				if d.Failure == nil {
					problem(adviceOn(k.Reason), "topology %q is not ready (%s): %s", u.Topology, k.Reason, k.Message)
				}
			case claim.InSync:
				if k.Status == "False" {
					problem("it is repaired, unless the topology has driftPolicy: "+
						"Observe; if it returns, another writer changes it (docs/troubleshooting.md)",
						"the network differs from topology %q (%s): %s", u.Topology, k.Reason, k.Message)
				}
			case claim.LinkUp:
				problem("look at cable, switch and PF of the port (docs/health.md)",
					"step %q, device %q: its port is not up (%s): %s", d.Step, d.Name, k.Reason, k.Message)
			}
		}
	}
	if !reported {
		problem(fmt.Sprintf(
			"see whether an agent runs there: kubectl -n plumbline-system get pods -o wide --field-selector spec.nodeName=%s", u.Node),
			"node %q has reported nothing of topology %q in claim %q yet", u.Node, u.Topology, c.Name)
	}
	return append(out, s.generations(u)...)
}

// generations are the findings about an edit that the pod does not have.
func (s *Status) generations(u *Use) (out []Finding) {
	if u.Update != nil {
		f := Finding{Problem: u.Update.State != claim.UpdateHeldBack, What: fmt.Sprintf(
			"generation %d of topology %q is not in the pod (%s): %s", u.Update.Generation, u.Topology, u.Update.State, u.Update.Message)}
		switch u.Update.State {
		case claim.UpdateHeldBack:
			f.Do = "delete the pod, so that its next one gets the change"
		case claim.UpdateRetrying:
			f.Do = "it is tried again"
		case claim.UpdateFailed:
			f.Do = "edit the topology: the next edit is tried again"
		}
		return []Finding{f}
	}
	t := s.topology(u.Topology)
	if t == nil || t.Generation == 0 || u.Generation == 0 || u.Generation >= t.Generation {
		return nil
	}
	f := Finding{What: fmt.Sprintf("the pod has generation %d of topology %q, which has generation %d now", u.Generation, u.Topology,
		t.Generation)}
	if t.UpdatePolicy == v1alpha1.InPlace {
		f.Do = "it gets that when its node updates: kubectl get networktopology " + u.Topology
	} else {
		f.Do = "it keeps that, since the topology has updatePolicy: Immutable; delete the pod, so that its next one gets the change"
	}
	return []Finding{f}
}

// adviceOn returns the advice for a kind of failure.
func adviceOn(kind string) string {
	switch fault.Kind(kind) {
	case fault.NotReady:
		return "it is tried again"
	case fault.Invalid:
		return "correct the topology: plumbline validate -f FILE shows all problems"
	case fault.Conflict:
		return "remove one of the two, as the message says"
	case fault.Unsupported:
		return "use another node, or do without what its kernel or card lacks"
	case fault.NotConverged, fault.Gone, fault.Internal:
	}
	return ""
}
