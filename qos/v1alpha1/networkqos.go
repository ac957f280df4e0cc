package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is the kind of the object.
const Kind = "NetworkQoS"

// GroupVersion is that of ovn-kubernetes.
var GroupVersion = schema.GroupVersion{Group: "k8s.ovn.org", Version: "v1alpha1"}

// Resource returns the plural name clients use.
func Resource() schema.GroupVersionResource { return GroupVersion.WithResource("networkqoses") }

// NetworkQoS marks and limits what the pods of its namespace send.
//
// +kubebuilder:object:root=true
type NetworkQoS struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitzero"`
}

// NetworkQoSList is a list of them.
//
// +kubebuilder:object:root=true
type NetworkQoSList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NetworkQoS `json:"items"`
}

// Spec says which pods, on which of their networks, and what becomes of their packets.
type Spec struct {
	// NetworkSelectors select the networks by label; an object covers all that any of them
	// selects. Without them, and without netAttachRefs, it covers the primary network of
	// its pods.
	//
	// +optional
	NetworkSelectors []NetworkSelector `json:"networkSelectors,omitempty"`

	// NetAttachRefs names the networks, as the draft of the API has it.
	//
	// +optional
	NetAttachRefs []corev1.ObjectReference `json:"netAttachRefs,omitempty"`

	// PodSelector selects pods of the object's namespace, all of them if it is empty.
	//
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// Priority is 0 to 100; of the objects that cover a packet, the one with the highest
	// decides.
	Priority int32 `json:"priority"`

	// Egress lists up to 20 rules; of those that match a packet, the last one decides.
	Egress []Rule `json:"egress"`
}

// NetworkSelectionType says what a selector selects.
type NetworkSelectionType string

// Types of selectors. NetworkTopologies are ours; the others are those of ovn-kubernetes.
const (
	DefaultNetwork               NetworkSelectionType = "DefaultNetwork"
	ClusterUserDefinedNetworks   NetworkSelectionType = "ClusterUserDefinedNetworks"
	PrimaryUserDefinedNetworks   NetworkSelectionType = "PrimaryUserDefinedNetworks"
	SecondaryUserDefinedNetworks NetworkSelectionType = "SecondaryUserDefinedNetworks"
	NetworkAttachmentDefinitions NetworkSelectionType = "NetworkAttachmentDefinitions"
	NetworkTopologies            NetworkSelectionType = "NetworkTopologies"
)

// NetworkSelector selects networks of one type; the field of that type is set, and no other.
type NetworkSelector struct {
	Type NetworkSelectionType `json:"networkSelectionType"`

	// +optional
	ClusterUserDefinedNetworkSelector *Selector `json:"clusterUserDefinedNetworkSelector,omitempty"`
	// +optional
	PrimaryUserDefinedNetworkSelector *Selector `json:"primaryUserDefinedNetworkSelector,omitempty"`
	// +optional
	SecondaryUserDefinedNetworkSelector *Selector `json:"secondaryUserDefinedNetworkSelector,omitempty"`
	// +optional
	NetworkAttachmentDefinitionSelector *Selector `json:"networkAttachmentDefinitionSelector,omitempty"`
	// +optional
	NetworkTopologySelector *Selector `json:"networkTopologySelector,omitempty"`
}

// Selector selects networks by their labels, and where they have a namespace by its labels.
type Selector struct {
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// +optional
	NetworkSelector *metav1.LabelSelector `json:"networkSelector,omitempty"`
}

// Rule is what becomes of the packets that it matches.
type Rule struct {
	// DSCP is 0 to 63, the codepoint that the packets are marked with.
	DSCP *int32 `json:"dscp"`

	// Classifier says which packets; all that the pods send if it is empty.
	//
	// +optional
	Classifier *Classifier `json:"classifier,omitempty"`

	// Bandwidth limits the packets.
	//
	// +optional
	Bandwidth *Bandwidth `json:"bandwidth,omitempty"`
}

// Classifier matches packets by destination and by protocol and port.
type Classifier struct {
	// To lists destinations, of which one has to match; any if it is empty.
	//
	// +optional
	To []Destination `json:"to,omitempty"`

	// Ports lists protocols and ports, of which one has to match; any if it is empty.
	//
	// +optional
	Ports []Port `json:"ports,omitempty"`

	// Port is one of Ports, as the draft of the API has it.
	//
	// +optional
	Port *Port `json:"port,omitempty"`
}

// Destination is where packets go: either to the addresses of ipBlock, or to pods.
type Destination struct {
	// PodSelector selects pods, of the object's namespace if there is no
	// namespaceSelector.
	//
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// NamespaceSelector selects namespaces: their pods, or those that podSelector selects.
	//
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// IPBlock is a prefix, with exceptions.
	//
	// +optional
	IPBlock *networkingv1.IPBlock `json:"ipBlock,omitempty"`
}

// Port is a protocol, TCP, UDP or SCTP, and of that one destination port, or any.
type Port struct {
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// +optional
	Port *int32 `json:"port,omitempty"`
}

// Bandwidth is the limit that all packets of a rule have together.
type Bandwidth struct {
	// Rate in kbit/s; what exceeds it is dropped.
	//
	// +optional
	Rate *int64 `json:"rate,omitempty"`

	// Burst in kbit: what may be sent at once. It needs a rate.
	//
	// +optional
	Burst *int64 `json:"burst,omitempty"`
}

// Status is what became of the object.
type Status struct {
	// Status is a sentence, which ovn-kubernetes writes.
	//
	// +optional
	Status string `json:"status,omitempty"`

	// Conditions of the object.
	//
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
