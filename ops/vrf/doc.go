// Package vrf is the step type "vrf": it puts interfaces of the sandbox into a VRF,
// creating it if it does not exist. Sources: the vrf plugin of
// containernetworking/plugins, Documentation/networking/vrf.rst.
package vrf
