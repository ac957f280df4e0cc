package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// PolicyKind is the kind of a policy object.
const PolicyKind = "DeviceExposurePolicy"

// PolicyResource returns the plural name clients use.
func PolicyResource() schema.GroupVersionResource {
	return GroupVersion.WithResource("deviceexposurepolicies")
}

// DeviceExposurePolicy says which network devices of which nodes are offered to pods,
// and to which physical networks they are wired. Of the policies that select a device
// the one with the highest priority decides alone. Where none does, the rules that are
// built in do.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=deviceexposurepolicies,scope=Cluster,shortName=devpol,categories=dra
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.action`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Devices",type=integer,JSONPath=`.status.devices`,description="devices for which the policy decides"
// +kubebuilder:printcolumn:name="Offered",type=integer,JSONPath=`.status.offered`,description="those of them that are offered to pods"
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DeviceExposurePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   DeviceExposurePolicySpec   `json:"spec"`
	Status DeviceExposurePolicyStatus `json:"status,omitempty"`
}

// DeviceExposurePolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type DeviceExposurePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DeviceExposurePolicy `json:"items"`
}

// DeviceExposurePolicySpec is the desired state of a policy.
//
// +kubebuilder:validation:XValidation:rule="!has(self.exposure) || !has(self.action) || self.action == 'expose'",message="exposure is of action expose: remove it, or change the action"
type DeviceExposurePolicySpec struct {
	// Priority decides between policies that select the same device: the highest wins. If
	// two policies of the same priority contradict each other about a device, nothing
	// changes for it.
	//
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=-1000000
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// NodeSelector restricts the policy to nodes with these labels; without it the
	// policy is for all nodes.
	//
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Selector chooses devices by the attributes they are published with. Without it
	// the policy is for all devices.
	//
	// +optional
	Selector *Selector `json:"selector,omitempty"`

	// Action selects whether the devices are offered to pods. Built-in rules have
	// precedence over expose: a device whose move would interrupt the node's own network,
	// or that cannot be moved, is not offered.
	//
	// +kubebuilder:default=expose
	// +optional
	Action ExposureAction `json:"action,omitempty"`

	// Exposure configures how the devices are offered.
	//
	// +optional
	Exposure *Exposure `json:"exposure,omitempty"`

	// PhysicalNetworks are the networks the devices are wired to. Virtual functions have
	// those of their PF unless a policy names others for them.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	// +optional
	PhysicalNetworks []PhysicalNetwork `json:"physicalNetworks,omitempty"`

	// Neighbour has rules for the other end of the devices' wires, as received by LLDP, if
	// the agents listen to it. Virtual functions have those of their PF unless a policy
	// sets others for them.
	//
	// +optional
	Neighbour *Neighbour `json:"neighbour,omitempty"`
}

// Neighbour has rules for what a port is connected to.
type Neighbour struct {
	// Expect is the expected neighbour. A device with another neighbour, or with none, has
	// the taint dra.networking/miswired.
	//
	// +optional
	Expect *ExpectedNeighbour `json:"expect,omitempty"`

	// Rail sets the attribute rail.
	//
	// +optional
	Rail *RailRule `json:"rail,omitempty"`
}

// ExpectedNeighbour has regular expressions (RE2) for the whole of a value.
//
// +kubebuilder:validation:MinProperties=1
type ExpectedNeighbour struct {
	// Switch is for the attribute switch.
	//
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Switch string `json:"switch,omitempty"`

	// SwitchPort is for the attribute switchPort.
	//
	// +kubebuilder:validation:MaxLength=256
	// +optional
	SwitchPort string `json:"switchPort,omitempty"`
}

// RailRule derives a rail from the name of a switch or of its port.
type RailRule struct {
	// From is the attribute that the rail is derived from.
	//
	// +kubebuilder:default=switch
	// +optional
	From RailSource `json:"from,omitempty"`

	// Match is a regular expression (RE2) for the whole of that attribute, with one group,
	// such as leaf-([0-9]+): what the group matches is the rail.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Match string `json:"match"`
}

// RailSource is an attribute.
//
// +kubebuilder:validation:Enum=switch;switchPort
type RailSource string

// The sources.
const (
	RailFromSwitch     RailSource = "switch"
	RailFromSwitchPort RailSource = "switchPort"
)

// ExposureAction is whether a device is offered.
//
// +kubebuilder:validation:Enum=expose;withhold
type ExposureAction string

// The actions.
const (
	Expose   ExposureAction = "expose"
	Withhold ExposureAction = "withhold"
)

// Exposure configures how devices are offered.
type Exposure struct {
	// DeviceNameSuffix begins with "-" and is added to the name under which a device is
	// shared; it needs allowMultipleAllocations. With it the device is offered as a whole,
	// too, until it has shares or is taken. Without it the device is only shared, with the
	// suffix -shared.
	//
	// +kubebuilder:validation:MaxLength=24
	// +kubebuilder:validation:Pattern=`^[-a-z0-9]*[a-z0-9]$`
	// +optional
	DeviceNameSuffix string `json:"deviceNameSuffix,omitempty"`

	// AllowMultipleAllocations shares the device between several claims instead of moving
	// it into one pod: it stays on the host, and pods have interfaces on it. An uplink of
	// the node may be shared; so may bonds, bridges and VLANs of the host.
	//
	// +optional
	AllowMultipleAllocations bool `json:"allowMultipleAllocations,omitempty"`

	// Capacity of a shared device, beside "shares", of which each allocation takes one and
	// of which there are 1024 unless set here.
	//
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Capacity map[string]DeviceCapacity `json:"capacity,omitempty"`

	// SupportedCNIPlugins are the step types that may use a shared device; without it all
	// that use devices on the host.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +optional
	SupportedCNIPlugins []SupportedCNIPlugin `json:"supportedCNIPlugins,omitempty"`

	// AdditionalAttributes are published with the devices; the name is domain/name, with a
	// domain of your own. The only name in the driver's domain is
	// dra.networking/physicalNetworkName, which is short for one entry of physicalNetworks.
	// Each device of the cluster has an attribute that any policy names, empty where no
	// policy sets it.
	//
	// +kubebuilder:validation:MaxProperties=8
	// +optional
	AdditionalAttributes map[string]string `json:"additionalAttributes,omitempty"`

	// BesideDrivers are other DRA drivers that may publish the same devices. Without it
	// a device that another driver publishes on the node is withheld.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	BesideDrivers []string `json:"besideDrivers,omitempty"`

	// BesideFunctions offers a PF as a whole although it has virtual functions, until one
	// of them is taken; they are offered until the PF is taken.
	//
	// +optional
	BesideFunctions bool `json:"besideFunctions,omitempty"`
}

// DeviceCapacity is an amount of which claims have shares.
type DeviceCapacity struct {
	Value resource.Quantity `json:"value"`

	// RequestPolicy sets what a claim gets that names no amount.
	//
	// +optional
	RequestPolicy *CapacityRequestPolicy `json:"requestPolicy,omitempty"`
}

// CapacityRequestPolicy restricts the amounts that a claim may request.
type CapacityRequestPolicy struct {
	// Default is the amount of a claim that names none.
	//
	// +optional
	Default *resource.Quantity `json:"default,omitempty"`

	// ValidRange bounds the amounts; one between two steps is rounded up.
	//
	// +optional
	ValidRange *CapacityRange `json:"validRange,omitempty"`

	// ValidValues are all valid amounts, ascending; one between them is rounded up.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +optional
	ValidValues []resource.Quantity `json:"validValues,omitempty"`
}

// CapacityRange bounds an amount.
type CapacityRange struct {
	Min resource.Quantity `json:"min"`

	// +optional
	Max *resource.Quantity `json:"max,omitempty"`

	// +optional
	Step *resource.Quantity `json:"step,omitempty"`
}

// SupportedCNIPlugin is a step type that may use a device.
type SupportedCNIPlugin struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Exclusive gives the step the device for itself; not for a shared device.
	//
	// +optional
	Exclusive bool `json:"exclusive,omitempty"`

	// ConsumePerAllocation is how much of the capacity one allocation takes.
	//
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	ConsumePerAllocation map[string]resource.Quantity `json:"consumePerAllocation,omitempty"`
}

// PhysicalNetwork is a network that devices are wired to.
type PhysicalNetwork struct {
	// Name of the network.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`

	// VLAN is the ID of the network on the wire; 0 is none. It is set on a virtual function
	// whose step names no VLAN, in pods that are created from then on.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4094
	// +optional
	VLAN int32 `json:"vlan,omitempty"`

	// AddressPool names the AddressPool of the network: a root step whose ipam is {type: pool}, without a
	// name, gets its addresses from it. It is chosen when a claim is prepared; pods keep the addresses
	// that they have. References in double braces stand for the device's rail, device.rail, its node, node.name, and a label of its
	// node, node.labels["KEY"].
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	AddressPool string `json:"addressPool,omitempty"`
}

