package reconcile

import (
	"regexp"
	"strings"
)

// SandboxID names one topology in one network namespace. Its form says who asked for
// it: "blue/ai" the command line, "run/blue/ai" a file of plumbline run, and
// "SANDBOX/CLAIM/ai" a claim, in a pod sandbox of the container runtime. The name
// of a namespace holds no slash, so that none of them is like another.
type SandboxID string

// fromFile begins the ID of a sandbox that a file asks for.
const fromFile = "run"

// IDByHand is the ID of a topology that is applied by hand.
func IDByHand(netns, topology string) SandboxID { return SandboxID(netns + "/" + topology) }

// IDOfFile is the ID of a topology that a file asks for.
func IDOfFile(netns, topology string) SandboxID {
	return SandboxID(fromFile + "/" + netns + "/" + topology)
}

// IDOfClaim is the ID of a topology that a claim asks for, in a pod sandbox.
func IDOfClaim(podSandbox, claimUID, topology string) SandboxID {
	return SandboxID(podSandbox + "/" + claimUID + "/" + topology)
}

// Origin is what a SandboxID is made of.
type Origin struct {
	Netns      string // of the command line or of a file
	File       bool   // a file asks for it
	PodSandbox string // of the container runtime, for a claim
	ClaimUID   string // "" for what no claim asks for
	Topology   string
}

// Origin takes the ID apart; the zero Origin is that of none of these forms.
func (id SandboxID) Origin() Origin {
	switch parts := strings.Split(string(id), "/"); {
	case len(parts) == 2:
		return Origin{Netns: parts[0], Topology: parts[1]}
	case len(parts) == 3 && parts[0] == fromFile:
		return Origin{Netns: parts[1], File: true, Topology: parts[2]}
	case len(parts) == 3:
		return Origin{PodSandbox: parts[0], ClaimUID: parts[1], Topology: parts[2]}
	}
	return Origin{}
}

var runtimeForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// OfRuntime reports whether the pod sandbox is named as containerd and CRI-O name
// them, for which no ID comes twice.
func (o Origin) OfRuntime() bool { return runtimeForm.MatchString(o.PodSandbox) }
