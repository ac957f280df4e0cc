// Package netstate models the contents of a network namespace as data: links,
// addresses, routes, sysctls, ethtool settings, devices and SR-IOV virtual
// functions, a Snapshot of them, and the Change from one state to another.
//
// It owns the comparison of objects (by field tags), the inverse of a change,
// and a model of what the kernel does by itself when a change is applied. It
// touches no kernel and imports nothing of ours but error kinds, so everything
// above it is tested as data in, plan out.
//
// A pointer field that is nil is not ours: it is neither compared nor written.
//
// Names carry their place: "net1" lives in the sandbox, "host:enp3s0f0" in the
// host's namespace (an interface name cannot hold a colon).
package netstate
