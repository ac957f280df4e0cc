package netstate

import (
	"fmt"

	"github.com/plumbline/plumbline/topology/fault"
)

// Representor is the link of the host that represents a virtual function in the switch of its
// network card: what the function sends arrives there. It is read and never changed.
// Source: Documentation/networking/representors.rst, Documentation/networking/switchdev.rst.
type Representor struct {
	ID   string  `json:"id" plan:"key"`              // PCI address of the virtual function
	Link *string `json:"link,omitempty" plan:"live"` // with its place; "" for none
	// Observed only.
	// PF is the PCI address of the physical function, and Index the number of the virtual one.
	PF    string `json:"pf,omitempty" plan:"-"`
	Index int    `json:"index,omitempty" plan:"-"`
	// Switchdev: the switch of the physical function is in mode switchdev.
	Switchdev bool `json:"switchdev,omitempty" plan:"-"`
}

// Key is the virtual function's PCI address.
func (r Representor) Key() Key { return Key{KindRepresentor, r.ID} }

// LivesOn is none: the physical function makes it.
func (Representor) LivesOn() Key { return Key{} }

var representorTraits = Traits{
	Setting: true, Phase: PhasePrepare, Cost: 8,
	absent: func(o Object) error {
		return fault.New(fault.Unsupported, fmt.Errorf("device %q is not a virtual function", o.(Representor).ID))
	},
	imagined: func(o Object, _ Imagined) Object {
		id := o.(Representor).ID
		return Representor{ID: id, Link: new(HostName("representor")), Switchdev: true}
	},
}

// Traits returns the traits of representors.
func (Representor) Traits() *Traits { return &representorTraits }
