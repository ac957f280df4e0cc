// Command plumbline-cni is the CNI plugin that a node needs for pods whose own network is a
// NetworkTopology: the agent installs it as "plumbline". It passes the runtime's call to
// the agent, prints the answer, and does nothing by itself. Under the name "loopback" it is the
// plugin of that name, which containerd starts for each pod beside the one for its network.
//
// It is a program of its own because a runtime starts it for each call, and it has a
// twentieth of the size of plumbline.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/plumbline/plumbline/reconcile/pod/cnisocket"
	"github.com/plumbline/plumbline/reconcile/pod/loopback"
	"github.com/plumbline/plumbline/reconcile/version"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(version.Line("plumbline-cni"))
		return
	}
	if filepath.Base(os.Args[0]) == loopback.Name {
		loopback.Main()
		return
	}
	cnisocket.Main()
}
