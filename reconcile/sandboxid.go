package reconcile

import (
	"regexp"
	"strings"
)

// SandboxID names one topology in one network namespace. Its form says where it comes
// from: "blue/ai" from the command line, "run/blue/ai" from a file of plumbline run,
// "SANDBOX/CLAIM/ai" from a claim, in a pod sandbox of the container runtime, and
// "cni/CONTAINER/eth0/ai" from a call of the runtime's CNI library, for the pod's own
// network. The name of a namespace contains no slash, so the forms are distinct.
type SandboxID string

// Client names who has the network of a sandbox, the same for each sandbox of one claim. A sandbox
// without a claim has a name that other nodes use too, and namespaces end with the boot.
func (id SandboxID) Client(bootID string) string {
	if o := id.Origin(); o.ClaimUID != "" {
		return "claim/" + o.ClaimUID + "/" + o.Topology
	}
	return bootID + "/" + string(id)
}

// fromFile begins the ID of a sandbox that a file describes.
const fromFile = "run"

// prepared replaces the pod sandbox in the ID of what is applied for a claim before there
// is one.
const prepared = "prepared"

// IDByHand is the ID of a topology that is applied from the command line.
func IDByHand(netns, topology string) SandboxID { return SandboxID(netns + "/" + topology) }

// IDOfFile is the ID of a topology that a file describes.
func IDOfFile(netns, topology string) SandboxID {
	return SandboxID(fromFile + "/" + netns + "/" + topology)
}

// IDOfClaim is the ID of a topology that a claim requests, in a pod sandbox.
func IDOfClaim(podSandbox, claimUID, topology string) SandboxID {
	return SandboxID(podSandbox + "/" + claimUID + "/" + topology)
}

// IDOfPreparation is the ID of the part of a topology that is applied for a claim before
// its pod has a sandbox.
func IDOfPreparation(claimUID, topology string) SandboxID {
	return IDOfClaim(prepared, claimUID, topology)
}

// fromCNI begins the ID of the own network of a pod.
const fromCNI = "cni"

// IDOfPrimary is the ID of a topology that is the own network of a pod, as its container
// runtime names the pod and the interface.
func IDOfPrimary(container, ifName, topology string) SandboxID {
	return SandboxID(OwnerOfPrimary(container, ifName) + "/" + topology)
}

// OwnerOfPrimary is an IDOfPrimary without the topology: it owns the addresses.
func OwnerOfPrimary(container, ifName string) string {
	return fromCNI + "/" + container + "/" + ifName
}

// ParseOwner returns the parts of an OwnerOfPrimary; false for anything else.
func ParseOwner(owner string) (container, ifName string, ok bool) {
	parts := strings.Split(owner, "/")
	if len(parts) != 3 || parts[0] != fromCNI {
		return "", "", false
	}
	return parts[1], parts[2], true
}

// Origin are the parts of a SandboxID.
type Origin struct {
	Netns      string // of the command line or of a file
	File       bool   // from a file
	PodSandbox string // of the container runtime, for a claim
	Prepared   bool   // for a claim, before there is a pod sandbox
	ClaimUID   string // "" if not from a claim
	Container  string // of the container runtime, for the own network of a pod
	Interface  string // which is that network's
	Topology   string
}

// Origin returns the parts of the ID; zero if it has none of these forms.
func (id SandboxID) Origin() Origin {
	switch parts := strings.Split(string(id), "/"); {
	case len(parts) == 2:
		return Origin{Netns: parts[0], Topology: parts[1]}
	case len(parts) == 3 && parts[0] == fromFile:
		return Origin{Netns: parts[1], File: true, Topology: parts[2]}
	case len(parts) == 3 && parts[0] == prepared:
		return Origin{Prepared: true, ClaimUID: parts[1], Topology: parts[2]}
	case len(parts) == 3:
		return Origin{PodSandbox: parts[0], ClaimUID: parts[1], Topology: parts[2]}
	case len(parts) == 4 && parts[0] == fromCNI:
		return Origin{Container: parts[1], Interface: parts[2], Topology: parts[3]}
	}
	return Origin{}
}

var runtimeForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// OfRuntime reports whether the pod sandbox is named as containerd and CRI-O name them;
// they never reuse an ID.
func (o Origin) OfRuntime() bool { return runtimeForm.MatchString(o.PodSandbox) }
