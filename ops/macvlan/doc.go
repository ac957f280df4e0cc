// Package macvlan is the step type "macvlan": a macvlan link on an interface of the host or the
// sandbox. Sources: the macvlan plugin of containernetworking/plugins,
// drivers/net/macvlan.c.
package macvlan
