// Package vrf is the step type "vrf": it puts interfaces of the sandbox into a
// VRF, making it when it is not there. Sources: seed 002, the vrf plugin of
// containernetworking/plugins, Documentation/networking/vrf.rst.
package vrf
