package docs

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/reconcile/agent"
)

// TestPartsOfAgent holds that the table of the agent's parts is that of the declarations that build it.
func TestPartsOfAgent(t *testing.T) {
	const begin, end = "<!-- begin of the parts -->\n", "<!-- end of the parts -->\n"
	parts, err := agent.Graph()
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(read(t, "architecture.md"), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("architecture.md has no place for the parts, from %q to %q", begin, end)
	}
	generates(t, "architecture.md", before+begin+"\n"+parts+"\n"+end+after)
}
