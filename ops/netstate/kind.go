package netstate

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/fault"
)

// Kind tells the kinds of object apart.
type Kind string

// The kinds of object. Plans, metrics and status show the word.
const (
	KindLink       Kind = "link"
	KindAddress    Kind = "address"
	KindRoute      Kind = "route"
	KindSysctl     Kind = "sysctl"
	KindEthtool    Kind = "ethtool"
	KindBridgeVLAN Kind = "bridge-vlan"
	KindDevice     Kind = "device"
	KindVF         Kind = "vf"
	KindRule       Kind = "rule"
	KindNeighbor   Kind = "neighbor"
	KindBinding    Kind = "binding"
	KindClsact     Kind = "clsact"
	KindFilter     Kind = "filter"
	KindFDB        Kind = "fdb"
	KindMasquerade Kind = "masquerade"
	KindDHCPLease  Kind = "dhcp-lease"
	KindRDMALink   Kind = "rdma-link"
	KindRDMAPort   Kind = "rdma-port"
	KindRDMANetns  Kind = "rdma-netns"

	KindPortMapping Kind = "port-mapping"
	KindUnreachable Kind = "unreachable"
	KindPortGuard   Kind = "port-guard"

	KindChassis     Kind = "chassis"
	KindLogicalPort Kind = "logical-port"
	KindOVSPort     Kind = "ovs-port"
	KindLogicalRule Kind = "logical-rule"
	KindRepresentor Kind = "representor"
)

// kinds is the only list of kinds: how an object of each is read. It is a
// variable of the package because json.Unmarshaler takes no argument that could
// hold it.
var kinds = map[Kind]reader{
	KindLink:       readerOf[Link](),
	KindAddress:    readerOf[Addr](),
	KindRoute:      readerOf[Route](),
	KindSysctl:     readerOf[Sysctl](),
	KindEthtool:    readerOf[Ethtool](),
	KindBridgeVLAN: readerOf[BridgeVLAN](),
	KindDevice:     readerOf[Device](),
	KindVF:         readerOf[VF](),
	KindRule:       readerOf[Rule](),
	KindNeighbor:   readerOf[Neighbor](),
	KindBinding:    readerOf[Binding](),
	KindClsact:     readerOf[Clsact](),
	KindFilter:     readerOf[Filter](),
	KindFDB:        readerOf[FDB](),
	KindMasquerade: readerOf[Masquerade](),
	KindDHCPLease:  readerOf[DHCPLease](),
	KindRDMALink:   readerOf[RDMALink](),
	KindRDMAPort:   readerOf[RDMAPort](),
	KindRDMANetns:  readerOf[RDMANetns](),

	KindPortMapping: readerOf[PortMapping](),
	KindUnreachable: readerOf[Unreachable](),
	KindPortGuard:   readerOf[PortGuard](),

	KindChassis:     readerOf[Chassis](),
	KindLogicalPort: readerOf[LogicalPort](),
	KindOVSPort:     readerOf[OVSPort](),
	KindLogicalRule: readerOf[LogicalRule](),
	KindRepresentor: readerOf[Representor](),
}

// Kinds lists the kinds, sorted.
func Kinds() []Kind { return slices.Sorted(maps.Keys(kinds)) }

// Object is one thing that a plan can change. The types below implement it, as
// values, never as pointers.
type Object interface {
	Key() Key
	// LivesOn is the key of what the object lives on, goes with and is renamed
	// with: the link of an address. It is zero for what stands by itself.
	LivesOn() Key
	// Traits are common to all objects of the kind.
	Traits() *Traits
}

// Phase is when in a plan an object is created: after all objects of the phases
// before.
type Phase int

// The phases.
const (
	PhasePrepare   Phase = iota - 1 // what decides which links there are, and needs no sandbox
	PhaseLinks                      // links, devices and their settings: of kinds that say none
	PhaseAddresses                  // once links are where they belong: joining a VRF or a bond drops IPv6 addresses
	PhaseRoutes                     // once gateways can be reached
	PhaseRules                      // once there are routes where they lead
	phases
)

// Phases lists the phases in order.
func Phases() []Phase {
	var out []Phase
	for p := PhasePrepare; p < phases; p++ {
		out = append(out, p)
	}
	return out
}

