// Package controller is the controller of NetworkTopologies: one DeviceClass for every root
// step that is given a device, the ResourceClaimTemplate of the topology if it requests
// one, and the topology's status. Classes is pure: it returns the DeviceClasses of a
// topology, with a pin (UID and generation of the topology). Judge decides whether a
// topology can be programmed, StatusOf builds its status. Controller writes the classes,
// restores what was edited by hand, and removes them with the topology. Claims keeps who
// uses which topology, Contracts the known step types. Schemas keeps the CNIPluginSchema
// objects of the built-in step types. It does not change what is not its own: a DeviceClass
// that is foreign or belongs to another topology is left alone, and a condition of the
// topology names it. An invalid topology changes nothing: its classes stay as they were.
// The API permissions that it needs are listed at Controller.
package controller
