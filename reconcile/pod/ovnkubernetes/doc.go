// Package ovnkubernetes finds the ports that ovn-kubernetes has made for a pod, so that a step
// of a claim can bind an interface to one.
//
// Two sources say what such a port is. The row of the Northbound database decides: what OVN lets
// the pod send. The annotation k8s.ovn.org/pod-networks of the pod has what the row lacks, the
// lengths of prefixes, gateways and routes. It is bounded, and what contradicts the row is
// refused. ovn-kubernetes takes an annotation that it finds for its own, and makes the row of it:
// that only ovn-kubernetes writes it is held by a policy of the API server (chart, policies/pods.yaml).
//
// Sources: ovn-kubernetes, go-controller/pkg/util/pod_annotation.go and
// go-controller/pkg/ovn/base_network_controller_pods.go.
package ovnkubernetes
