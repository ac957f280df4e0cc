// Package kernel shows network namespaces as netstate objects and makes
// netstate changes true. It is the sole user of netlink, ethtool, setns, and of
// what plumbline writes below /proc/sys.
//
// Open gives the host's side, Host.Sandbox the view of one namespace, which is a
// reconcile.Domain. A view reads and writes; it never decides. What to change is
// planned elsewhere, from its snapshots.
//
// Every object has one file with its codec, in both directions, and a test that
// what was written is what is read. Messages are built on the primitives of
// vishvananda/netlink/nl rather than its calls, for two reasons: one change has
// to be one message (its LinkAdd, for instance, brings a link up in a second
// one), and one strict socket per namespace serves all dumps.
//
// Rules of the house here: a thread that enters a namespace leaves it or dies; a
// closed view holds no namespace alive; a link under its new name is complete or
// not there; an error leaves the object as it was, or says so. Where the kernel
// does not do what its interface suggests, the code says which file of it.
package kernel
