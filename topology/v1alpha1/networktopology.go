package v1alpha1

import (
	"cmp"
	"regexp"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NetworkTopology describes a pod's network as a directed acyclic graph of
// steps. Root steps attach allocated devices, derived steps build on them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nettopo,categories=dra
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.role`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Classes",type=integer,JSONPath=`.status.deviceClasses`
// +kubebuilder:printcolumn:name="Sandboxes",type=integer,JSONPath=`.status.sandboxes`
// +kubebuilder:printcolumn:name="Updated",type=string,JSONPath=`.status.updated`,description="pods that run this generation, of all"
// +kubebuilder:printcolumn:name="Generations",type=string,JSONPath=`.status.podsByGeneration`,description="generation:pods, the newest first"
// +kubebuilder:printcolumn:name="Degraded",type=integer,JSONPath=`.status.degraded`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name must be a DNS label of at most 63 characters: it becomes a label of the generated DeviceClasses"
type NetworkTopology struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NetworkTopologySpec   `json:"spec"`
	Status NetworkTopologyStatus `json:"status,omitempty"`
}

// NetworkTopologyList is a list of topologies.
//
// +kubebuilder:object:root=true
type NetworkTopologyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NetworkTopology `json:"items"`
}

// NetworkTopologySpec is the desired state of a topology.
//
// +kubebuilder:validation:XValidation:rule="has(self.role) == has(oldSelf.role) && (!has(self.role) || self.role == oldSelf.role)",message="the role cannot change: pods have the topology in its role. Create another topology"
// +kubebuilder:validation:XValidation:rule="has(self.role) || !has(self.nodeSelector)",message="nodeSelector needs a role: a claim selects nodes by its devices; remove it, or add role: primary"
type NetworkTopologySpec struct {
	// Steps of the topology. Their order decides nothing but ties: a step runs
	// after everything it depends on.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Steps []Step `json:"steps"`

	// DriftPolicy selects what happens when a running pod's network differs from the
	// topology: Repair it, or only report it (Observe).
	//
	// +kubebuilder:default=Repair
	// +optional
	DriftPolicy DriftPolicy `json:"driftPolicy,omitempty"`

	// UpdatePolicy selects what happens to running pods when the steps change: they keep
	// the network they were started with, and only new pods get the change (Immutable), or
	// the change is applied to them (InPlace).
	//
	// +kubebuilder:default=Immutable
	// +optional
	UpdatePolicy UpdatePolicy `json:"updatePolicy,omitempty"`

	// AllowPodUplink lets steps change the pod's own interface to the cluster, usually
	// eth0: its MTU, MAC address, addresses, master and settings. Without it a step that
	// names this interface is refused. To stack a link on it needs no permission. The
	// loopback device is refused in any case.
	//
	// +optional
	AllowPodUplink bool `json:"allowPodUplink,omitempty"`

	// Rollout configures how a change is applied to running pods. It has an effect with the
	// update policy InPlace only.
	//
	// +optional
	Rollout *Rollout `json:"rollout,omitempty"`

	// OnFailure selects the reaction, for a running pod and for its devices, when ports of
	// the topology are down. Without it, failures are only reported in the status of the
	// claim and in metrics.
	//
	// +optional
	OnFailure *FailurePolicy `json:"onFailure,omitempty"`

	// ClaimTemplate describes the claim of a pod that uses the topology, and the namespaces
	// in which the controller keeps a ResourceClaimTemplate for it.
	//
	// +optional
	ClaimTemplate *ClaimTemplate `json:"claimTemplate,omitempty"`

	// Export selects what the containers that use a claim of the topology are told of its
	// results. It is written when the network of the pod is verified, so it is true when a
	// container is created.
	//
	// +optional
	Export *Export `json:"export,omitempty"`

	// ClaimParameters list what a claim may set in the configs of steps, each within a bound.
	// Without them a claim sets nothing. A claim sets them in an opaque config for this driver.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	ClaimParameters []ClaimParameter `json:"claimParameters,omitempty"`

	// Role primary makes the topology the own network of all pods of the selected nodes, the
	// one by which they reach the cluster. No claim can request it. Its first root step
	// creates the interface eth0, with addresses of the node's pod CIDRs unless its config
	// names others. If several select a node, the oldest counts.
	//
	// +optional
	Role Role `json:"role,omitempty"`

	// NodeSelector selects the nodes of a topology with a role by their labels. Without it all
	// nodes are selected.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// Export writes results of steps into environment and files of containers.
type Export struct {
	// Env has environment variables by name. A value may refer to results of steps, in double
	// braces: vf0.interfaceName. A step name with an asterisk at its end means all steps
	// that begin so, such as rail*.rdmaDevice: a list with commas, in the order of the steps.
	// All variables of a claim have 32 KiB at most. A variable of a preset that is named here
	// has this value.
	//
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Env map[string]ExportValue `json:"env,omitempty"`

	// Files are files by name, which containers find, read-only, in the folder
	// /var/run/dra.networking/files/TOPOLOGY. The content may refer to results as the values
	// of env do. A file has 64 KiB at most, all of a claim 256 KiB. They follow an edit in place.
	//
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Files map[string]ExportContent `json:"files,omitempty"`

	// Presets are sets of variables that programs read: nccl (NCCL_SOCKET_IFNAME,
	// NCCL_IB_HCA), ucx (UCX_NET_DEVICES), mpi (OMPI_MCA_btl_tcp_if_include), dpdk
	// (DPDK_PCI_ADDRESSES), devicePlugin (PCIDEVICE_ with each extendedResourceName of the
	// steps) and ncclTopology (NCCL_TOPO_FILE and the file nccl-topology.xml). A variable whose
	// value a pod lacks, such as an RDMA device, is left out.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Presets []ExportPreset `json:"presets,omitempty"`
}

// ExportValue is a text with references.
//
// +kubebuilder:validation:MaxLength=1024
type ExportValue string

// ExportContent is the content of a file, with references.
//
// +kubebuilder:validation:MaxLength=16384
type ExportContent string

// ExportPreset is the name of a set of variables.
//
// +kubebuilder:validation:Enum=nccl;ucx;mpi;dpdk;devicePlugin;ncclTopology
type ExportPreset string

// The presets.
const (
	ExportNCCL         ExportPreset = "nccl"
	ExportUCX          ExportPreset = "ucx"
	ExportMPI          ExportPreset = "mpi"
	ExportDPDK         ExportPreset = "dpdk"
	ExportDevicePlugin ExportPreset = "devicePlugin"
	ExportNCCLTopology ExportPreset = "ncclTopology"
)

// Role is the use of a topology by pods without a claim.
//
// +kubebuilder:validation:Enum=primary
type Role string

// AnnotationDefinition names the NetworkAttachmentDefinition that a topology stands for, as NAMESPACE/NAME: a NetworkQoS that refers to
// that covers the topology.
const AnnotationDefinition = "networking.dra.io/net-attach-def"

// Primary is the role of a topology that is the pod network.
const Primary Role = "primary"

// FailurePolicy selects the reaction when ports of a pod are down, by the consequence for
// the pod. A device that is down then has a taint.
type FailurePolicy struct {
	// Degraded: what is built on the port works, such as a bond that has lost one of two.
	// A taint without effect reports it.
	//
	// +kubebuilder:default=Report
	// +kubebuilder:validation:Enum=Report
	// +optional
	Degraded FailureAction `json:"degraded,omitempty"`

	// Lost: what is built on the port does not work any more. Report is a taint without
	// effect, Evict one with the effect NoExecute: Kubernetes deletes the pod unless its
	// claim tolerates the taint.
	//
	// +kubebuilder:default=Report
	// +kubebuilder:validation:Enum=Report;Evict
	// +optional
	Lost FailureAction `json:"lost,omitempty"`

	// After is how long a failure has to last, such as 90s or 5m.
	//
	// +kubebuilder:default="60s"
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,4}[smh]$`
	// +optional
	After string `json:"after,omitempty"`
}

