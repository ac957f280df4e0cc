// Package watch turns netlink notifications into the IDs of sandboxes that may have
// drifted. An event says that something changed, never what: its receiver observes the
// sandbox.
//
// New opens a Watcher, Add and Remove set what it watches, and Run serves until it is
// stopped. Events are debounced, delivered one at a time and coalesced per sandbox: a
// slow consumer loses nothing and delays no other.
//
// One socket receives the notifications of all sandboxes. It is in a network namespace
// of its own, which contains nothing but that socket, with NETLINK_LISTEN_ALL_NSID set:
// the kernel then delivers the notifications of every namespace that has a number (an
// nsid) in the listener's namespace, together with that number
// (net/netlink/af_netlink.c, do_one_broadcast). As all numbers in that namespace are
// ours, the socket receives neither the host's notifications nor those of other pods.
// Nothing in this mode holds a sandbox's namespace alive.
//
// Where that is not possible, a socket is opened in every namespace. Such a socket
// keeps its namespace alive, and with it the devices that should return to the host:
// call Remove before the namespace is to be destroyed.
//
// Changes without a notification (most sysctls, ethtool settings, what a PF holds for a
// VF) are found by a periodic check: the Resync event.
package watch
