package reconcile

import (
	"strings"
	"testing"
)

func TestSandboxID(t *testing.T) {
	pod := strings.Repeat("0f", 32)
	for id, want := range map[SandboxID]Origin{
		IDByHand("blue", "ai"):          {Netns: "blue", Topology: "ai"},
		IDOfFile("blue", "ai"):          {Netns: "blue", File: true, Topology: "ai"},
		IDOfClaim(pod, "uid-1", "ai"):   {PodSandbox: pod, ClaimUID: "uid-1", Topology: "ai"},
		IDOfPrimary("c1", "eth0", "ai"): {Container: "c1", Interface: "eth0", Topology: "ai"},
		"":                              {},
		"ai":                            {},
		"a/b/c/d":                       {},
	} {
		if got := id.Origin(); got != want {
			t.Errorf("%q: %+v, want %+v", id, got, want)
		}
	}
	if !IDOfClaim(pod, "u", "t").Origin().OfRuntime() || IDOfClaim("by-hand", "u", "t").Origin().OfRuntime() || IDOfFile(pod, "t").Origin().OfRuntime() {
		t.Error("the runtime's form is not recognized")
	}
}
