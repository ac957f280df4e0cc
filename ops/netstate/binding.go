package netstate

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"github.com/plumbline/plumbline/topology/fault"
)

// Binding is which driver a PCI function has. It outlives the sandbox and the
// process, but not the boot: at a boot each function gets the driver that its IDs
// choose.
type Binding struct {
	ID string `json:"id" plan:"key"` // PCI address
	// Driver is the driver that is bound; "" is none.
	Driver *string `json:"driver,omitempty" plan:"live"`
	// Override is the only driver that the kernel binds to the function by itself
	// (driver_override); "" leaves that to its IDs. Any driver load or probe while we
	// have the function would otherwise take it.
	Override *string `json:"override,omitempty" plan:"live"`
	// NodeGUID and PortGUID are those that the driver of a function of InfiniBand has read from its physical function, "" for none; nil of
	// other functions. A driver reads them when it is bound: to change them is to bind it again, which deletes the interface.
	NodeGUID *string `json:"nodeGUID,omitempty" plan:"live,name=nodeGUID"`
	PortGUID *string `json:"portGUID,omitempty" plan:"live,name=portGUID"`

	// Observed only.
	PF string `json:"pf,omitempty" plan:"-"` // of a virtual function: its physical one
	// Group is the number of its IOMMU group, "" for none. Shared are the other
	// functions in it, but for bridges: the IOMMU does not tell them apart. NoIOMMU
	// says that the group is one of VFIO's that isolates nothing.
	Group   string   `json:"group,omitempty" plan:"-"`
	Shared  []string `json:"shared,omitempty" plan:"-"`
	NoIOMMU bool     `json:"noIOMMU,omitempty" plan:"-"`
	// Nodes are the character devices by which a process uses the function; none
	// while a driver of the kernel has it.
	Nodes []string `json:"nodes,omitempty" plan:"-"`
}

// Key is the function's PCI address.
func (b Binding) Key() Key { return bindingKey(b.ID) }

// LivesOn is none: a function is part of the machine.
func (Binding) LivesOn() Key { return Key{} }

var bindingTraits = Traits{
	Host: true, Setting: true, Held: true, RestoredLast: true, Phase: PhasePrepare, Cost: 8, effects: (*model).binding,
	absent: func(o Object) error {
		return fault.New(fault.Gone, fmt.Errorf("PCI function %q does not exist", o.(Binding).ID))
	},
	imagined: func(o Object, on Imagined) Object {
		return Binding{ID: o.(Binding).ID, Driver: new("as it is"), Override: new(""), PF: on.Domain + ":00:00.0", Group: on.Domain}
	},
}

// Traits returns the traits of bindings.
func (Binding) Traits() *Traits { return &bindingTraits }

// bindingKey is the key of the binding of the function with that PCI address.
func bindingKey(id string) Key { return Key{KindBinding, id} }

// UserspaceDriver reports whether a driver hands the device to user space, so
// that it has no network interface.
func UserspaceDriver(driver string) bool {
	switch driver {
	case "uio_pci_generic", "igb_uio", "pci-stub", "pciback", "xen-pciback":
		return true
	}
	return strings.Contains(driver, "vfio") // vfio-pci and its variants, such as mlx5_vfio_pci
}

// binding binds a function to another driver, or to its own again. Its interface is deleted, and comes
// with a driver of the kernel as a new one on the host: down, under a name that the
// kernel chooses. The driver reads the GUIDs that the physical function has for it then.
func (m *model) binding(c Change) {
	m.store(c)
	after, ok := c.After.(Binding)
	d, known := m.Device(after.ID)
	again := after.NodeGUID != nil || after.PortGUID != nil
	if !ok || !known || !again && (after.Driver == nil || d.Driver == *after.Driver) {
		return
	}
	bare := Device{ID: d.ID, Driver: d.Driver, Nodes: maps.Clone(d.Nodes)}
	if after.Driver != nil {
		bare.Driver = *after.Driver
	}
	inKernel := bare.Driver != "" && !UserspaceDriver(bare.Driver)
	b, _ := Lookup(m.Snapshot, after)
	b.NodeGUID, b.PortGUID = nil, nil
	if again && bare.Driver == "" { // it gets the one that its IDs choose: that of the only cards with GUIDs
		bare.Driver, inKernel = "mlx5_core", true
		b.Driver = &bare.Driver
	}
	if vf, ok := Lookup(m.Snapshot, VF{ID: d.ID}); ok && inKernel && vf.PortGUID != nil {
		b.NodeGUID, b.PortGUID = vf.NodeGUID, vf.PortGUID
		bare.LinkKind, bare.PortGUID = InfiniBandKind, *vf.PortGUID
	}
	m.Put(b)
	if again {
		bare.RDMA, bare.RDMAExclusive = d.RDMA, d.RDMAExclusive
	}
	// Those of the node stay.
	maps.DeleteFunc(bare.Nodes, func(kind string, _ []string) bool { return kind != NodeVhost && kind != NodeTun })
	m.Put(bare)
	var mac *string
	if d.At != nil {
		if l, ok := m.Link(*d.At); ok {
			if again {
				mac = l.MAC // with the GUID that is read, which the model leaves to Device
			}
			m.dropLink(l, false)
		}
		m.imply(d, Device{ID: d.ID})
	}
	if !inKernel {
		return
	}
	// The queue length is DEFAULT_TX_QUEUE_LEN.
	l := Link{
		Name: HostName("eth-" + d.ID), LinkKind: cmp.Or(bare.LinkKind, "device"), DeviceID: d.ID,
		MAC: mac, Up: new(false), Master: new(""), TxQueueLen: new(uint32(1000)),
	}
	bare.At, bare.Up = &l.Name, l.Up
	m.Put(l)
	m.Put(bare)
}
