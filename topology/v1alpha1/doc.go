// Package v1alpha1 holds the Kubernetes API types of group networking.dra.io, all
// cluster-scoped: NetworkTopology, DeviceExposurePolicy, DeviceExposureReport,
// NetworkQoSReport, NetworkQoSDestinations, AddressPool and AddressLease.
//
// It owns the wire form and what the API server can check by itself; meaning
// is in package topology, which converts these types and validates them. The
// CRD manifest and the deep copies are generated from here.
//
// +kubebuilder:object:generate=true
// +groupName=networking.dra.io
package v1alpha1

//go:generate go tool controller-gen object paths=.
//go:generate go tool controller-gen crd paths=. output:crd:dir=../../chart/plumbline/templates/crds
