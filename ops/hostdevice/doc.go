// Package hostdevice is the step type "host-device": it moves a whole network device, such
// as a physical function or any virtual link, into the sandbox, and restores it to the host
// on release. Source: the host-device plugin of containernetworking/plugins.
package hostdevice
