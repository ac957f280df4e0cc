// Package ovnk8scnioverlay is the step type "ovn-k8s-cni-overlay": an interface on a network of OVN,
// as a port of a logical switch that plumbline makes, bound to a veth pair on the integration
// bridge.
// Sources: the CNI plugin of ovn-kubernetes, ovn-nb(5), ovn-controller(8).
package ovnk8scnioverlay
