package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// QoSReportKind is the kind of a node's report on NetworkQoS objects.
const QoSReportKind = "NetworkQoSReport"

// QoSReportResource returns the plural name clients use.
func QoSReportResource() schema.GroupVersionResource {
	return GroupVersion.WithResource("networkqosreports")
}

// Bounds of a NetworkQoSReport.
const (
	MaxQoSReports = 2048 // objects
	MaxQoSProblem = 200  // bytes
)

// NetworkQoSReport is the report of one node's agent on the NetworkQoS objects that cover
// pods there. Its name is that of the node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=networkqosreports,scope=Cluster,shortName=qosrep
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NetworkQoSReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Objects that cover pods of the node.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2048
	// +optional
	Objects []QoSReport `json:"objects,omitempty"`

	// LeftOut is how many more there are. They are not counted.
	//
	// +optional
	LeftOut int32 `json:"leftOut,omitempty"`
}

// NetworkQoSReportList is a list of reports.
//
// +kubebuilder:object:root=true
type NetworkQoSReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NetworkQoSReport `json:"items"`
}

// QoSReport is a node's report on one NetworkQoS.
type QoSReport struct {
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// UID of the object that the node knows. Reports of earlier versions have none.
	//
	// +optional
	UID types.UID `json:"uid,omitempty"`

	// Generation that the node knows.
	Generation int64 `json:"generation"`

	// Pods that the object covers.
	Pods int32 `json:"pods"`

	// InPlace is in how many of them its rules of this generation are in place.
	//
	// +optional
	InPlace int32 `json:"inPlace,omitempty"`

	// MarkingUnsupported is how many of them have devices whose packets pass no filter.
	//
	// +optional
	MarkingUnsupported int32 `json:"markingUnsupported,omitempty"`

	// OVN is about those of them with an interface on a network of OVN, where rows of OVN
	// enforce the object.
	//
	// +optional
	OVN *QoSReportOVN `json:"ovn,omitempty"`

	// PF is about those of them with a virtual function for which its physical function enforces
	// a limit of the object.
	//
	// +optional
	PF *QoSReportPF `json:"pf,omitempty"`

	// Problem is why the rules could not be put in place in one of them.
	//
	// +kubebuilder:validation:MaxLength=200
	// +optional
	Problem string `json:"problem,omitempty"`
}

// QoSReportOVN is about the pods in which OVN enforces a NetworkQoS.
type QoSReportOVN struct {
	// Pods in which it does.
	Pods int32 `json:"pods"`

	// InPlace is in how many of them all rules are in place.
	//
	// +optional
	InPlace int32 `json:"inPlace,omitempty"`

	// Only is in how many of them nothing else enforces the object.
	//
	// +optional
	Only int32 `json:"only,omitempty"`

	// OnlyInPlace is in how many of these all rules are in place.
	//
	// +optional
	OnlyInPlace int32 `json:"onlyInPlace,omitempty"`
}

// QoSReportPF is about the pods in which a physical function enforces a limit of a NetworkQoS.
type QoSReportPF struct {
	// Pods in which one does.
	Pods int32 `json:"pods"`

	// InPlace is in how many of them all rules are in place.
	//
	// +optional
	InPlace int32 `json:"inPlace,omitempty"`
}
