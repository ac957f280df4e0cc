// Package vfiopci is the step type "vfio-pci": it binds a virtual function to a driver
// that hands it to user space, and gives the container the character devices by which
// a process uses it.
//
// Sources: Documentation/driver-api/vfio.rst, drivers/pci/pci-driver.c
// (driver_override), drivers/vfio/group.c.
package vfiopci
