package podstatus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Reader reads the status of pods.
type Reader struct {
	kube   kubernetes.Interface
	custom dynamic.Interface
}

// NewReader returns a Reader that reads as its clients do.
func NewReader(kube kubernetes.Interface, custom dynamic.Interface) *Reader {
	return &Reader{kube: kube, custom: custom}
}

// Names returns the names of the pods of a namespace, for completion.
func (r *Reader) Names(ctx context.Context, namespace string) ([]string, error) {
	const most = 500
	pods, err := r.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: most})
	if err != nil {
		return nil, err
	}
	var out []string
	for i := range pods.Items {
		out = append(out, pods.Items[i].Name)
	}
	return out, nil
}

// Read reads the status of a pod. An error says that the pod cannot be read, and what to do; what else cannot be is in
// Status.Unread.
func (r *Reader) Read(ctx context.Context, namespace, name string) (*Status, error) {
	// Before the server is asked: a slash would be a part of the path.
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return nil, fmt.Errorf("%q is not the name of a pod: name one as kubectl get pods does, as in web-0: %s", name,
			strings.Join(problems, "; "))
	}
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return nil, fmt.Errorf("%q is not the name of a namespace: %s", namespace, strings.Join(problems, "; "))
	}
	pod, err := r.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return nil, fmt.Errorf("the API server does not know the user of the kubeconfig: log in again, or name another context: %w", err)
	case apierrors.IsNotFound(err):
		return nil,
			fmt.Errorf("pod %q does not exist in namespace %q: name another namespace with -n, or see kubectl get pods -A", name, namespace)
	case apierrors.IsForbidden(err):
		return nil,
			fmt.Errorf("you may not read pod %q in namespace %q: ask for the ClusterRole view in that namespace: %w", name, namespace, err)
	case err != nil:
		return nil, fmt.Errorf("read pod %q in namespace %q: %w", name, namespace, err)
	}
	s := &Status{
		Namespace: namespace, Pod: name, Node: pod.Spec.NodeName, Phase: string(pod.Status.Phase), Deleting: pod.DeletionTimestamp != nil,
		Claims: []Claim{}, Topologies: []Topology{}, Events: []Event{},
	}
	for _, of := range claimsOf(pod) {
		if of.Name != "" {
			r.readClaim(ctx, s, &of)
		}
		s.Claims = append(s.Claims, of)
	}
	r.readModes(ctx, s)
	for _, c := range s.Claims {
		for _, u := range c.Uses {
			if s.topology(u.Topology) == nil {
				s.Topologies = append(s.Topologies, r.readTopology(ctx, s, u.Topology))
			}
		}
	}
	slices.SortFunc(s.Topologies, func(a, b Topology) int { return strings.Compare(a.Name, b.Name) })
	r.readEvents(ctx, s, pod)
	return s, ctx.Err()
}

// claimsOf are the claims of a pod, as far as the pod itself names them.
func claimsOf(pod *corev1.Pod) (out []Claim) {
	for _, c := range pod.Spec.ResourceClaims {
		of := Claim{As: c.Name, State: NotCreated}
		switch {
		case c.ResourceClaimName != nil:
			of.Name = *c.ResourceClaimName
		case c.ResourceClaimTemplateName != nil:
			of.Template = *c.ResourceClaimTemplateName
		}
		for _, made := range pod.Status.ResourceClaimStatuses {
			if made.Name == c.Name && made.ResourceClaimName != nil {
				of.Name = *made.ResourceClaimName
			}
		}
		out = append(out, of)
	}
	if made := pod.Status.ExtendedResourceClaimStatus; made != nil && made.ResourceClaimName != "" {
		out = append(out, Claim{Name: made.ResourceClaimName, State: NotCreated})
	}
	return out
}

func (s *Status) unread(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(s.Unread, line) {
		s.Unread = append(s.Unread, line)
	}
}

