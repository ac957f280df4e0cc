// Package publish offers a node's devices to the scheduler, as ResourceSlices.
//
// It owns which devices are offered, how a device in use is described, the
// taints, and when a slice is written. What a device is and what it is called
// is said in inventory. docs/devices.md is the page for readers.
//
// A Publisher scans the node, takes out what must not be given away (the node's
// own uplinks, looked for again on every scan; a PF that has virtual functions;
// what has no interface here), and writes only when something has changed. A
// device that is prepared for a claim keeps the attributes it was published
// with, also when the agent is started again: its interface is in a pod, and a
// scan would find a stranger. So what was published is kept in a file.
//
// The way in is New, Run with the kubelet helper, and Rescan whenever a link
// came, went or changed, or a claim was prepared or released. Explain says what
// an error that the helper hands back means.
package publish