// DeviceExposurePolicyStatus is the observed state of a policy, as the agents of the nodes
// report it.
type DeviceExposurePolicyStatus struct {
	// ObservedGeneration is the generation that the status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the policy: Valid (it makes sense by itself), and Ready (it is
	// applied on each node that has reported).
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Devices is the number of devices for which the policy decides.
	//
	// +optional
	Devices int32 `json:"devices"`

	// Offered is the number of those that are offered to pods.
	//
	// +optional
	Offered int32 `json:"offered"`

	// Nodes is the number of nodes with such a device.
	//
	// +optional
	Nodes int32 `json:"nodes"`

	// Reported is the number of nodes that have reported on this generation, and of all
	// that have reported on any: 3/5.
	//
	// +optional
	Reported string `json:"reported,omitempty"`
}

// ReportKind is the kind of a report object.
const ReportKind = "DeviceExposureReport"

// ReportResource returns the plural name clients use.
func ReportResource() schema.GroupVersionResource {
	return GroupVersion.WithResource("deviceexposurereports")
}

// DeviceExposureReport is the report of one node's agent on the policies there. Its name is
// that of the node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=deviceexposurereports,scope=Cluster,shortName=devrep,categories=dra
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Devices",type=integer,JSONPath=`.devices`
// +kubebuilder:printcolumn:name="Offered",type=integer,JSONPath=`.offered`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DeviceExposureReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Devices is the number of network devices that the node has.
	//
	// +optional
	Devices int32 `json:"devices"`

	// Offered is the number of those that are offered to pods.
	//
	// +optional
	Offered int32 `json:"offered"`

	// Policies that are for this node.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Policies []PolicyReport `json:"policies,omitempty"`
}

// DeviceExposureReportList is a list of reports.
//
// +kubebuilder:object:root=true
type DeviceExposureReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DeviceExposureReport `json:"items"`
}

// PolicyReport is a node's report on one policy.
type PolicyReport struct {
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Generation that is applied.
	Generation int64 `json:"generation"`

	// Devices for which the policy decides, and those of them that are offered.
	//
	// +optional
	Devices int32 `json:"devices"`
	// +optional
	Offered int32 `json:"offered"`

	// Undecided is the number of devices that stay as they were, because of this policy.
	//
	// +optional
	Undecided int32 `json:"undecided,omitempty"`

	// Problem is the reason for one of them.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Problem string `json:"problem,omitempty"`

	// Conflicts are policies of the same priority that contradict this one about a device.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	// +optional
	Conflicts []string `json:"conflicts,omitempty"`
}
