package controller

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/nested"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/watchstore"
)

// Reports keeps what nodes report on NetworkQoS objects, by namespace.
type Reports struct {
	mu sync.Mutex
	of nested.Map[string, string, []qosReport] // by namespace, then by node
	// changed is called with the namespaces of reports that have changed.
	changed func(namespaces map[string]bool)
	// synced is closed when all reports have been read once.
	synced chan struct{}
}

// qosReport is the cached part of a node's report on an object. There may be one for each
// object and node.
type qosReport struct {
	of                      unique.Handle[qosVersion] // all nodes report the same objects
	pods, inPlace, bypassed int32
	others                  unique.Handle[otherBackends] // that of most nodes is empty
	problem                 unique.Handle[string]
}

// qosVersion is an object as a node knows it.
type qosVersion struct {
	name       string
	uid        types.UID // "" of an agent that does not report it
	generation int64
}

// is reports whether it is this version of the object. A later object of the name begins with the same
// generation.
func (v qosVersion) is(p *qos.Policy) bool {
	return v.generation == p.Generation && (v.uid == "" || v.uid == p.UID)
}

// otherBackends are the backends of a report other than tc.
type otherBackends struct {
	ovn v1alpha1.QoSReportOVN
	pf  v1alpha1.QoSReportPF
}

// NewReports returns reports of no node.
func NewReports(changed func(namespaces map[string]bool)) *Reports {
	return &Reports{changed: changed, synced: make(chan struct{})}
}

// Set replaces the report of a node; without objects it has none.
func (r *Reports) Set(node string, objects []v1alpha1.QoSReport) {
	touched := map[string]bool{}
	of := keptOfReport(objects)
	r.mu.Lock()
	r.set(node, of, touched)
	r.mu.Unlock()
	r.changed(touched)
}

// keptOfReport returns what is kept of a node's report, by namespace.
func keptOfReport(objects []v1alpha1.QoSReport) map[string][]qosReport {
	count := map[string]int{}
	for i := range objects {
		count[objects[i].Namespace]++
	}
	out := make(map[string][]qosReport, len(count))
	for i := range objects {
		o := &objects[i]
		others := otherBackends{ptr.Deref(o.OVN, v1alpha1.QoSReportOVN{}), ptr.Deref(o.PF, v1alpha1.QoSReportPF{})}
		if out[o.Namespace] == nil {
			out[o.Namespace] = make([]qosReport, 0, count[o.Namespace])
		}
		out[o.Namespace] = append(out[o.Namespace], qosReport{
			unique.Make(qosVersion{o.Name, o.UID, o.Generation}), o.Pods, o.InPlace, o.MarkingUnsupported,
			unique.Make(others), unique.Make(excerpt.Lines(o.Problem, v1alpha1.MaxQoSProblem)),
		})
	}
	return out
}

func (r *Reports) set(node string, now map[string][]qosReport, touched map[string]bool) {
	for namespace, nodes := range r.of {
		if before, ok := nodes[node]; ok && now[namespace] == nil {
			touched[namespace] = len(before) > 0
			r.of.Delete(namespace, node)
		}
	}
	for namespace, reports := range now {
		if slices.Equal(r.of[namespace][node], reports) {
			continue
		}
		touched[namespace] = true
		r.of.Set(namespace, node, reports)
	}
}

// Sum adds up the reports of all nodes on one generation of an object.
type Sum struct {
	Part     // of all backends
	Bypassed int
	Late     int // nodes that report on another generation, or an earlier object of the name
	// TC, OVN and PF are those of the pods in which the backend enforces the object.
	TC, OVN, PF Part
}

// Part is the share of one backend.
type Part struct {
	Pods, InPlace       int
	Nodes, FailingNodes int
	Failing             []qosv1alpha1.FailingNode // the first by name
}

// addSome adds what a node reports, if it has pods of the backend.
func (s *Part) addSome(node string, pods, inPlace int32, current bool, problem string) {
	if pods > 0 {
		s.add(node, pods, inPlace, current, problem)
	}
}

