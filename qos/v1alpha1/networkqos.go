package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
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
// +kubebuilder:resource:path=networkqoses,singular=networkqos,scope=Namespaced
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.status`
// +kubebuilder:printcolumn:name="Tied",type=string,JSONPath=`.status.conditions[?(@.type=="Tied")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
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
//
// +kubebuilder:validation:XValidation:rule="!has(self.networkSelectors) || !has(self.netAttachRefs)",message="netAttachRefs is the older form of networkSelectors: use one of them"
type Spec struct {
	// NetworkSelectors select the networks by label; an object covers all that any of them
	// selects. Without them, and without netAttachRefs, it covers the primary network of
	// its pods.
	//
	// +optional
	// +listType=map
	// +listMapKey=networkSelectionType
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=5
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="networkSelectors is immutable"
	NetworkSelectors []NetworkSelector `json:"networkSelectors,omitempty"`

	// NetAttachRefs names the networks, as the draft of the API has it.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="netAttachRefs is immutable"
	NetAttachRefs []corev1.ObjectReference `json:"netAttachRefs,omitempty"`

	// PodSelector selects pods of the object's namespace, all of them if it is empty.
	//
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// Priority is 0 to 100; of the objects that cover a packet, the one with the highest
	// decides.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Priority int32 `json:"priority"`

	// Egress lists up to 20 rules; of those that match a packet, the last one decides.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	Egress []Rule `json:"egress"`
}

// NetworkSelectionType says what a selector selects.
//
// +kubebuilder:validation:Enum=DefaultNetwork;ClusterUserDefinedNetworks;PrimaryUserDefinedNetworks;SecondaryUserDefinedNetworks;NetworkAttachmentDefinitions;NetworkTopologies
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
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterUserDefinedNetworkSelector) == (self.networkSelectionType == 'ClusterUserDefinedNetworks')",message="networkSelectionType ClusterUserDefinedNetworks needs clusterUserDefinedNetworkSelector, and no other type has it"
// +kubebuilder:validation:XValidation:rule="has(self.primaryUserDefinedNetworkSelector) == (self.networkSelectionType == 'PrimaryUserDefinedNetworks')",message="networkSelectionType PrimaryUserDefinedNetworks needs primaryUserDefinedNetworkSelector, and no other type has it"
// +kubebuilder:validation:XValidation:rule="has(self.secondaryUserDefinedNetworkSelector) == (self.networkSelectionType == 'SecondaryUserDefinedNetworks')",message="networkSelectionType SecondaryUserDefinedNetworks needs secondaryUserDefinedNetworkSelector, and no other type has it"
// +kubebuilder:validation:XValidation:rule="has(self.networkAttachmentDefinitionSelector) == (self.networkSelectionType == 'NetworkAttachmentDefinitions')",message="networkSelectionType NetworkAttachmentDefinitions needs networkAttachmentDefinitionSelector, and no other type has it"
// +kubebuilder:validation:XValidation:rule="has(self.networkTopologySelector) == (self.networkSelectionType == 'NetworkTopologies')",message="networkSelectionType NetworkTopologies needs networkTopologySelector, and no other type has it"
// +kubebuilder:validation:XValidation:rule="!has(self.networkTopologySelector) || !has(self.networkTopologySelector.namespaceSelector)",message="NetworkTopologies are in no namespace: remove namespaceSelector"
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

// Rule decides about the packets that it matches.
type Rule struct {
	// DSCP is 0 to 63, the codepoint that the packets are marked with.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=63
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
//
// +kubebuilder:validation:XValidation:rule="!has(self.port) || !has(self.ports)",message="port is the older form of ports: use one of them"
type Classifier struct {
	// To lists destinations, of which one has to match; any if it is empty.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	To []Destination `json:"to,omitempty"`

	// Ports lists protocols and ports, of which one has to match; any if it is empty.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Ports []Port `json:"ports,omitempty"`

	// Port is one of Ports, as the draft of the API has it.
	//
	// +optional
	Port *Port `json:"port,omitempty"`
}

// Destination is where packets go: either to the addresses of ipBlock, or to pods.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.ipBlock) && (has(self.podSelector) || has(self.namespaceSelector)))",message="Can't specify both podSelector/namespaceSelector and ipBlock"
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
	IPBlock *IPBlock `json:"ipBlock,omitempty"`
}

