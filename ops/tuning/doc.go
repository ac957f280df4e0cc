// Package tuning is the step type "tuning": MTU, MAC, flags, queue length,
// sysctls, ethtool settings, addresses and routes of an interface that another
// step made. Sources: seed 000 section 3.5 and 9.2, the tuning plugin of
// containernetworking/plugins, Documentation/networking/ethtool-netlink.rst.
package tuning
