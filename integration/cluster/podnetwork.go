package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// PodNetwork is the network that a container of a test pod was started with: a part of what
// integration/cluster/pod prints first of all.
type PodNetwork struct {
	Interfaces []PodInterface
	Routes     []PodRoute
	// Environment is that of the container, RDMA the files in its /dev/infiniband with the RDMA device of each.
	Environment, RDMA map[string]string
}

// PodInterface is an interface of a test pod.
type PodInterface struct {
	Name      string
	Kind, MAC string
	MTU       int
	Addresses []netip.Prefix
	Filters   int // of what it sends
}

// PodRoute is a route of a test pod, of any table.
type PodRoute struct{ Destination, Gateway, Interface string }

// Interface is that of a name; nil, if there is none.
func (n PodNetwork) Interface(name string) *PodInterface {
	for i := range n.Interfaces {
		if n.Interfaces[i].Name == name {
			return &n.Interfaces[i]
		}
	}
	return nil
}

// PodNetwork waits until the container of a test pod in the namespace default, which was
// started last, has printed its network.
func (c *Cluster) PodNetwork(ctx context.Context, pod string) (PodNetwork, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var n PodNetwork
	err := poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		said, err := c.Kubectl(ctx, nil, "logs", pod)
		if err != nil {
			return err
		}
		if !strings.HasSuffix(said, "\n") { // its container may run before it has printed all
			return fmt.Errorf("it printed %q", said)
		}
		return json.Unmarshal([]byte(said), &n)
	})
	if err != nil {
		return n, fmt.Errorf("network of pod %q: %w", pod, err)
	}
	return n, nil
}

// PodProgram is the path of the only program in PodImage, on this host and in the machines of
// nodes. It exists once there is a node.
func (c *Cluster) PodProgram() string { return filepath.Join(c.dir, "tools", "pod") }
