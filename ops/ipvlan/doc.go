// Package ipvlan is the step type "ipvlan": an ipvlan link on an interface of the host
// or the sandbox. Sources: the ipvlan plugin of containernetworking/plugins,
// Documentation/networking/ipvlan.rst.
package ipvlan
