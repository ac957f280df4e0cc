// Package qos says what NetworkQoS objects mean: which rule decides about a packet that a
// pod sends, how the packet is marked and what limits it.
//
// New reads and checks an object. A Compiler holds objects, namespaces and pods, and knows
// the rules of each attachment of a pod, the winning one first; each change of its input
// says which pods and which sets of destinations have other contents, so that the cost of
// a change does not grow with the cluster. How a backend enforces the rules is not said
// here: package tc compiles them to filters.
//
// Precedence is that of OKEP-4380: 10000 + 20 × priority + index of the rule. The highest
// one that matches decides about mark and rate together. Where two objects have a rule of
// the same precedence, the first by namespace and name decides, and both report it.
//
// Destinations are those that the pod sends to, before a Service's address is translated.
package qos
