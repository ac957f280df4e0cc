package cnisocket

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// TestDelWithoutAgent: an agent that has not created its socket yet is an error of DEL, in words that containerd
// does not take for success.
func TestDelWithoutAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	err := del(&skel.CmdArgs{ContainerID: "a", IfName: "eth0", StdinData: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"n","socket":%q}`, socket)})
	said, ok := errors.AsType[*types.Error](err)
	if !ok || said.Code != types.ErrTryAgainLater || !strings.Contains(said.Msg, "does not run") || !strings.Contains(said.Details, socket+": connect: it does not exist") {
		t.Fatalf("error %#v", err)
	}
	for _, words := range []string{"no such file or directory", "not found"} {
		if strings.Contains(err.Error(), words) {
			t.Errorf("%q has the words %q", err, words)
		}
	}
}
