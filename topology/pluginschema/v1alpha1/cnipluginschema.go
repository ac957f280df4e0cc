package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// CNIPluginSchema describes a step type: the config it takes, what it needs of
// the steps it depends on, and what it adds to their result.
//
// The group's domain is reserved for the Kubernetes project, hence the annotation that no
// API review was requested.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=cnischema,categories=dra
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, the group is the one of the design this API follows"
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.cniType`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="Built-in",type=string,JSONPath=`.metadata.labels.networking\.dra\.io/built-in`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CNIPluginSchema struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CNIPluginSchemaSpec `json:"spec"`
}

// CNIPluginSchemaList is a list of schemas.
//
// +kubebuilder:object:root=true
type CNIPluginSchemaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CNIPluginSchema `json:"items"`
}

// CNIPluginSchemaSpec is the description.
type CNIPluginSchemaSpec struct {
	// CNIType is the step type, as written in a NetworkTopology.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	CNIType string `json:"cniType"`

	// Version of the plugin that the schema describes. It is for readers; nothing is compared with it.
	//
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Version string `json:"version,omitempty"`

	// Description of the step type, a sentence.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Description string `json:"description,omitempty"`

	// ConfigParameters are the keys a step's config may have.
	//
	// +optional
	ConfigParameters ConfigParameters `json:"configParameters,omitempty"`

	// Input has the requirements of a step of the type on its dependencies.
	//
	// +optional
	Input Input `json:"input,omitempty"`

	// Output has the additions of a step of the type to their result.
	//
	// +optional
	Output Output `json:"output,omitempty"`
}

// ConfigParameters are the keys of a config.
type ConfigParameters struct {
	// Required keys.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Required []Parameter `json:"required,omitempty"`

	// Optional keys.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Optional []Parameter `json:"optional,omitempty"`

	// Additional: a config may have keys beside these, of any value.
	//
	// +optional
	Additional bool `json:"additional,omitempty"`
}

// Parameter is one key and its values.
type Parameter struct {
	// Name of the key.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	Property `json:",inline"`
}

// Property describes values.
type Property struct {
	// Type of a value: string, integer, boolean, object, any, a list as in
	// []string, or a map as in map[string]bool.
	//
	// +kubebuilder:validation:Pattern=`^((\[\]|map\[string\])*)(string|integer|boolean|bool|object|any)$`
	// +kubebuilder:validation:MaxLength=64
	Type string `json:"type"`

	// Description of what the value does, with its unit.
	//
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Description string `json:"description,omitempty"`

	// Aliases are other spellings of the key.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Aliases []string `json:"aliases,omitempty"`

	// Format narrows a string, or the keys of a map: mac, guid, cidr, prefix, ip,
	// interface-name, link-name (also an alternative name), pci-address or sysctl-path.
	//
	// +kubebuilder:validation:Enum=mac;guid;cidr;prefix;ip;interface-name;link-name;pci-address;sysctl-path
	// +optional
	Format string `json:"format,omitempty"`

	// Enum lists the values of a string.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Enum []string `json:"enum,omitempty"`

	// Default applies when the key is absent; without one the
	// attribute is left alone.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Default *runtime.RawExtension `json:"default,omitempty"`

	// Minimum of an integer.
	//
	// +optional
	Minimum *int64 `json:"minimum,omitempty"`

	// Maximum of an integer.
	//
	// +optional
	Maximum *int64 `json:"maximum,omitempty"`

	// MinItems is the least number of entries of a list or map.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinItems int32 `json:"minItems,omitempty"`

	// MaxItems is the greatest number of entries; 0 is no limit.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxItems int32 `json:"maxItems,omitempty"`

	// Required: an object must have this property.
	//
	// +optional
	Required bool `json:"required,omitempty"`

	// Items describes the entries of a list or map beyond their type.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Items *Items `json:"items,omitempty"`

	// Properties of an object, by name.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Properties Properties `json:"properties,omitempty"`

	// Wrong is why the property could not be read.
	Wrong string `json:"-"`
}

// Items describes the entries of a list or map, whose type is in the list's.
type Items struct {
	Format     string     `json:"format,omitempty"`
	Enum       []string   `json:"enum,omitempty"`
	Minimum    *int64     `json:"minimum,omitempty"`
	Maximum    *int64     `json:"maximum,omitempty"`
	MinItems   int32      `json:"minItems,omitempty"`
	MaxItems   int32      `json:"maxItems,omitempty"`
	Items      *Items     `json:"items,omitempty"`
	Properties Properties `json:"properties,omitempty"`
	Wrong      string     `json:"-"` // why it could not be read
}

// Input has the requirements of a step.
type Input struct {
	// Device: a root step of the type gets an allocated device. The default is true if the
	// type needs no prevResult and passes none on.
	//
	// +optional
	Device *bool `json:"device,omitempty"`

	// PrevResult has the step's requirements on its dependencies.
	//
	// +optional
	PrevResult PrevResult `json:"prevResult,omitempty"`
}

// PrevResult has a step's requirements on its dependencies.
type PrevResult struct {
	// Required: a step of the type cannot be a root step.
	//
	// +optional
	Required bool `json:"required,omitempty"`

	// Interfaces the step needs.
	//
	// +optional
	Interfaces *Interfaces `json:"interfaces,omitempty"`

	// IPs the step needs.
	//
	// +optional
	IPs *Needed `json:"ips,omitempty"`

	// Routes the step needs.
	//
	// +optional
	Routes *Needed `json:"routes,omitempty"`
}

// Interfaces bounds how many interfaces a step needs.
type Interfaces struct {
	// MinItems is the least number.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinItems int32 `json:"minItems,omitempty"`

	// MaxItems is the greatest number; 0 is no limit.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxItems int32 `json:"maxItems,omitempty"`
}

// Needed is whether a list may be empty.
type Needed struct {
	// Required: the list may not be empty.
	//
	// +optional
	Required bool `json:"required,omitempty"`
}

// Output has the additions of a step.
type Output struct {
	// Interfaces of the result.
	//
	// +optional
	Interfaces *Flow `json:"interfaces,omitempty"`

	// IPs of the result.
	//
	// +optional
	IPs *Flow `json:"ips,omitempty"`

	// Routes of the result.
	//
	// +optional
	Routes *Flow `json:"routes,omitempty"`

	// Devices are those that the step gives a container beside interfaces.
	//
	// +optional
	Devices *Devices `json:"devices,omitempty"`

	// Explain is appended to the error of a step that depends on one of this type and lacks an
	// interface. A sentence, such as "A modem has no network interface."
	//
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Explain string `json:"explain,omitempty"`

	// ExplainTo is appended instead for a step of a type.
	//
	// +listType=map
	// +listMapKey=cniType
	// +kubebuilder:validation:MaxItems=32
	// +optional
	ExplainTo []Explanation `json:"explainTo,omitempty"`
}

// Explanation is why a step of a type gets no interface.
type Explanation struct {
	// CNIType is the type of the step that lacks it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	CNIType string `json:"cniType"`

	// Explain is a sentence, such as "Modems cannot be bonded."
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Explain string `json:"explain"`
}

// Flow describes how a step changes one list of the result.
type Flow struct {
	// Appends is the number of entries the step adds, or true: as many as
	// configured.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Appends *Appends `json:"appends,omitempty"`

	// Passthrough: entries of the dependencies are kept.
	//
	// +optional
	Passthrough bool `json:"passthrough,omitempty"`

	// Modifies: those entries may change.
	//
	// +optional
	Modifies bool `json:"modifies,omitempty"`

	// Conditional: the appended entries may be missing.
	//
	// +optional
	Conditional bool `json:"conditional,omitempty"`
}

// Devices are those that a step gives a container beside interfaces.
type Devices struct {
	// Appends: there are any.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Appends *Appends `json:"appends,omitempty"`

	// Properties are the fields references can name.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Properties []Parameter `json:"properties,omitempty"`
}
