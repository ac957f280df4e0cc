// Package binding binds PCI functions to drivers. It is a domain of the engine beside
// the network's (docs/adr/0024): it reads and writes sysfs, and runs no programs.
//
// Sources: Documentation/ABI/testing/sysfs-bus-pci (driver_override, bind, unbind,
// enable), drivers/base/bus.c, drivers/vfio/vfio_main.c.
package binding
