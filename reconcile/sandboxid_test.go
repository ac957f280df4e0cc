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
	// A claim is one client of a network, whatever sandbox it has; all else is another one after a boot, and on
	// another node.
	client := IDOfClaim(pod, "u", "t").Client("boot-1")
	if client != IDOfClaim("other", "u", "t").Client("boot-2") || client == IDOfClaim(pod, "u", "t2").Client("boot-1") || client == IDOfClaim(pod, "u2", "t").Client("boot-1") {
		t.Errorf("a claim is client %q", client)
	}
	if id := IDByHand("blue", "t"); id.Client("boot-1") == id.Client("boot-2") || id.Client("boot-1") == IDOfFile("blue", "t").Client("boot-1") {
		t.Errorf("a sandbox without a claim is client %q", id.Client("boot-1"))
	}
	if !IDOfClaim(pod, "u", "t").Origin().OfRuntime() || IDOfClaim("by-hand", "u", "t").Origin().OfRuntime() || IDOfFile(pod, "t").Origin().OfRuntime() {
		t.Error("the runtime's form is not recognized")
	}
}
