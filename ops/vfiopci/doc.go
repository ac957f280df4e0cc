// Package vfiopci is the step type "vfio-pci": it binds a virtual function to a driver for
// user space, and gives the container the character devices with which a process uses it.
//
// Sources: Documentation/driver-api/vfio.rst, drivers/pci/pci-driver.c
// (driver_override), drivers/vfio/group.c.
package vfiopci