func (s *Part) add(node string, pods, inPlace int32, current bool, problem string) {
	s.Nodes++
	s.Pods += int(pods)
	if !current {
		return
	}
	s.InPlace += int(inPlace)
	if problem == "" {
		return
	}
	if s.FailingNodes++; len(s.Failing) < qosv1alpha1.MaxFailing {
		s.Failing = append(s.Failing, qosv1alpha1.FailingNode{Node: node, Message: problem})
	}
}

// Sum adds up the reports on the objects of a namespace, by name.
func (r *Reports) Sum(namespace string, policies []*qos.Policy) map[string]*Sum {
	out := map[string]*Sum{}
	named := map[string]*qos.Policy{}
	for _, p := range policies {
		named[p.Key.Name] = p
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := r.of[namespace]
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		for _, o := range nodes[node] {
			of := o.of.Value()
			p := named[of.name]
			if p == nil {
				continue
			}
			s := out[of.name]
			if s == nil {
				s = &Sum{}
				out[of.name] = s
			}
			s.add(node, of.is(p), o)
		}
	}
	return out
}

func (s *Sum) add(node string, current bool, o qosReport) {
	problem, ovn, pf := o.problem.Value(), o.others.Value().ovn, o.others.Value().pf
	s.Part.add(node, o.pods, o.inPlace, current, problem)
	s.Bypassed += int(o.bypassed)
	if !current {
		s.Late++
	}
	byTC, inPlace := o.pods-ovn.Only, o.inPlace-ovn.OnlyInPlace
	tcFails, ovnFails, pfFails := problem, problem, ""
	switch { // it is that of a pod where the rules are not in place
	case inPlace == byTC && ovn.InPlace < ovn.Pods:
		tcFails = ""
	case inPlace < byTC && ovn.InPlace == ovn.Pods:
		ovnFails = ""
	}
	if pf.InPlace < pf.Pods {
		pfFails = problem
	}
	s.TC.addSome(node, byTC, inPlace, current, tcFails)
	s.OVN.addSome(node, ovn.Pods, ovn.InPlace, current, ovnFails)
	s.PF.addSome(node, pf.Pods, pf.InPlace, current, pfFails)
}

// The reasons of the conditions that follow from reports.
const (
	reasonInPlace  = "InPlace"
	reasonNoPods   = "NoPods"
	reasonFailing  = "Failing"
	reasonUpdating = "Updating"
	reasonBypassed = "KernelBypass"
	reasonFiltered = "Filtered"
)

// Backends returns what each backend does for an object. That of most objects is tc, also before
// any node reports.
func Backends(p *qos.Policy, s *Sum) []qosv1alpha1.Backend {
	s = cmp.Or(s, &Sum{})
	of := func(name string, s Part) qosv1alpha1.Backend {
		return qosv1alpha1.Backend{
			Backend: name, Rules: int32(len(p.Rules)), Pods: int32(s.Pods), InPlace: int32(s.InPlace),
			Nodes: int32(s.Nodes), FailingNodes: int32(s.FailingNodes), Failing: s.Failing,
		}
	}
	var out []qosv1alpha1.Backend
	if s.TC.Pods > 0 || s.OVN.Pods == 0 {
		out = append(out, of(qosv1alpha1.BackendTC, s.TC))
	}
	if s.OVN.Pods > 0 {
		out = append(out, of(qosv1alpha1.BackendOVN, s.OVN))
	}
	if s.PF.Pods > 0 {
		out = append(out, of(qosv1alpha1.BackendPF, s.PF))
	}
	out[0].MarkingUnsupported = int32(s.Bypassed) // neither sees what bypasses the kernel
	return out
}

