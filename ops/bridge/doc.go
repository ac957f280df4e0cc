// Package bridge is the step type "bridge": as a root step a port of a bridge on the host, as a
// derived step a bridge in the sandbox over interfaces of its dependencies.
// Sources: the bridge plugin of containernetworking/plugins, net/bridge.
package bridge
