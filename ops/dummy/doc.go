// Package dummy is the step type "dummy": a link that drops all packets, for loopback
// addresses and tests. Source: the dummy plugin of containernetworking/plugins.
package dummy
