package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AddressPoolKind is the kind of a pool object.
const AddressPoolKind = "AddressPool"

// AddressPoolResource returns the plural name clients use.
func AddressPoolResource() schema.GroupVersionResource {
	return GroupVersion.WithResource("addresspools")
}

// AddressPoolFinalizer keeps a pool while a node has a lease of it: a pool of the same
// name that is divided otherwise would give the same addresses once more. A node takes
// nothing from a pool without it.
const AddressPoolFinalizer = "networking.dra.io/leases"

// Conditions of a pool, beside Valid.
const (
	ConditionOverlap   = "Overlap"   // it shares addresses with another pool
	ConditionExhausted = "Exhausted" // every block is leased
	ConditionLow       = "Low"       // most blocks are leased
)

// AddressPool is a set of addresses of which pods get one each. Nodes lease blocks of it
// ahead of need, so that a pod that starts waits for no API server.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=addresspools,scope=Cluster,shortName=addrpool,categories=dra
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.status.size`,description="addresses that can be allocated"
// +kubebuilder:printcolumn:name="Leased",type=integer,JSONPath=`.status.leased`,description="addresses that nodes have leased"
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.used`,description="addresses that claims have"
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Exhausted",type=string,JSONPath=`.status.conditions[?(@.type=="Exhausted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a pool is in the names of its leases, and has at most 63 characters"
type AddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   AddressPoolSpec   `json:"spec"`
	Status AddressPoolStatus `json:"status,omitempty"`
}

// AddressPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type AddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AddressPool `json:"items"`
}

// AddressPoolSpec defines the addresses, and how nodes share them.
//
// +kubebuilder:validation:XValidation:rule="!has(self.interfaceBlock) || has(self.hostBlock)",message="interfaceBlock needs hostBlock"
// +kubebuilder:validation:XValidation:rule="!has(self.blockSize) || !has(self.hostBlock)",message="blockSize follows from hostBlock: remove one of them"
// +kubebuilder:validation:XValidation:rule="has(self.blockSize) == has(oldSelf.blockSize) && has(self.hostBlock) == has(oldSelf.hostBlock) && has(self.interfaceBlock) == has(oldSelf.interfaceBlock)",message="how the pool is divided cannot be changed: nodes have leases of its blocks. Make another pool"
type AddressPoolSpec struct {
	// Subnets of the pool. A pod gets one address of each family that they have. With
	// hostBlock there is one of each family at most. They cannot be changed: make another
	// pool.
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="subnets cannot be changed: nodes have leases of their blocks. Make another pool"
	Subnets []AddressSubnet `json:"subnets"`

	// Exclude lists addresses, prefixes, and ranges FIRST-LAST that are not allocated. An
	// address that a pod has already stays with it.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=128
	// +optional
	Exclude []string `json:"exclude,omitempty"`

	// BlockSize is how many addresses a node leases at once: a power of two. Without it
	// it is 16, and 1 in a subnet of less than 4096 addresses.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="blockSize cannot be changed: nodes have leases of the pool's blocks. Make another pool"
	// +optional
	BlockSize *int32 `json:"blockSize,omitempty"`

	// HostBlock is a number of bits: each node has one of 2^hostBlock blocks, and keeps it
	// until it is gone.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="hostBlock cannot be changed: nodes have leases of the pool's blocks. Make another pool"
	// +optional
	HostBlock *int32 `json:"hostBlock,omitempty"`

	// InterfaceBlock is a number of bits: the subnet is divided into 2^interfaceBlock parts,
	// one for each interface of a node, and each part into blocks of nodes.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=5
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="interfaceBlock cannot be changed: nodes have leases of the pool's blocks. Make another pool"
	// +optional
	InterfaceBlock *int32 `json:"interfaceBlock,omitempty"`

	// Routes that a pod gets beside its address. A route of the step's own config to the same
	// destination takes precedence. A pod keeps the routes that it was given with its address.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Routes []AddressRoute `json:"routes,omitempty"`

	// QuarantineSeconds is how long an address rests after it was given back. Default 60.
	//
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +optional
	QuarantineSeconds *int32 `json:"quarantineSeconds,omitempty"`

	// ReclaimAfter is how long the address of a pod is kept for a pod of the same name and
	// namespace, such as the next one of a StatefulSet, after its claim has ended: 24h, for
	// example. Without it nothing is kept.
	//
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,4}[smh]$`
	// +optional
	ReclaimAfter string `json:"reclaimAfter,omitempty"`
}

// AddressSubnet is a subnet of a pool.
type AddressSubnet struct {
	// Prefix of the network, such as 192.0.2.0/24. Its own address and the broadcast
	// address are not allocated.
	//
	// +kubebuilder:validation:MaxLength=128
	Prefix string `json:"prefix"`

	// First and Last bound what is allocated. Not with hostBlock.
	//
	// +kubebuilder:validation:MaxLength=128
	// +optional
	First string `json:"first,omitempty"`
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Last string `json:"last,omitempty"`

	// Gateway is an address that is not allocated: the next hop of routes, of the pool or of
	// the step, that name none. That of an IPv6 subnet may be link-local, such as fe80::1.
	//
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// AddressRoute is a route of a pool.
type AddressRoute struct {
	// Destination is a prefix; 0.0.0.0/0 or ::/0 is the default route.
	//
	// +kubebuilder:validation:MaxLength=128
	Destination string `json:"destination"`

	// Gateway is an address in one of the pool's subnets, or link-local in IPv6: only pods with an address in the
	// same subnet get the route. Without it, it is the gateway of the pod's subnet; where that
	// has none, the route is on the link.
	//
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// AddressPoolStatus is the observed state of the pool.
type AddressPoolStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions of the pool: Valid, Overlap, Exhausted, Low.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Size is the number of addresses that can be allocated, of the family that has fewer.
	//
	// +optional
	Size int64 `json:"size"`

	// Leased is the number of addresses, of that family, in blocks that nodes have leased.
	//
	// +optional
	Leased int64 `json:"leased"`

	// Used is the number of addresses that claims have, as nodes have reported it.
	//
	// +optional
	Used int64 `json:"used"`

	// Nodes is the number of nodes with a lease.
	//
	// +optional
	Nodes int32 `json:"nodes"`
}

// AddressLeaseKind is the kind of a lease object.
const AddressLeaseKind = "AddressLease"

// AddressLeaseResource returns the plural name clients use.
func AddressLeaseResource() schema.GroupVersionResource {
	return GroupVersion.WithResource("addressleases")
}

// AddressLease is a block of a pool that a node has, or an address in the config of a
// topology that a pod has: then the pool is "(literal)". Its name is that of the block, so
// that its creation is the lock. Agents make and end leases.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=addressleases,scope=Cluster,shortName=addrlease
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:selectablefield:JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Block",type=string,JSONPath=`.spec.block`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.spec.used`
// +kubebuilder:printcolumn:name="For",type=string,JSONPath=`.spec.for`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressLease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec AddressLeaseSpec `json:"spec"`
}

