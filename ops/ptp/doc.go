// Package ptp is the step type "ptp": a veth pair between the sandbox and the host, whose
// packets the host routes.
// Sources: the ptp plugin of containernetworking/plugins, main/ptp; veth(4).
package ptp
