// Command plumbline-cni is the CNI plugin that a node needs for pods whose own network is a
// NetworkTopology: the agent installs it as "plumbline". It passes the runtime's call to
// the agent, prints the answer, and does nothing by itself.
//
// It is a program of its own because a runtime starts it for each call, and it has a
// twentieth of the size of plumbline.
package main

import "github.com/plumbline/plumbline/reconcile/pod/cnisocket"

func main() { cnisocket.Main() }
