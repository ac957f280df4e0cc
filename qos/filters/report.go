package filters

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/nested"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// covered describes a pod that an object covers.
type covered struct {
	inPlace  bool
	bypassed bool // it has a device whose packets pass no filter
	problem  string
	tc, ovn  bool // what enforces the object
	pf       bool // a physical function enforces one of its limits
}

// report returns what the node says of the objects that cover its pods, nil while they are not
// known.
func (f *Follower) report() any {
	entries := f.Claims()
	onPF := f.rulesOnPF(entries)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.podsRead {
		return nil
	}
	for _, n := range f.namespaces {
		if !n.covering() {
			return nil
		}
	}
	off, known := f.off()
	if !known {
		return nil
	}
	var by nested.Map[*qos.Policy, types.UID, covered]
	for i := range entries {
		e := &entries[i]
		if p, ok := f.pods[types.NamespacedName{Namespace: e.Namespace, Name: e.Pod.Name}]; !ok || p.uid != e.Pod.UID {
			continue // it has ended
		}
		failed := f.failures[e.UID]
		state := covered{inPlace: !f.behind[e.UID] && !f.updating[e.UID] && failed.said == "" && e.Attached() != nil}
		if !failed.passing {
			state.problem = failed.said
		}
		if off {
			state.inPlace, state.problem = false, cmp.Or(state.problem, errOff.Error())
		}
		attached := f.attachments(&e.Claim)
		for i, policies := range f.compiler.Covering(keyOf(&e.Claim)) {
			if i >= len(attached) {
				break // its steps have changed since they were listed
			}
			at, state := attached[i].topology, state
			state.bypassed = bypasses(&e.Topologies[at])
			state.tc, state.ovn = ops.Backends(f.stepsOn(&e.Topologies[at], attached[i].Interface), e.Topologies[at].Given, f.Contracts)
			for _, p := range policies {
				state := state
				state.pf = strings.HasPrefix(onPF[sandboxOf(&e.Claim, "", &e.Topologies[at])], p.Key.String()+"[")
				if why := f.missing(e, &e.Topologies[at], p); why != "" {
					state.inPlace, state.problem = false, cmp.Or(state.problem, why)
				}
				if before, ok := by[p][e.Pod.UID]; ok { // another topology or claim of the pod
					state = covered{
						before.inPlace && state.inPlace, before.bypassed || state.bypassed, cmp.Or(before.problem, state.problem),
						before.tc || state.tc, before.ovn || state.ovn, before.pf || state.pf,
					}
				}
				by.Set(p, e.Pod.UID, state)
			}
		}
	}
	out := reportOf(by)
	states := statesOf(out)
	f.states.Store(&states)
	return out
}

// missing returns why the rules of an object are not in place in the sandbox that a claim is attached to, "" if they are.
func (f *Follower) missing(e *claims.Entry, t *claims.Topology, p *qos.Policy) string {
	in := e.Attached()
	if f.Missing == nil || in == nil {
		return ""
	}
	return f.Missing.why(sandboxOf(&e.Claim, in.ID, t), p)
}

// rulesOnPF returns the rules whose limits physical functions enforce for running claims, by topology of a
// claim. It reads records, and only of topologies with virtual functions.
func (f *Follower) rulesOnPF(entries []claims.Entry) map[reconcile.SandboxID]string {
	out := map[reconcile.SandboxID]string{}
	if f.RuleOnPF == nil {
		return out
	}
	for i := range entries {
		e := &entries[i]
		in := e.Attached()
		for at := range e.Topologies {
			t := &e.Topologies[at]
			if in != nil && slices.ContainsFunc(t.Object.Spec.Steps, func(s v1alpha1.Step) bool {
				c, _ := f.Contracts.Contract(s.Type)
				return ops.SetsRates(c)
			}) {
				if rule := f.RuleOnPF(sandboxOf(&e.Claim, in.ID, t)); rule != "" {
					out[sandboxOf(&e.Claim, "", t)] = rule
				}
			}
		}
	}
	return out
}

// bypasses reports whether a topology has a device whose packets do not pass through the
// kernel: one whose driver is in the container, or one with an RDMA device.
func bypasses(t *claims.Topology) bool {
	return t.Prepared || slices.ContainsFunc(t.Devices, func(d claims.Device) bool { return d.Host.RDMA })
}

// reportOf counts pods. Of too many objects each namespace has its share in the report: users
// of one of them may create any number.
func reportOf(by map[*qos.Policy]map[types.UID]covered) *v1alpha1.NetworkQoSReport {
	out := &v1alpha1.NetworkQoSReport{}
	for p, pods := range by {
		r := v1alpha1.QoSReport{Namespace: p.Key.Namespace, Name: p.Key.Name, UID: p.UID, Generation: p.Generation, Pods: int32(len(pods))}
		for _, pod := range pods {
			r.InPlace += count(pod.inPlace)
			r.MarkingUnsupported += count(pod.bypassed)
			if pod.ovn {
				r.OVN = cmp.Or(r.OVN, &v1alpha1.QoSReportOVN{})
				r.OVN.Pods++
				r.OVN.InPlace += count(pod.inPlace)
				r.OVN.Only += count(!pod.tc)
				r.OVN.OnlyInPlace += count(!pod.tc && pod.inPlace)
			}
			if pod.pf {
				r.PF = cmp.Or(r.PF, &v1alpha1.QoSReportPF{})
				r.PF.Pods++
				r.PF.InPlace += count(pod.inPlace)
			}
			// Of several the first as a text, so that the report does not change for nothing.
			if pod.problem != "" && (r.Problem == "" || pod.problem < r.Problem) {
				r.Problem = pod.problem
			}
		}
		r.Problem = excerpt.Of(r.Problem, v1alpha1.MaxQoSProblem)
		out.Objects = append(out.Objects, r)
	}
	slices.SortFunc(out.Objects, byName)
	if left := len(out.Objects) - v1alpha1.MaxQoSReports; left > 0 {
		out.Objects, out.LeftOut = fairly(out.Objects, v1alpha1.MaxQoSReports), int32(left)
	}
	return out
}

// count is 1 if so.
func count(so bool) int32 {
	if so {
		return 1
	}
	return 0
}

func byName(a, b v1alpha1.QoSReport) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// fairly returns some of the objects, which are sorted: the first of each namespace, then the
// second of each, and so on.
func fairly(all []v1alpha1.QoSReport, most int) []v1alpha1.QoSReport {
	var ranks [][]v1alpha1.QoSReport // the first of each namespace, the second, and so on
	next := map[string]int{}
	for _, r := range all {
		rank := next[r.Namespace]
		if next[r.Namespace]++; rank == len(ranks) {
			ranks = append(ranks, nil)
		}
		ranks[rank] = append(ranks[rank], r)
	}
	out := slices.Concat(ranks...)[:most]
	slices.SortFunc(out, byName)
	return out
}
