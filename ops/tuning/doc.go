// Package tuning is the step type "tuning": MTU, MAC, flags, queue length,
// sysctls, ethtool settings, addresses and routes of an interface that another
// step made. Sources: the tuning plugin of
// containernetworking/plugins, Documentation/networking/ethtool-netlink.rst.
package tuning
