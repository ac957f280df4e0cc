// Command benchmark compares plumbline with other programs in one run, in the
// virtual machine of integration/vm:
//
//   - apply: applying and deleting one topology by plumbline's engine, by a
//     minimal netlink program (the kernel floor), and by the chain of CNI binaries
//     run as a runtime would;
//   - crowd: one, ten and fifty pods at once, with a macvlan, a VLAN and two sysctls each, and as
//     many pods as have a virtual function: how long until all have their network, by the same three;
//   - pods: ADD and DEL of the own network of a pod, by plumbline's CNI plugin and by
//     others;
//   - settings: what of applying is spent on what physical functions hold for the
//     virtual ones;
//   - scale: what 1, 100 and 500 sandboxes cost an agent that has nothing to do,
//     its restart, and its repairs, beside a loop of ip(8) that applies everything
//     every ten seconds; and many changes at a time in all of them;
//   - cycles: what an agent holds after many pods have come and gone;
//   - packets: what the rules of NetworkQoS objects cost a packet, as filters of tc and as
//     rows of OVN.
//
// It prints Markdown: medians with n, and ratios, and fails where a number has to
// be zero and is not. The machine is emulated, so only ratios count. Part scale
// needs the program plumbline beside its own, and part pods plumbline-cni.
package main
