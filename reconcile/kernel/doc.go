// Package kernel reads network namespaces as netstate objects and applies netstate
// changes. It is the only user of netlink, ethtool and setns, and the only writer below
// /proc/sys.
//
// Open opens the host's side, Host.Sandbox the view of one namespace, which is a
// reconcile.Domain. A view reads and writes; it never decides. Changes are
// planned elsewhere, from its snapshots.
//
// Every kind of object has one file with its codec, in both directions, and a test that
// what was written is read back. Messages are built on the primitives of
// vishvananda/netlink/nl rather than its calls, for two reasons: one change has to be
// one message (its LinkAdd, for instance, brings a link up in a second one), and one
// strict socket per namespace serves all dumps.
//
// The rules here: a thread that enters a namespace leaves it or ends; a closed view
// keeps no namespace alive; a link under its new name is complete or absent; on an
// error the object is as it was, or the error says that it is not. Where the kernel
// does not do what its interface suggests, the code names the file of the kernel's
// source.
package kernel
