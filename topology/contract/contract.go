package contract

import "slices"

// Type is the type of a config value, as in a CNIPluginSchema.
type Type string

// The types a parameter can have. A value that is one "{{ step.field }}" token
// takes the type of the field; every type below may be written so.
const (
	String  Type = "string"
	Integer Type = "integer" // a JSON number without fraction, or a numeric string when Param.NumericString is set
	Boolean Type = "boolean"
	Object  Type = "object" // Properties lists the keys
	Map     Type = "map"    // keys are free, Items describes the values
	List    Type = "list"   // Items describes the elements
	Any     Type = "any"    // kept as written
)

// Format narrows a string; the decoder checks it and writes the canonical form.
type Format string

// The formats. The canonical form is the one that the kernel reports.
const (
	MAC           Format = "mac"            // 48-bit, lower case, colons
	GUID          Format = "guid"           // 64-bit, of InfiniBand: lower case, colons; neither all zeros nor all ones
	CIDR          Format = "cidr"           // address/prefix, host bits kept
	Prefix        Format = "prefix"         // network/prefix, host bits refused; "default" is both families' zero prefix
	IP            Format = "ip"             // IPv4 or IPv6 address
	InterfaceName Format = "interface-name" // 1 to 15 bytes, no '/', ':' or space; not ".", "..", "all", "default"
	LinkName      Format = "link-name"      // interface-name, or an alternative name of an existing link, of up to 127 bytes
	PCIAddress    Format = "pci-address"    // dddd:bb:dd.f, lower case
	SysctlPath    Format = "sysctl-path"    // below net., canonical form net/a/b
)

// Param describes one config key.
type Param struct {
	Name        string   // canonical spelling
	Aliases     []string // other spellings accepted; giving two spellings of one key is an error
	Type        Type
	Format      Format // of a string; of a map, its keys
	Description string // one sentence; the unit, if any, is named in it
	Required    bool
	Default     any      // nil: nothing is assumed, the attribute is left alone
	Enum        []string // strings only; matched exactly unless FoldCase
	// Refused are words that other programs know, each with what to do instead.
	Refused  map[string]string
	FoldCase bool // enum values match in any case, the canonical case is written
	OnOff    bool // a string enum with "on" or "off" also accepts a boolean (YAML reads an unquoted on as true); alone, the enum is the two
	// NumericString lets an integer be written as a string of digits, as some
	// CNI plugins require (bond's miimon), and a string as an integer.
	NumericString bool
	// Scalar lets a string be written as a number or a boolean (a sysctl's
	// value); true and false become "1" and "0".
	Scalar     bool
	Minimum    *int64
	Maximum    *int64
	MinItems   int
	MaxItems   int // 0: no limit
	Items      *Param
	Properties []Param // Object only
	// Shorthand lets an object be written as the bare value of this property:
	// links: [net1] for links: [{name: net1}].
	Shorthand string
	// Ignored is why a value other than false has no effect, "" if it has one. Configs of other programs have
	// such keys, so they are accepted; a note says so.
	Ignored string
	// AtCreation: what containers are given when they are created, or a driver reads when it is bound,
	// depends on the value, so a running pod keeps the one that it has.
	AtCreation bool
}

// Contract describes one step type.
type Contract struct {
	Type        string // as written in a NetworkTopology
	Summary     string // one sentence
	Description string // Markdown paragraphs for the step's page: behaviour, kernel facts, sources
	Example     string // YAML of the steps list, valid as it stands
	Params      []Param
	Input       Input
	Output      Output
	// Additional: a config may have keys that Params lacks, of any value. Configs of objects within it may not.
	Additional bool
	// Check checks what single parameters cannot express (exclusions between keys).
	// It sees canonical values; a value still holding a reference is absent and
	// its name is in unresolved. Every error must name the key.
	Check func(config map[string]any, unresolved map[string]bool) []FieldError
	// Stacks describes the links that a step with this config, canonical, puts on a device that it
	// shares. A device carries links of one description, as the kernel refuses others or changes
	// those that it has. nil: links of any step are accepted beside them.
	Stacks func(config map[string]any) string
	// Explain is appended to an input error for interfaces this type cannot
	// give, e.g. "VFIO devices have no network interface — they are userspace-managed.", and ExplainTo
	// instead of it where a step of this type lacks them.
	Explain   string
	ExplainTo map[string]string
}

// FieldError is an error in one key of a config and how to fix it.
type FieldError struct {
	Field   string // path within config, e.g. "links[1].name"
	Message string // lower case, names the value and the fix
	// Complete reports that Message names the field itself and is a whole sentence.
	Complete bool
	// Unknown is a key beside those of the type that resembles none of them, "" if the error is another one.
	Unknown string
}

