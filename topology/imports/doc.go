// Package imports converts the networks of other projects to ours: NetworkAttachmentDefinitions with the CNI plugins
// that they chain, objects of the SR-IOV operator, of multi-nic-cni, whereabouts, nv-ipam, DRANET and ovn-kubernetes
// become NetworkTopologies, AddressPools and DeviceExposurePolicies.
//
// A key of the input is read, or reported with its place: a record hands out each key once, and what is left of it when
// the object has been converted is a problem. An object with a problem is left out of the output. All that is returned
// has passed the validation of the package validity.
//
// The package is pure: it reads no file and no cluster.
package imports
