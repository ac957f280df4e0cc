// Package representor finds the links of the host that represent virtual functions in the
// switch of a network card. It is a domain of the engine (docs/adr/0057) that only reads sysfs.
//
// Sources: Documentation/networking/representors.rst; Documentation/ABI/testing/sysfs-class-net
// (phys_switch_id, phys_port_name); devlink_nl_port_attrs_put and __devlink_port_phys_port_name_get
// in net/devlink/port.c, which makes the names.
package representor