func (e FieldError) Error() string {
	if e.Field == "" || e.Complete {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// WithoutInterface reports whether a root step may be given a function that has no interface: the type gives device nodes of any device
// instead of an interface. A type that takes virtual functions only, such as vfio-pci, is not among them: of a function without an
// interface nothing published says whether it is one.
func (c Contract) WithoutInterface() bool {
	return c.Input.Device && len(c.Input.DeviceTypes) == 0 && c.Output.InsteadOfInterface()
}

// MayGiveNodes reports whether containers may get device nodes of a step with that config: those that GivesDevices is about, or those of
// a virtual function, which a step gets or not.
func (c Contract) MayGiveNodes(config map[string]any) bool {
	return c.GivesDevices(config) || c.Input.Functions && len(c.Output.Devices) > 0 && config["rdma"] != false
}

// GivesDevices reports whether a step with that config may have the fields Output.Devices. A step that shares its device has them only
// where its config asks for something that containers are given at their creation.
func (c Contract) GivesDevices(config map[string]any) bool {
	if !c.Input.Shares || len(c.Output.Devices) == 0 {
		return len(c.Output.Devices) > 0
	}
	return slices.ContainsFunc(c.Params, func(p Param) bool {
		switch v := config[p.Name].(type) {
		case nil:
			return false
		case bool:
			return p.AtCreation && v
		case []any:
			return p.AtCreation && len(v) > 0
		}
		return p.AtCreation
	})
}

// Input describes a step's needs from the merged results of its dependencies.
type Input struct {
	Required bool // the step cannot be a root step
	Device   bool // as a root step it consumes one device, which is moved; see RootOnly
	// Shares says that as a root step it uses one device that stays on the host and that
	// others use, too. NamedBy is the config key that may name the device's interface.
	Shares  bool
	NamedBy string
	// DerivedFrom are types of root steps that take a device. A derived step depends on exactly one of them and is about its
	// device; the interface that its result may have (Conditional) is that of the device. nil: derived steps are about interfaces.
	DerivedFrom []string
	// Functions says that such a step may take a whole virtual function instead, which is
	// moved, if its selector chooses one.
	Functions bool
	// Uplink reports for a config that the shared device is the uplink of a network, whose functions
	// have most of its attributes: such a step takes a function only if its selector reads "type" or
	// "pfName". nil: never.
	Uplink func(config map[string]any) bool
	// RDMA reports for a config that the device needs an RDMA device, and that this stays on the
	// host, which serves pods only in the node's shared mode. nil: never.
	RDMA func(config map[string]any) (needed, stays bool)
	// DeviceTypes are the kinds of device that fit, as in the attribute "type" of a
	// published device; empty for any. They choose the device of a root step without a
	// selector.
	DeviceTypes   []string
	MinInterfaces int
	MaxInterfaces int  // 0: no limit
	IPs, Routes   bool // at least one of them is needed
}

// Output describes the additions of a step's result to its input.
type Output struct {
	Interfaces Flow
	IPs        Flow
	Routes     Flow
	// Devices are the fields that the device nodes of a step add to its result; nil for
	// steps that give none.
	Devices []Param
	// LogicalPorts says that what a pod sends over each interface the step makes is received by a
	// port of OVN of its own.
	LogicalPorts bool
	// Attachment is the config key with the NetworkAttachmentDefinition of such a port, followed
	// by the keys that have to agree with it: where ovn-kubernetes has attached the node to OVN,
	// it makes the port, when it sees the pod.
	Attachment []string
	// Relays says that an interface the step makes sends through the one below it, unchanged.
	Relays bool
}

// InsteadOfInterface reports whether the step gives device nodes and has no interface.
func (o Output) InsteadOfInterface() bool {
	return len(o.Devices) > 0 && o.Interfaces.Appends == 0 && !o.Interfaces.Passthrough
}

// Flow describes how a step changes one list of the result.
type Flow struct {
	Appends     int  // how many entries the step adds; -1: as many as configured
	Passthrough bool // entries of the dependencies are kept
	Modifies    bool // existing entries may change
	Conditional bool // the appended entries may be missing at run time
}

// Set holds the contracts of all known step types.
type Set interface {
	// Contract returns the contract of a step type.
	Contract(typ string) (Contract, bool)
	// Types returns the known types, sorted.
	Types() []string
}

// Int returns a pointer to n, for Param bounds.
func Int(n int64) *int64 { return new(n) }
