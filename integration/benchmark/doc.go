// Command benchmark measures plumbline against its rivals in one run, in the
// virtual machine of integration/vm: applying and deleting one topology by
// plumbline's engine, by a minimal netlink program (the kernel floor), and by
// the chain of CNI binaries run as a runtime would; a pass that finds nothing
// to do and memory with many sandboxes; and the time from a change behind our
// back to its repair.
//
// It prints Markdown: medians with n, and ratios. The machine is emulated, so
// only ratios count.
package main