// readClaim reads a claim that the pod names.
func (r *Reader) readClaim(ctx context.Context, s *Status, to *Claim) {
	c, err := r.kube.ResourceV1().ResourceClaims(s.Namespace).Get(ctx, to.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		to.State = Missing
		return
	case apierrors.IsForbidden(err):
		to.State = Unreadable
		s.unread("ResourceClaim %q: you may not read it: ask for get on resourceclaims of resource.k8s.io in namespace %q", to.Name,
			s.Namespace)
		return
	case err != nil:
		to.State = Unreadable
		s.unread("ResourceClaim %q: %v", to.Name, err)
		return
	}
	to.Classes = classes(c)
	if c.Status.Allocation == nil {
		to.State = NotAllocated
		read := map[string]*resourceapi.DeviceClass{}
		for _, name := range to.Classes {
			class := r.class(ctx, s, name)
			if class == nil {
				continue
			}
			read[name] = class
			if of := class.Labels[claim.LabelTopology]; of != "" &&
				!slices.ContainsFunc(to.Uses, func(u Use) bool { return u.Topology == of }) {
				to.Uses = append(to.Uses, Use{Topology: of})
			}
		}
		to.modes = modeChoices(c, read)
		return
	}
	to.State = Allocated
	assignments, err := claim.Allocated(c)
	if err != nil {
		to.Invalid = err.Error()
		return
	}
	if len(assignments) == 0 {
		to.State = OfOthers
	}
	for _, a := range assignments {
		to.Uses = append(to.Uses, s.use(c, a))
	}
}

// classes are the DeviceClasses that a claim requests, each once.
func classes(c *resourceapi.ResourceClaim) (out []string) {
	add := func(name string) {
		if name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, q := range c.Spec.Devices.Requests {
		if q.Exactly != nil {
			add(q.Exactly.DeviceClassName)
		}
		for _, sub := range q.FirstAvailable {
			add(sub.DeviceClassName)
		}
	}
	return out
}

// class returns a DeviceClass, nil if it cannot be read.
func (r *Reader) class(ctx context.Context, s *Status, name string) *resourceapi.DeviceClass {
	c, err := r.kube.ResourceV1().DeviceClasses().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		s.unread("DeviceClass %q does not exist: correct the claim, or create the NetworkTopology whose class that is", name)
	case apierrors.IsForbidden(err):
		s.unread("DeviceClass %q: you may not read it, so its topology is not known: %s", name, askForView)
	case err != nil:
		s.unread("DeviceClass %q: %v", name, err)
	default:
		return c
	}
	return nil
}

// use returns the devices of a claim for a topology.
func (s *Status) use(c *resourceapi.ResourceClaim, a claim.Assignment) Use {
	u := Use{Topology: a.Topology.Name}
	for _, d := range a.Devices {
		u.Node = d.Pool // the pool of a node's devices has the node's name
		to := Device{Step: d.Step, Name: d.Name}
		if of := claim.StatusOf(c, d); of != nil {
			s.report(&u, &to, of)
		}
		u.Devices = append(u.Devices, to)
	}
	return u
}

// report adds what the node has reported of a device.
func (s *Status) report(u *Use, to *Device, of *resourceapi.AllocatedDeviceStatus) {
	to.Conditions = conditions(of.Conditions)
	if of.NetworkData != nil {
		to.Interface, to.MAC, to.Addresses = of.NetworkData.InterfaceName, of.NetworkData.HardwareAddress, of.NetworkData.IPs
	}
	if of.Data == nil || len(of.Data.Raw) == 0 {
		return
	}
	var data claim.DeviceReport
	if err := json.Unmarshal(of.Data.Raw, &data); err != nil {
		s.unread("the report of device %q cannot be read, "+
			"perhaps as the agent of node %q has another version than this program (see kubectl plumbline version): %v", to.Name,
			of.Pool, err)
		return
	}
	to.Failure, to.Note = data.Failure, data.Note
	if data.Topology != u.Topology {
		return // of an earlier use of the device
	}
	if u.Generation == 0 {
		u.Generation, u.Update = data.Generation, data.Update
	}
	for _, step := range data.Steps {
		if !slices.ContainsFunc(u.Steps, func(have topology.StepResult) bool { return have.Name == step.Name }) {
			u.Steps = append(u.Steps, step)
		}
	}
}

