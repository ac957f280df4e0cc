// Package watch turns netlink notices into the IDs of sandboxes that may have
// drifted. It says that something changed, never what: whoever is told looks.
//
// New opens a Watcher, Add and Remove tell it what to watch, Run serves until
// it is stopped, and Events are told debounced, one at a time and coalesced per
// sandbox, so that a slow consumer loses nothing and holds up nobody.
//
// One socket hears all sandboxes. It lives in a network namespace of its own,
// which holds nothing but that socket, with NETLINK_LISTEN_ALL_NSID set: the
// kernel then delivers the notices of every namespace that has been given a
// number (an nsid) in the listener's, together with that number
// (net/netlink/af_netlink.c, do_one_broadcast). As the numbers in that
// namespace are ours alone, neither the host's own traffic of notices nor that
// of other pods reaches the socket. Nothing in this mode holds a sandbox's
// namespace alive.
//
// Where that cannot be had, every namespace gets a socket within it. Such a
// socket holds its namespace alive, and with it the devices that should go home:
// Remove has to come before the namespace is to die.
//
// What the kernel does not notify of (most sysctls, ethtool settings, what a PF
// holds for a VF) is found by looking from time to time: the Resync event.
package watch
