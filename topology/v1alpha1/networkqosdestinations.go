package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// QoSDestinationsKind is the kind of the addresses of a NetworkQoS.
const QoSDestinationsKind = "NetworkQoSDestinations"

// QoSDestinationsResource returns the plural name clients use.
func QoSDestinationsResource() schema.GroupVersionResource {
	return GroupVersion.WithResource("networkqosdestinations")
}

// Metadata of a NetworkQoSDestinations: which NetworkQoS it is of, and a hash of what it has.
const (
	LabelQoSNamespace       = "networking.dra.io/qos-namespace" // by which agents watch
	AnnotationQoSName       = "networking.dra.io/qos-name"
	AnnotationQoSHash       = "networking.dra.io/qos-hash"
	MaxDestinationAddresses = 1024 // of one object; an interface may have as many filters
	MaxQoSNetworks          = 256  // that one object selects by labels
)

// NetworkQoSDestinations are the addresses of the pods that the rules of one NetworkQoS have as a destination, on the
// topologies that it covers, and the networks that it selects by labels of objects that agents do not read. Its name is
// the UID of the NetworkQoS. Those pods may be of any namespace, so whoever reads the NetworkQoS must not thereby read
// them: only the controller writes, and only agents read, objects of this kind.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=networkqosdestinations,singular=networkqosdestinations,scope=Cluster,shortName=qosdest
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.metadata.labels.networking\.dra\.io/qos-namespace`
// +kubebuilder:printcolumn:name="NetworkQoS",type=string,JSONPath=`.metadata.annotations.networking\.dra\.io/qos-name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NetworkQoSDestinations struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Destinations Destinations `json:"destinations"`
}

// NetworkQoSDestinationsList is a list of them.
//
// +kubebuilder:object:root=true
type NetworkQoSDestinationsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NetworkQoSDestinations `json:"items"`
}

// Destinations are the addresses of the pods that rules have as a destination.
type Destinations struct {
	// ObservedGeneration is the generation of the NetworkQoS that they were selected by.
	ObservedGeneration int64 `json:"observedGeneration"`

	// Sets are the addresses, for each destination and topology with some.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	Sets []DestinationSet `json:"sets,omitempty"`

	// TooMany is 1025 if there are more than 1024 addresses, or more pods than are counted of all objects
	// of the namespace. Then none is listed, and the NetworkQoS has no effect.
	//
	// +optional
	TooMany int32 `json:"tooMany,omitempty"`

	// Networks are the NetworkAttachmentDefinitions, as NAMESPACE/NAME, of the networks that spec.networkSelectors selects by the
	// labels of NetworkAttachmentDefinitions, UserDefinedNetworks and ClusterUserDefinedNetworks. Of more than 256 first come those
	// that topologies are on.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=317
	Networks []string `json:"networks,omitempty"`

	// TooManyNetworks says that topologies are on more than 256 of them. Then none is listed, and the NetworkQoS has no effect.
	//
	// +optional
	TooManyNetworks bool `json:"tooManyNetworks,omitempty"`
}

// DestinationSet is the addresses that the pods of one destination have on a topology.
type DestinationSet struct {
	// Rule is an index in spec.egress, and To one in its classifier.to.
	Rule int32 `json:"rule"`
	To   int32 `json:"to"`

	// Topology is the name of a NetworkTopology.
	//
	// +kubebuilder:validation:MaxLength=63
	Topology string `json:"topology"`

	// Addresses without prefix lengths.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=45
	Addresses []string `json:"addresses"`
}