// Traits describe a kind for planning, undo and the engine. What differs
// between two objects of a kind is no trait.
type Traits struct {
	// Whole kinds are in every observation of a sandbox; objects of other kinds, and
	// all of the host, are only read on demand.
	Whole bool
	// Host kinds belong to the host, wherever the link behind them is. Their ID is a
	// device's, and whoever has an object in its record holds that device.
	Host bool
	// Setting: the object exists as long as its carrier, or by itself; it is
	// neither created nor deleted.
	Setting bool
	// Held settings outlive the sandbox, so a record has them from the first pass
	// that wants them, changed or not.
	Held bool
	// MovesWithCarrier: the object goes along when its carrier moves to another namespace,
	// instead of being lost.
	MovesWithCarrier bool
	// OfPort objects come with the place of their carrier in a master. One that was deleted is created
	// again only while the carrier has that place: otherwise it would outlast it.
	OfPort bool
	// Elsewhere: others than the kernel hold the object too, so it does not end with its
	// carrier: an undo deletes it before that.
	Elsewhere bool
	// Flushed: the object is lost when its link goes down for a moment, or gets
	// another MAC.
	Flushed bool
	// InOrder: an undo restores the objects in the order in which they were changed,
	// not in reverse.
	InOrder bool
	// RestoredLast: an undo restores the object after all others, on which what it does depends.
	RestoredLast bool
	// Together: changes of several objects that follow one another are made at once, if the domain can
	// (reconcile.Batcher).
	Together bool
	// Phase is when objects of the kind are created.
	Phase Phase
	// Cost is the relative cost of planning one object. Planning for somebody
	// unknown is bounded by it.
	Cost int

	// label names what an object is made for, to people: a rule of a NetworkQoS.
	label func(Object) string
	// unsaid are fields that plans do not show of a new object where they are zero.
	unsaid []string
	// mayFail reports whether an undo can do without a change: what it restores may belong to somebody else by then.
	mayFail func(Change) bool
	// kernelMade reports whether the kernel made the object by itself.
	kernelMade func(Object) bool
	// absent is the error for a setting that is wanted and does not exist.
	absent func(Object) error
	// imagined is a setting as it could be on some node, for validation without one.
	// Each kind of setting needs it, but those of a link.
	imagined func(Object, Imagined) Object
	// effects applies a change to the model, with what the kernel does by itself;
	// nil is to store the object.
	effects func(*model, Change)
}

// Label names what an object is made for, to people; "" for most objects.
func Label(o Object) string {
	if label := o.Traits().label; label != nil {
		return label(o)
	}
	return ""
}

// MayFail reports whether an undo can do without a change, once it was tried.
func MayFail(c Change) bool {
	mayFail := c.Object().Traits().mayFail
	return mayFail != nil && mayFail(c)
}

// Absent is the error for a setting that is wanted and does not exist.
func Absent(o Object) error {
	if absent := o.Traits().absent; absent != nil {
		return absent(o)
	}
	return fault.New(fault.Unsupported, fmt.Errorf("there is no %s", o.Key()))
}

// Imagined is the node on which a topology is validated.
type Imagined struct {
	MAC    func() string // another one each time
	Domain string        // of its PCI addresses
}

// Imagine returns a setting as it could be on some node, false for what need not be
// there.
func Imagine(o Object, on Imagined) (Object, bool) {
	imagined := o.Traits().imagined
	if imagined == nil {
		return nil, false
	}
	return imagined(o, on), true
}

// KernelMade reports whether the kernel made the object, as it does on every link:
// its link-local address, the routes to the networks of its addresses.
func KernelMade(o Object) bool {
	made := o.Traits().kernelMade
	return made != nil && made(o)
}

// LinkOf is the name of the link that an object lives on, "" when it is on
// none. A link is on no other in this sense, see RequiredLinks. What lives on a clsact
// is on its link too: there is one to a link, and its ID is the link's.
func LinkOf(o Object) string {
	if k := o.LivesOn(); (k.Kind == KindLink || k.Kind == KindClsact) && o.Key().Kind != KindLink {
		return k.ID
	}
	return ""
}

// On returns the object as it is on another carrier, of the same kind: its field Link names what it lives on, unless it is a link or
// a sysctl.
func On(o Object, carrier Key) Object {
	switch o := o.(type) {
	case Link:
		o.Parent = &carrier.ID
		return o
	case Sysctl:
		if parts := strings.Split(o.Path, "/"); o.Link() != "" {
			parts[3] = carrier.ID // see Sysctl.Link
			o.Path = strings.Join(parts, "/")
		}
		return o
	}
	if o.LivesOn() == (Key{}) {
		return o
	}
	moved := reflect.New(reflect.TypeOf(o)).Elem()
	moved.Set(reflect.ValueOf(o))
	moved.FieldByName("Link").SetString(carrier.ID)
	return moved.Interface().(Object)
}

// RequiredLinks lists the links that must be there for an object to be changed.
func RequiredLinks(o Object) []string {
	l, isLink := o.(Link)
	if !isLink {
		if on := LinkOf(o); on != "" {
			return []string{on}
		}
		return nil
	}
	out := []string{l.Name}
	for _, other := range []*string{l.Parent, l.Master} {
		if other != nil && *other != "" {
			out = append(out, *other)
		}
	}
	return out
}

// OfHost reports whether the object is one of the host, or on a link that is.
func OfHost(o Object) bool {
	if l, ok := o.(Link); ok {
		return OnHost(l.Name)
	}
	return o.Traits().Host || OnHost(LinkOf(o))
}

// reader reads objects of one kind.
type reader struct {
	object func(raw []byte) (Object, error)
	change func(c *Change, data []byte) bool
}

func readerOf[T Object]() reader {
	return reader{
		object: func(raw []byte) (Object, error) {
			var o T
			if err := json.Unmarshal(raw, &o); err != nil {
				return nil, err
			}
			return o, nil
		},
		change: readTyped[T],
	}
}

// ReadObject reads one object of the given kind from JSON.
func ReadObject(kind Kind, raw []byte) (Object, error) {
	r, ok := kinds[kind]
	if !ok {
		return nil, fmt.Errorf("unknown object type %q", kind)
	}
	o, err := r.object(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return o, nil
}