func conditions(of []metav1.Condition) (out []Condition) {
	for _, c := range of {
		out = append(out, Condition{Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message})
	}
	return out
}

// askForView tells a user how to get the right to read cluster-scoped objects.
const askForView = "topologies and DeviceClasses belong to no namespace, so that a RoleBinding does not suffice: " +
	"ask for a ClusterRoleBinding to the ClusterRole plumbline-view"

// readTopology reads a topology as it is now.
func (r *Reader) readTopology(ctx context.Context, s *Status, name string) Topology {
	out := Topology{Name: name}
	object, err := r.custom.Resource(v1alpha1.Resource()).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		out.Missing = true
		return out
	case apierrors.IsForbidden(err):
		s.unread("NetworkTopology %q: you may not read it: %s", name, askForView)
		return out
	case err != nil:
		s.unread("NetworkTopology %q: %v", name, err)
		return out
	}
	var t v1alpha1.NetworkTopology
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &t); err != nil {
		s.unread("NetworkTopology %q cannot be read, perhaps as it is of another version than this program: %v", name, err)
		out.Generation = object.GetGeneration()
		return out
	}
	out.Object, out.Generation, out.Deleting = &t, t.Generation, t.DeletionTimestamp != nil
	out.UpdatePolicy, out.Conditions = cmp.Or(t.Spec.UpdatePolicy, v1alpha1.Immutable), conditions(t.Status.Conditions)
	return out
}

// component is the source of our Events.
const component = "plumbline"

// aboutNetworks are the reasons of Events of others that may be about the network of a pod.
var aboutNetworks = []string{
	"FailedScheduling", "FailedPrepareDynamicResources", "FailedCreatePodSandBox", "FailedResourceClaimCreation",
	"NetworkNotReady",
}

// readEvents reads the Events of the pod.
func (r *Reader) readEvents(ctx context.Context, s *Status, pod *corev1.Pod) {
	const most = 500
	events, err := r.kube.CoreV1().Events(s.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,involvedObject.name=" + s.Pod, Limit: most})
	switch {
	case apierrors.IsForbidden(err):
		s.unread("Events: you may not list them: ask for list on events in namespace %q", s.Namespace)
		return
	case err != nil:
		s.unread("Events: %v", err)
		return
	}
	const maxMessage = 1000 // bytes of a message
	for i := range events.Items {
		e := &events.Items[i]
		from := cmp.Or(e.ReportingController, e.Source.Component)
		// of an earlier pod of this name
		if e.InvolvedObject.Name != s.Pod || e.InvolvedObject.UID != "" && e.InvolvedObject.UID != pod.UID {
			continue
		}
		if from != component && e.Source.Component != component && !slices.Contains(aboutNetworks, e.Reason) {
			continue
		}
		s.Events = append(s.Events, Event{
			Type: e.Type, Reason: e.Reason, From: from, Message: excerpt.Of(e.Message, maxMessage),
			Count: max(1, count(e)), Last: last(e),
		})
	}
	slices.SortStableFunc(s.Events, func(a, b Event) int { return a.Last.Compare(b.Last) })
	if more := len(s.Events) - maxEvents; more > 0 {
		s.Events = slices.Clone(s.Events[more:])
	}
}

func count(e *corev1.Event) int32 {
	if e.Series != nil {
		return e.Series.Count
	}
	return e.Count
}

func last(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	if at.IsZero() {
		at = e.EventTime.Time
	}
	if at.IsZero() {
		at = e.CreationTimestamp.Time
	}
	return at
}
