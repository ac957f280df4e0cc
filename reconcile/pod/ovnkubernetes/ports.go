package ovnkubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
)

// Northbound is the database in which ovn-kubernetes has the ports of this node's pods.
type Northbound interface {
	PodPort(ctx context.Context, name string) (openvswitch.PodPort, bool, error)
}

// Ports finds ports of pods of this node.
type Ports struct {
	Switch     *openvswitch.Switch // of the node
	Northbound Northbound
	Pods       metadata.Interface
}

// Used reports whether ovn-kubernetes has attached the node, and so makes the ports of its pods.
func (p *Ports) Used(ctx context.Context) (bool, error) { return p.Switch.OVNKubernetes(ctx) }

// Given returns the port of a pod on the network of a NetworkAttachmentDefinition, with its
// addresses, gateways and routes. While ovn-kubernetes has not made it the error is of kind
// NotReady. The annotation, which ovn-kubernetes writes first, is read first: the database
// may be that of all nodes.
func (p *Ports) Given(ctx context.Context, namespace string, pod claims.Pod, attachment string) (ops.Given, error) {
	o, err := p.Pods.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(namespace).Get(ctx, pod.Name,
		metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return ops.Given{}, fault.New(fault.NotReady, fmt.Errorf(
			"the agent may not read pods, whose annotation %s has their addresses: install the chart with agent.ovn.enabled=true: %w",
			Networks, err))
	case err != nil:
		return ops.Given{}, fault.New(fault.NotReady, err)
	case o.UID != pod.UID:
		return ops.Given{}, fault.New(fault.NotReady, fmt.Errorf("pod %q was deleted and created again", pod.Name))
	}
	if by := writer(o); by != "" {
		return ops.Given{}, fault.New(fault.Invalid,
			fmt.Errorf("annotation %s of the pod was written by %s, and not through pods/status as ovn-kubernetes does: "+
				"it decides which addresses the pod may use; create the pod again without it",
				Networks, excerpt.Of(fmt.Sprintf("%q", by), maxQuoted)))
	}
	given, err := parse(o.Annotations[Networks], attachment)
	switch {
	case errors.Is(err, errNone):
		return ops.Given{}, missing(attachment, "its annotation "+Networks+" does not have it")
	case err != nil:
		return ops.Given{}, fault.New(fault.Invalid,
			fmt.Errorf("annotation %s of the pod, network %q: %s", Networks, attachment, excerpt.Of(err.Error(), maxQuoted)))
	}
	name := openvswitch.PodPortName(attachment, namespace, pod.Name)
	row, found, err := p.Northbound.PodPort(ctx, name)
	switch {
	case err != nil:
		return ops.Given{}, err
	case !found:
		return ops.Given{}, missing(attachment, fmt.Sprintf("the OVN Northbound database has no port %q", name))
	}
	given.Port = &ops.Port{
		Name: name, Holder: string(pod.UID), MAC: row.MAC, Attachment: attachment, Network: row.Network, Topology: row.Topology,
		Addressed:       len(row.Addresses) > 0,
		PhysicalNetwork: row.PhysicalNetwork, VLAN: row.VLAN,
	}
	return given, agree(row, &given)
}

// writer returns who has written the annotation of a pod otherwise than ovn-kubernetes does, "" for nobody. A user who
// edits metadata.managedFields hides that: the policy of the chart keeps users from writing it.
func writer(pod *metav1.PartialObjectMetadata) string {
	for _, m := range pod.ManagedFields {
		var owned struct {
			Metadata struct {
				Annotations map[string]json.RawMessage `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if m.Subresource == "status" || m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &owned) != nil {
			continue
		}
		if _, ours := owned.Metadata.Annotations["f:"+Networks]; ours {
			return cmp.Or(m.Manager, "a user")
		}
	}
	return ""
}

func missing(attachment, where string) error {
	return fault.New(fault.NotReady,
		fmt.Errorf("ovn-kubernetes has not made a port of the pod for NetworkAttachmentDefinition %q yet (%s): "+
			"create the pod with annotation %s: %s, "+
			"and a NetworkAttachmentDefinition of type ovn-k8s-cni-overlay; if it has both, look at the events of the pod",
			attachment, where, Selection, attachment))
}

// agree refuses a row that is not that of the pod, and an annotation that says other than the
// row, by which OVN goes.
func agree(row openvswitch.PodPort, with *ops.Given) error {
	var has []netip.Addr
	for _, p := range with.Addresses {
		has = append(has, p.Addr())
	}
	slices.SortFunc(has, netip.Addr.Compare)
	slices.SortFunc(row.Addresses, netip.Addr.Compare)
	switch {
	case row.Attachment != with.Port.Attachment:
		return fault.New(fault.Conflict,
			fmt.Errorf("logical switch port %q is of NetworkAttachmentDefinition %q (external_ids:k8s.ovn.org/nad), not of %q: "+
				"another network has a name that differs only in \"-\", \".\" or \"/\"; rename one",
				row.Name, row.Attachment, with.Port.Attachment))
	case cmp.Or(row.PodUID, with.Port.Holder) != with.Port.Holder:
		return fault.New(fault.NotReady, fmt.Errorf("logical switch port %q still belongs to an earlier pod of this name", row.Name))
	case row.MAC == "":
		return fault.New(fault.NotReady, fmt.Errorf("logical switch port %q has no MAC address yet", row.Name))
	case !slices.Equal(has, row.Addresses):
		return fault.New(fault.Invalid, fmt.Errorf("annotation %s of the pod has the addresses %v on network %q, and OVN lets it use %v: "+
			"only ovn-kubernetes may write this annotation; create the pod again without it",
			Networks, has, with.Port.Attachment, row.Addresses))
	}
	if err := ops.MAC("addresses", row.MAC); err != nil {
		return fault.New(fault.Invalid, fmt.Errorf("logical switch port %q: %w", row.Name, err))
	}
	return nil
}
