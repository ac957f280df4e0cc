package apiserver

import "k8s.io/apimachinery/pkg/util/version"

// Feature is one of Kubernetes that plumbline uses.
type Feature struct {
	// Gate is the feature gate of the API server, "" for an API.
	Gate string
	// Resource is one of resource.k8s.io/v1 that the server has to serve, "" if the gate is all.
	Resource string
	// Since is the first version in which it is on by default.
	Since string
	// For names the feature of plumbline that uses it.
	For string
	// Without describes the effect of its absence.
	Without string
}

// Name is the gate, or the resource.
func (f Feature) Name() string {
	if f.Gate != "" {
		return f.Gate
	}
	return f.Resource
}

// Features lists what plumbline uses. The versions are those of pkg/features/kube_features.go and of
// pkg/controlplane/instance.go, in Kubernetes 1.37.
func Features() []Feature {
	return []Feature{
		{
			Resource: "resourceclaims", Since: "1.34", For: "claims, classes and devices",
			Without: "nothing works: plumbline needs resource.k8s.io/v1",
		},
		{
			Gate: "DRAResourceClaimDeviceStatus", Since: "1.33", For: "reports of nodes in the status of claims",
			Without: "kubectl plumbline, rollouts and the controller see nothing of running pods",
		},
		{
			Gate: "DRAConsumableCapacity", Since: "1.36", For: "shared devices: macvlan, ipvlan, bridge, ovn-k8s-cni-overlay, bandwidth",
			Without: "no device is shared: the conditions of the DeviceExposurePolicies say so, and pods that need a share wait",
		},
		{
			Gate: "DRAPartitionableDevices", Since: "1.36", For: "a device that is offered as a whole or in parts",
			Without: "one of both forms is withheld; agents say which in their reports",
		},
		{
			Gate: "DRADeviceTaints", Since: "1.36", For: "devices that are down, miswired or withdrawn; eviction (onFailure)",
			Without: "such devices are not published, and no pod is evicted",
		},
		{
			Gate: "DRADeviceTaintRules", Resource: "devicetaintrules", Since: "1.37", For: "plumbline maintain",
			Without: "plumbline maintain fails, with the reason",
		},
		{
			Gate: "DRAExtendedResource", Since: "1.36", For: "pods that ask without a claim (extendedResourceName)",
			Without: "pods get devices by claims only: the condition Programmed of the topology says so",
		},
	}
}

// State is whether a server has a feature.
type State string

// The states.
const (
	On  State = "on"
	Off State = "off"
	// Presumed: it is on by default in the version of the server, and the gates could not be read.
	Presumed State = "on by default"
)

// Finding is a feature as a server has it.
type Finding struct {
	Feature string `json:"feature"`
	State   State  `json:"state"`
	For     string `json:"for"`
	// Reason says why it is off, and what that means.
	Reason string `json:"reason,omitempty"`
}

// Findings says of each feature whether the server has it.
func (s *Server) Findings() []Finding {
	var out []Finding
	for _, f := range Features() {
		out = append(out, s.finding(f))
	}
	return out
}

func (s *Server) finding(f Feature) Finding {
	out := Finding{Feature: f.Name(), State: On, For: f.For}
	off := func(why string) Finding {
		out.State, out.Reason = Off, why+"; "+f.Without
		return out
	}
	if f.Resource != "" && !s.resources[f.Resource] {
		return off("the server does not serve " + f.Resource + " of resource.k8s.io/v1, which Kubernetes " + f.Since + " does by default")
	}
	on, known := s.gates[f.Gate]
	switch {
	case f.Gate == "" || on:
	case known:
		return off("the server has it turned off")
	case s.gates != nil: // a gate that is locked is removed some versions later, and one of a later version is not there yet
		if s.before(f.Since) {
			return off("the server does not have it: it is on by default since Kubernetes " + f.Since)
		}
	case s.before(f.Since):
		return off("it is on by default since Kubernetes " + f.Since)
	default:
		out.State = Presumed
	}
	return out
}

// before reports whether the server is of an earlier minor version.
func (s *Server) before(minor string) bool {
	v, err := version.ParseGeneric(minor)
	return err == nil && s.version.LessThan(v)
}
