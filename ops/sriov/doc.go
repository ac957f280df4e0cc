// Package sriov is the step type "sriov": it brings an SR-IOV virtual function
// into the sandbox and sets what its physical function holds for it.
//
// The VF is known by its PCI address. PF-side settings come before the move,
// so that the interface never runs with another tenant's VLAN or trust, and
// are restored after the device has returned to the host. Source: sriov-cni.
package sriov
