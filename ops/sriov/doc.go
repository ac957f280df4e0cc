// Package sriov is the step type "sriov": it moves an SR-IOV virtual function into the
// sandbox and sets its settings on the physical function. The VF is identified by its PCI
// address. Settings on the PF are applied before the move, so that the interface never runs
// with another tenant's VLAN or trust, and restored after the device has returned to the
// host. Source: sriov-cni.
package sriov
