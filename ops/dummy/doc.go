// Package dummy is the step type "dummy": a link that leads nowhere, for loopback addresses and
// tests. Source: the dummy plugin of containernetworking/plugins.
package dummy
