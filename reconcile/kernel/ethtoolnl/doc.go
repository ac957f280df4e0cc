// Package ethtoolnl reads and writes settings by the kernel's ethtool netlink
// family: offload features, private flags, ring sizes, channel counts and interrupt
// coalescing, in any network namespace. Its sockets are connected to the kernel,
// which those of github.com/mdlayher/ethtool are not.
//
// Source: Documentation/networking/ethtool-netlink.rst.
package ethtoolnl