// FailureAction is the reaction when a port is down.
type FailureAction string

// The actions.
const (
	Report FailureAction = "Report"
	Evict  FailureAction = "Evict"
)

// Seconds returns After in seconds, or the default if it is invalid.
func (p *FailurePolicy) Seconds() int { return cmp.Or(Seconds(p.After), 60) }

var shortTime = regexp.MustCompile(`^([1-9][0-9]{0,4})([smh])$`)

// Seconds reads a time such as 60s, 5m or 1h; 0 for a text of another form.
func Seconds(text string) int {
	m := shortTime.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n * map[string]int{"s": 1, "m": 60, "h": 3600}[m[2]]
}

// ClaimTemplate is the ResourceClaimTemplate of a topology. It has a request for each
// root step that takes a device, under the step's name.
type ClaimTemplate struct {
	// Name of the ResourceClaimTemplate; without it that of the topology.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	// +optional
	Name string `json:"name,omitempty"`

	// Namespaces in which the controller keeps the ResourceClaimTemplate, as soon as
	// they exist.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`

	// NamespaceSelector chooses further namespaces by their labels. An empty one
	// chooses all.
	//
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// BondPorts selects which virtual functions the ports of a bond may be: of different
	// physical functions (DistinctPF), so that one may fail, or Any.
	//
	// +kubebuilder:default=DistinctPF
	// +optional
	BondPorts BondPorts `json:"bondPorts,omitempty"`

	// Constraints between the devices of root steps, such as the same PCIe root.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Constraints []ClaimConstraint `json:"constraints,omitempty"`
}

