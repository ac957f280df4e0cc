// Package v1alpha1 holds the Kubernetes API types of group
// cni.networking.k8s.io: the cluster-scoped CNIPluginSchema, which describes a
// step type to people and to the admission webhook.
//
// It owns the wire form alone. What a schema means, and how it becomes a contract, is in
// package pluginschema. The CRD manifest and the deep copies are generated from here.
// Parameters nest, which a structural schema cannot express: below the first level the API
// server stores any value, and the webhook checks it.
//
// +kubebuilder:object:generate=true
// +groupName=cni.networking.k8s.io
package v1alpha1

//go:generate go tool controller-gen object paths=.
//go:generate go tool controller-gen crd paths=. output:crd:dir=../../../chart/plumbline/templates/crds
//go:generate go run appends_schema.go ../../../chart/plumbline/templates/crds/cni.networking.k8s.io_cnipluginschemas.yaml
