// Package v1alpha1 holds the Kubernetes API type NetworkQoS of group k8s.ovn.org, which
// ovn-kubernetes serves too (OKEP-4380). Its wire form is the one that ovn-kubernetes
// serves today, and beside it the fields of the enhancement's draft (netAttachRefs,
// classifier.port) and a selector of NetworkTopologies.
//
// It owns the wire form only: package qos says what an object means, and checks it.
//
// +kubebuilder:object:generate=true
// +groupName=k8s.ovn.org
package v1alpha1

//go:generate go tool controller-gen object paths=.
//go:generate go tool controller-gen crd paths=. output:crd:dir=../../chart/plumbline/optional
