// Package vlan is the step type "vlan": an 802.1Q or 802.1ad link on an
// interface of the sandbox. Sources: the vlan plugin of
// containernetworking/plugins, net/8021q.
package vlan