// ClaimConstraint demands that devices of some root steps have a value in common, or not.
//
// +kubebuilder:validation:XValidation:rule="has(self.matchAttribute) != has(self.distinctAttribute)",message="needs either matchAttribute or distinctAttribute"
type ClaimConstraint struct {
	// Steps whose devices are constrained; without any, those of all root steps.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	Steps []string `json:"steps,omitempty"`

	// MatchAttribute is an attribute that must have one value on all of these devices,
	// such as resource.kubernetes.io/pcieRoot.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=96
	// +optional
	MatchAttribute string `json:"matchAttribute,omitempty"`

	// DistinctAttribute is an attribute that must have another value on each of these
	// devices, such as dra.networking/pfName.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=96
	// +optional
	DistinctAttribute string `json:"distinctAttribute,omitempty"`
}

// ClaimParameter is a key of a step's config that a claim may set, and the bound of its values.
//
// +kubebuilder:validation:XValidation:rule="has(self.subnets) == (self.key == 'addresses')",message="subnets is the bound of the key addresses, which needs it"
// +kubebuilder:validation:XValidation:rule="has(self.macPrefix) == (self.key == 'mac')",message="macPrefix is the bound of the key mac, which needs it"
// +kubebuilder:validation:XValidation:rule="has(self.namePattern) == (self.key == 'name' || self.key == 'ifName')",message="namePattern is the bound of the keys name and ifName, which need it"
type ClaimParameter struct {
	// Step whose config has the key.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Step string `json:"step"`

	// Key of the config, as the step type calls it: addresses, mac, and the name of the
	// interface, which is name, or ifName for the types bridge and ovn-k8s-cni-overlay.
	Key ParameterKey `json:"key"`

	// Subnets of the addresses: a claim may set at most one address in each, which has the
	// prefix length of the subnet. They replace addresses and ipam of the config.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Subnets []ParameterSubnet `json:"subnets,omitempty"`

	// MACPrefix is how a MAC address begins, in one to five octets, such as 02:00:5e.
	//
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{2}(:[0-9a-f]{2}){0,4}$`
	// +kubebuilder:validation:MaxLength=14
	// +optional
	MACPrefix string `json:"macPrefix,omitempty"`

	// NamePattern is a regular expression (RE2) that the whole name matches, such as
	// data[0-9].
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +optional
	NamePattern string `json:"namePattern,omitempty"`
}

// ParameterKey is a key of a config that a claim may set.
//
// +kubebuilder:validation:Enum=addresses;mac;name;ifName
type ParameterKey string

// The keys.
const (
	ParameterAddresses ParameterKey = "addresses"
	ParameterMAC       ParameterKey = "mac"
	ParameterName      ParameterKey = "name"
	ParameterIfName    ParameterKey = "ifName"
)

// ParameterSubnet is a subnet, and the part of it that claims choose from.
type ParameterSubnet struct {
	// Prefix of the subnet, such as 192.0.2.0/24.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Prefix string `json:"prefix"`

	// First address that a claim may set; without it the first of the subnet.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	First string `json:"first,omitempty"`

	// Last address that a claim may set; without it the last of the subnet.
	//
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Last string `json:"last,omitempty"`
}

// BondPorts selects which virtual functions the ports of a bond may be.
//
// +kubebuilder:validation:Enum=DistinctPF;Any
type BondPorts string

// The choices for the ports of a bond.
const (
	DistinctPF BondPorts = "DistinctPF"
	AnyPF      BondPorts = "Any"
)

// Rollout configures how a change is applied to running pods.
type Rollout struct {
	// MaxUnavailable is how many nodes update their pods at a time: a number, or a
	// percentage of the nodes that have pods of the topology, rounded up. A node
	// updates one pod after the other, so it is also how many pods are being
	// updated at a time.
	//
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 && self <= 2147483647 : self.matches('^([1-9][0-9]?|100)%$')",message="must be a number above 0, or 1% to 100%"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// Step is one node of the graph.
//
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || !has(self.dependOn) || self.dependOn.size() == 0",message="only a root step allocates a device: remove the selector, or dependOn"
// +kubebuilder:validation:XValidation:rule="!has(self.extendedResourceName) || !has(self.dependOn) || self.dependOn.size() == 0",message="only a root step allocates a device: remove extendedResourceName, or dependOn"
type Step struct {
	// Name of the step, unique in the topology. A claim's request for a root step's device
	// has the same name.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Type of the step, such as sriov, bond, vlan or tuning.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Type string `json:"type"`

	// DependOn names the steps this one builds on. Without any it is a root
	// step, which attaches an allocated device.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	DependOn []string `json:"dependOn,omitempty"`

	// Selector chooses the devices a root step may get.
	//
	// +optional
	Selector *Selector `json:"selector,omitempty"`

	// ExtendedResourceName lets pods request the step's device without a claim: under this
	// name, such as openshift.io/sriov_a, in the limits of their containers. Root steps of
	// the topology that have the same type and selector may have the same name; a pod then
	// requests as many, and their order decides which step gets which device. No other
	// DeviceClass of the cluster may have the name.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=308
	// +optional
	ExtendedResourceName string `json:"extendedResourceName,omitempty"`

	// ForEach makes the step several steps, one for each value, with the step's name and the value at
	// its end as their names: rail0 and rail1 for the step rail with the values "0" and "1". In
	// the selector, the extendedResourceName and the config each.value in double braces is the
	// value, and each.index its position from 0. In a step with the same values, dependOn and references mean the step
	// of the same value; in any other step dependOn means all of them.
	//
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	ForEach []string `json:"forEach,omitempty"`

	// Config of the step; the step type defines the keys, and kubectl get
	// cnipluginschema TYPE -o yaml shows them. Values may refer to results of
	// dependencies: vf0.interfaceName in double braces.
	//
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Config *runtime.RawExtension `json:"config,omitempty"`

	// AllowDuplicate lets several pods of the cluster have the addresses in the config at the
	// same time: for anycast, and for networks that do not reach one another. Without it a
	// pod waits while another one has its address.
	//
	// +optional
	AllowDuplicate bool `json:"allowDuplicate,omitempty"`

	// DriftPolicy of this step, when it differs from the topology's.
	//
	// +optional
	DriftPolicy DriftPolicy `json:"driftPolicy,omitempty"`
}

// Selector chooses devices.
type Selector struct {
	// CEL is a device selector expression; it is copied into the generated
	// DeviceClass.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=10240
	CEL string `json:"cel"`
}

// DriftPolicy selects what happens when the network drifts from the topology.
//
// +kubebuilder:validation:Enum=Repair;Observe
type DriftPolicy string

// The drift policies.
const (
	Repair  DriftPolicy = "Repair"
	Observe DriftPolicy = "Observe"
)

// UpdatePolicy selects what happens to running pods when a topology changes.
//
// +kubebuilder:validation:Enum=Immutable;InPlace
type UpdatePolicy string

// The update policies.
const (
	Immutable UpdatePolicy = "Immutable"
	InPlace   UpdatePolicy = "InPlace"
)

// NetworkTopologyStatus is the observed state of a topology.
type NetworkTopologyStatus struct {
	// ObservedGeneration is the generation that the status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the topology: Valid (the steps make sense), Programmed (the
	// DeviceClasses match the steps), Ready (both), InUse (claims are allocated for it),
	// with the update policy InPlace Updated (all running pods run this generation),
	// with a claim template ClaimTemplates (all namespaces chosen have it), and with a root
	// step that has a share of a host's device Shared (a DeviceExposurePolicy shares one).
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// DeviceClasses is the number of generated DeviceClasses.
	//
	// +optional
	DeviceClasses int32 `json:"deviceClasses,omitempty"`

	// Sandboxes is the number of pods that run the topology.
	//
	// +optional
	Sandboxes int32 `json:"sandboxes,omitempty"`

	// Degraded is the number of claims whose network is not ready.
	//
	// +optional
	Degraded int32 `json:"degraded,omitempty"`

	// Generations counts the pods by the generation of the topology that they run, the
	// newest first. Pods that no node has reported yet are not included.
	//
	// +listType=map
	// +listMapKey=generation
	// +optional
	Generations []GenerationStatus `json:"generations,omitempty"`

	// Updated is the number of pods that run the newest generation, and of those
	// that run any: 3/5.
	//
	// +optional
	Updated string `json:"updated,omitempty"`

	// PodsByGeneration is Generations in short form: 4:3 3:2.
	//
	// +optional
	PodsByGeneration string `json:"podsByGeneration,omitempty"`

	// Rollout is the progress of the update in place; absent with the update policy
	// Immutable.
	//
	// +optional
	Rollout *RolloutStatus `json:"rollout,omitempty"`
}

// GenerationStatus is how many pods run a generation.
type GenerationStatus struct {
	Generation int64 `json:"generation"`
	Pods       int32 `json:"pods"`
}

// RolloutStatus is the progress of an update in place.
type RolloutStatus struct {
	// Generation that running pods are to get.
	Generation int64 `json:"generation"`

	// Nodes that may update their pods now. A node is listed until an update of all its
	// pods was attempted.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Nodes []string `json:"nodes,omitempty"`

	// HeldBack is the number of pods that need to be recreated to get the change.
	//
	// +optional
	HeldBack int32 `json:"heldBack,omitempty"`

	// Retrying is the number of pods whose update failed for a reason of the pod or its
	// node. It is retried when all others have the change.
	//
	// +optional
	Retrying int32 `json:"retrying,omitempty"`

	// Failed is the number of pods in which the change failed and was rolled back.
	//
	// +optional
	Failed int32 `json:"failed,omitempty"`

	// Failure stopped the rollout: the change failed in three pods, on two nodes and in two
	// namespaces, or in all if there are fewer. The next edit starts it again.
	//
	// +optional
	Failure *RolloutFailure `json:"failure,omitempty"`
}

// RolloutFailure is one of the failures that stopped a rollout. The pod, and the kernel's
// error, are in the status of that pod's claim: everybody who uses a topology can read it.
type RolloutFailure struct {
	Node string `json:"node"`
	// Step that failed, if it was one.
	Step string `json:"step,omitempty"`
	// Reason is the kind of the failure, as in the conditions of a claim's devices.
	Reason string `json:"reason,omitempty"`
}

// The conditions of a topology.
const (
	ConditionReady      = "Ready"      // valid and programmed; also the condition of a device in a claim's status
	ConditionValid      = "Valid"      // the steps make sense
	ConditionProgrammed = "Programmed" // the DeviceClasses match the steps
	ConditionInUse      = "InUse"      // claims are allocated for it
	ConditionUpdated    = "Updated"    // all running pods run this generation

	ConditionClaimTemplates = "ClaimTemplates" // the namespaces chosen have the ResourceClaimTemplate

	ConditionShared = "Shared" // a DeviceExposurePolicy shares the device of each root step that has a share
)

// Finalizer delays the removal of a topology until its classes are deleted, and by some
// minutes for claims that are allocated for it and not prepared yet.
const Finalizer = "networking.dra.io/in-use"
