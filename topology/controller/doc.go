// Package controller is the controller of NetworkTopologies: one DeviceClass
// for every root step that is given a device, the ResourceClaimTemplate of the
// topology where it says so, and the topology's status.
//
// Classes is the pure half: the DeviceClasses of a topology, with a pin (UID and
// generation of the topology). Judge says
// whether a topology can be programmed at all, StatusOf what is said of it.
// Controller is the edge: it writes the classes, restores what was edited by
// hand, and removes them with the topology. Claims knows who uses which topology,
// Contracts what its steps may be. Schemas keeps the CNIPluginSchema objects
// of the built-in step types.
//
// It refuses to touch what is not its own: a foreign DeviceClass, or of
// another topology, is left alone, and the topology says so. A topology that is
// not valid changes nothing: its classes stay as they were.
//
// What it needs of the API is listed at Controller.
package controller
