// Package ethtoolnl reads and writes the settings of the kernel's ethtool
// netlink family that github.com/mdlayher/ethtool does not know: offload
// features, ring sizes, channel counts and interrupt coalescing, in any network
// namespace. It uses the same stack, github.com/mdlayher/genetlink.
//
// Source: Documentation/networking/ethtool-netlink.rst.
package ethtoolnl