// IPBlock is a prefix with exceptions, in the form of a NetworkPolicy's.
type IPBlock struct {
	// +kubebuilder:validation:MaxLength=64
	CIDR string `json:"cidr"`

	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=64
	Except []string `json:"except,omitempty"`
}

// Port is a protocol, TCP, UDP or SCTP, and of that one destination port, or any.
type Port struct {
	// +optional
	// +kubebuilder:validation:Pattern=`^(TCP|UDP|SCTP)?$`
	Protocol string `json:"protocol,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
}

// Bandwidth is the limit that all packets of a rule have together.
//
// +kubebuilder:validation:XValidation:rule="!has(self.burst) || has(self.rate)",message="burst needs a rate"
type Bandwidth struct {
	// Rate in kbit/s; what exceeds it is dropped.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	Rate *int64 `json:"rate,omitempty"`

	// Burst in kbit: what may be sent at once. It needs a rate.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	Burst *int64 `json:"burst,omitempty"`
}

// Types of conditions that plumbline writes.
const (
	// ConditionAccepted is true if the object is enforced on NetworkTopologies.
	ConditionAccepted = "Accepted"
	// ConditionTied is true if another object has a rule of the same precedence for the
	// same packets.
	ConditionTied = "Tied"
	// ConditionReady is true if all pods that the object covers, of the nodes that have
	// reported, have its filters.
	ConditionReady = "Ready"
	// ConditionMarkingUnsupported is true if pods that the object covers have devices whose
	// packets pass no filter.
	ConditionMarkingUnsupported = "MarkingUnsupported"
)

// Backends.
const (
	// BackendTC are filters of Linux traffic control in the pods.
	BackendTC = "tc"
	// BackendOVN are rows in the Northbound database, for interfaces on networks of OVN.
	BackendOVN = "OVN"
	// BackendPF are rates of virtual functions on their physical functions.
	BackendPF = "PF"
)

// MaxFailing bounds the nodes that a status names.
const MaxFailing = 8

// Status is the state of the object.
type Status struct {
	// Status is "NetworkQoS Destinations applied", or the first reason why not. Beside ovn-kubernetes that writes it.
	//
	// +optional
	Status string `json:"status,omitempty"`

	// Conditions of the object.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Backends that enforce the object, each with what came of it.
	//
	// +optional
	// +listType=map
	// +listMapKey=backend
	// +kubebuilder:validation:MaxItems=4
	Backends []Backend `json:"backends,omitempty"`
}

// Backend is the state of the object where one backend enforces it.
type Backend struct {
	// Backend is what enforces the object: tc are filters of Linux traffic control in the
	// pods; OVN are rows in its Northbound database, for interfaces on networks of OVN; PF are
	// physical functions, which enforce a limit of all that a virtual one sends, beside marks of tc.
	//
	// +kubebuilder:validation:MaxLength=32
	Backend string `json:"backend"`

	// Rules of the object.
	//
	// +optional
	Rules int32 `json:"rules"`

	// Pods that it covers.
	//
	// +optional
	Pods int32 `json:"pods"`

	// InPlace is in how many of them its rules are in place, as they are now.
	//
	// +optional
	InPlace int32 `json:"inPlace"`

	// MarkingUnsupported is how many of them have devices whose packets pass no filter.
	//
	// +optional
	MarkingUnsupported int32 `json:"markingUnsupported"`

	// Nodes with such pods.
	//
	// +optional
	Nodes int32 `json:"nodes"`

	// FailingNodes are those of them with a pod in which the rules could not be put in place.
	//
	// +optional
	FailingNodes int32 `json:"failingNodes"`

	// Failing are the first of them by name.
	//
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=8
	Failing []FailingNode `json:"failing,omitempty"`
}

// FailingNode is a node with a pod in which the rules could not be put in place.
type FailingNode struct {
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`

	// Message is that of one of its pods.
	//
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}
