// Package hostdevice is the step type "host-device": it brings a whole network
// device, such as a physical function or any virtual link, into the sandbox,
// and sends it home as it came. Source: the host-device plugin of
// containernetworking/plugins.
package hostdevice
