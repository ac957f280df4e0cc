// Package netns opens network namespaces by path and identifies them.
//
// A path does not identify a namespace: what is mounted there can be unmounted, which
// leaves an empty file, and another namespace can be mounted there. Device and inode of
// a namespace tell it from all others that exist at the same time, and its cookie from
// all others since boot. Everything that keeps a namespace in mind compares these, in
// the same way.
//
// It changes no thread's namespace but by the library that opens a socket in one, and
// knows nothing of what a namespace contains.
package netns
