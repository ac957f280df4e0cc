// Package publish offers a node's devices to the scheduler, as ResourceSlices.
//
// It owns which devices are offered, how a device in use is described, the taints, and
// when a slice is written. Package inventory defines what a device is and its name.
// docs/devices.md is the page for users.
//
// A Publisher scans the node, leaves out what must not be offered (the node's own
// uplinks, searched again on every scan; a PF that has virtual functions; a device
// without an interface here), and writes only when something has changed. A device that
// is prepared for a claim keeps the attributes it was published with, also when the
// agent is started again: its interface is in a pod, and a scan would find a device
// without one. So what was published is kept in a file.
//
// Use New with a channel that gets a value whenever a link was added, removed or
// changed, or a claim was prepared or released, and Run with the kubelet helper. Explain explains an error that the
// helper returns.
package publish
