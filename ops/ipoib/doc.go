// Package ipoib is the step type "ipoib": an interface of a partition of InfiniBand on another one. Sources: ip-link(8);
// drivers/infiniband/ulp/ipoib (ipoib_netlink.c, ipoib_vlan.c); the plugin ipoib-cni of Mellanox.
package ipoib