// Ready returns what is said of an object that is enforced, once nodes report on it.
func Ready(p *qos.Policy, s *Sum) []metav1.Condition {
	s = cmp.Or(s, &Sum{})
	ready := metav1.Condition{Type: qosv1alpha1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: p.Generation}
	place := fmt.Sprintf("in place in %d of %s on %s", s.InPlace, excerpt.Count(s.Pods, "pod"), excerpt.Count(s.Nodes, "node"))
	switch {
	case s.Nodes == 0:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, reasonNoPods, "no node has reported a pod that the object covers"
	case s.FailingNodes > 0:
		ready.Reason, ready.Message = reasonFailing, fmt.Sprintf("%s; it fails on %s, first on %q: %s", place,
			excerpt.Count(s.FailingNodes, "node"), s.Failing[0].Node, s.Failing[0].Message)
	case s.Late > 0:
		ready.Reason, ready.Message = reasonUpdating,
			fmt.Sprintf("%s; not reported on this generation by %s", place, excerpt.Count(s.Late, "node"))
	case s.InPlace < s.Pods:
		ready.Reason, ready.Message = reasonUpdating, place
	default:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, reasonInPlace, place
	}
	ready.Message = excerpt.Lines(ready.Message, maxMessage)
	marking := metav1.Condition{
		Type: qosv1alpha1.ConditionMarkingUnsupported, Status: metav1.ConditionFalse,
		ObservedGeneration: p.Generation, Reason: reasonFiltered, Message: "no covered pod has a device that bypasses the kernel",
	}
	if s.Bypassed > 0 {
		marking.Status, marking.Reason = metav1.ConditionTrue, reasonBypassed
		marking.Message = fmt.Sprintf("%d of %s have a device that bypasses the kernel (RDMA, or a driver in the container): "+
			"its traffic is not marked, and only a physical function limits it (backend PF)", s.Bypassed, excerpt.Count(s.Pods, "pod"))
	}
	return []metav1.Condition{ready, marking}
}

// follow keeps the reports until ctx ends. An API server without the kind has none.
func (r *Reports) follow(ctx context.Context, api dynamic.Interface) {
	pages := watchstore.Pages[*unstructured.UnstructuredList, *unstructured.Unstructured, *nodeReport]{
		API: api.Resource(v1alpha1.QoSReportResource()), Of: nodeReportOf, Limit: qosPage, Again: qosAgain,
	}
	r.store().Follow(ctx, v1alpha1.QoSReportKind, v1alpha1.QoSReportKind, pages.List, pages.Watch)
}

// nodeReport carries what is kept of a report through a reflector, which holds the reports of all nodes while it
// lists them.
type nodeReport struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	of map[string][]qosReport // by namespace
}

// DeepCopyObject is for the interface runtime.Object. Reports are not changed.
func (n *nodeReport) DeepCopyObject() runtime.Object { return new(*n) }

// nodeReportOf reads a report. One that cannot be read, which its CRD refuses, is empty.
func nodeReportOf(u *unstructured.Unstructured) *nodeReport {
	out := &nodeReport{ObjectMeta: watchstore.Meta(u)}
	o := &v1alpha1.NetworkQoSReport{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err == nil {
		out.of = keptOfReport(o.Objects)
	}
	return out
}

// store lets a reflector fill Reports.
func (r *Reports) store() *watchstore.Store[string, *nodeReport] {
	var touched map[string]bool
	return &watchstore.Store[string, *nodeReport]{
		What: v1alpha1.QoSReportKind, Name: func(n *nodeReport) string { return n.Name },
		Put:    func(node string, n *nodeReport) { r.set(node, n.of, touched) },
		Remove: func(node string) { r.set(node, nil, touched) },
		Known: func() iter.Seq[string] {
			known := map[string]bool{}
			for _, nodes := range r.of {
				for node := range nodes {
					known[node] = true
				}
			}
			return maps.Keys(known)
		},
		Around: func(_ bool, change func()) {
			touched = map[string]bool{}
			r.mu.Lock()
			change()
			r.mu.Unlock()
			r.changed(touched)
		},
		Synced: r.synced,
	}
}