// AddressLeaseList is a list of leases.
//
// +kubebuilder:object:root=true
type AddressLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AddressLease `json:"items"`
}

// AddressLeaseSpec says what is leased, and by which node.
//
// +kubebuilder:validation:XValidation:rule="self.pool == oldSelf.pool && self.block == oldSelf.block && (self.node == oldSelf.node || self.node == '(kept)' && has(self.keptUntil) || has(oldSelf.keptUntil))",message="a lease is of one block and one node"
type AddressLeaseSpec struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool"`

	// Block of the pool, as a prefix. With hostBlock it is that of the first interface, and
	// stands for all of them.
	//
	// +kubebuilder:validation:MaxLength=64
	Block string `json:"block"`

	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`

	// NodeUID is that of the Node object: one that was created later is another node, until
	// its agent has taken the lease over.
	//
	// +kubebuilder:validation:MaxLength=64
	NodeUID string `json:"nodeUID"`

	// Used is the number of addresses that claims have, when the agent last said so.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	Used int32 `json:"used"`

	// HostAddresses are the addresses of the node over which other nodes reach what it has
	// leased, one for each network below steps of type ipvlan in mode l3 or l3s. Nodes with such
	// pods have routes to them.
	//
	// +listType=map
	// +listMapKey=interface
	// +listMapKey=network
	// +kubebuilder:validation:MaxItems=32
	// +optional
	HostAddresses []HostAddress `json:"hostAddresses,omitempty"`

	// For names the pod that has the address, as NAMESPACE/NAME, where the lease is of an
	// address in the config of a topology. In a pool with reclaimAfter it is whom the address
	// is kept for, as NAMESPACE/POD/CLAIM/TOPOLOGY/STEP.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	For string `json:"for,omitempty"`

	// KeptUntil is set when no claim has the address any more, and it is kept: the lease is of
	// the node "(kept)", and any node may take it over for whom it is kept. When the time has
	// passed, the lease ends.
	//
	// +optional
	KeptUntil *metav1.Time `json:"keptUntil,omitempty"`
}

// HostAddress is the address of a node in a network.
type HostAddress struct {
	// Interface is the number of the interface in the pool.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31
	Interface int32 `json:"interface"`

	// Network that the address is in.
	//
	// +kubebuilder:validation:MaxLength=64
	Network string `json:"network"`

	// Address is that of the node in this network.
	//
	// +kubebuilder:validation:MaxLength=64
	Address string `json:"address"`
}

// KeptNode is in place of the node in leases that are kept: an agent of a version that does
// not know these must not regard one as its own.
const KeptNode = "(kept)"

// LabelFor is a label of leases with a hash of spec.for, by which they are found.
const LabelFor = "networking.dra.io/for"

// LabelSubnets of a pool has the pool's name: the controller made it of the subnets of a network, and deletes it.
const LabelSubnets = "networking.dra.io/pool-of-subnets"

// AnnotationSwitch of a pool names the logical switch of OVN, of a network between nodes, on which alone its addresses are unique. The
// controller sets it where it makes a pool of subnets.
const AnnotationSwitch = "networking.dra.io/logical-switch"

// AnnotationRegained of a lease has another value each time its node takes it again after it gave it up, so that a request to delete
// it that was sent before is refused.
const AnnotationRegained = "networking.dra.io/regained"
