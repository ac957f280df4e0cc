// Package story is one example from end to end: a GPU and two VFs below one PCIe root,
// a bond over the VFs, two VLANs on it, each with its addresses and routes. The
// demo shows it and the cluster tests run it.
//
// The only change is [Pod]'s: the image, which no test machine can pull, is
// replaced by the test pod's, which prints the network it finds.
package story

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// The objects, in order of creation.
var (
	//go:embed topology.yaml
	Topology string // what the platform team writes
	//go:embed gpu-class.yaml
	GPUClass string // the GPU vendor's
	//go:embed claim.yaml
	Claim string // what the user writes
	//go:embed pod.yaml
	pod string
	//go:embed pods.yaml
	PodNetwork string // the network of pods on nodes without CNI plugins

	//go:embed gpu-driver.yaml
	gpuDriver string
)

// InstallPodNetwork gives pods of nodes without CNI plugins their own network, and returns when the
// nodes are Ready.
func InstallPodNetwork(ctx context.Context, c *cluster.Cluster, nodes ...*cluster.Node) error {
	began := time.Now()
	if err := c.Apply(ctx, PodNetwork); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := n.WaitReady(ctx, began); err != nil {
			return err
		}
	}
	return nil
}

// GPUImage builds the image of the stand-in for the GPU vendor's driver, once, and returns its archive.
func GPUImage(ctx context.Context, c *cluster.Cluster) (string, error) {
	return c.Image(ctx, "plumbline.test/gpu:1", "./integration/cluster/gpu")
}

// InstallGPU installs the stand-in for the GPU vendor's driver on a node, and returns when it has published its devices.
func InstallGPU(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
	archive, err := GPUImage(ctx, c)
	if err != nil {
		return err
	}
	if err := n.Import(ctx, archive); err != nil {
		return err
	}
	if err := ApplyGPU(ctx, c); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, nil, "-n", "kube-system", "rollout", "status", "--timeout=540s", "daemonset/gpu"); err != nil {
		return err
	}
	return c.AwaitSlices(ctx, "gpu.nvidia.com", n.Name)
}

// ApplyGPU applies the objects of the stand-in. A node that has its image runs it.
func ApplyGPU(ctx context.Context, c *cluster.Cluster) error {
	return errors.Join(c.Apply(ctx, gpuDriver), c.Apply(ctx, GPUClass))
}

// Pod is the user's pod.
func Pod() string {
	return strings.Replace(pod, "image: nvcr.io/nvidia/pytorch:24.05-py3",
		"image: "+cluster.PodImage+"\n      imagePullPolicy: Never", 1)
}

// Said returns what the pod printed to its log, which it does soon after it is Ready.
func Said(ctx context.Context, c *cluster.Cluster) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		said, err := c.Kubectl(ctx, nil, "logs", "ai-training")
		if err == nil && said != "" {
			return said, nil
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(errors.New("the pod says nothing"), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

type link struct {
	Name, Master, Parent string
	MTU, VLAN            int
	Addresses            []string
}

// CheckNetwork returns the problems of the network that the pod printed to its
// log: the bond of both VFs, and two VLANs on it with MTU, address and routes.
func CheckNetwork(log string) error {
	var said struct {
		Interfaces []link
		Routes     []struct{ Destination, Gateway, Interface string }
	}
	if err := json.Unmarshal([]byte(log), &said); err != nil {
		return fmt.Errorf("the pod said %q: %w", log, err)
	}
	var errs []error
	for _, want := range []link{
		{Name: "net1", Master: "bond0"},
		{Name: "net2", Master: "bond0"},
		{Name: "bond0"},
		{Name: "data0", Parent: "bond0", MTU: 9000, VLAN: 100, Addresses: []string{"10.100.0.5/24"}},
		{Name: "mgmt0", Parent: "bond0", MTU: 1500, VLAN: 200, Addresses: []string{"10.200.0.5/24"}},
	} {
		i := slices.IndexFunc(said.Interfaces, func(l link) bool { return l.Name == want.Name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("no interface %s", want.Name))
			continue
		}
		have := said.Interfaces[i]
		if have.Master != want.Master || have.Parent != want.Parent || have.VLAN != want.VLAN || want.MTU != 0 && have.MTU != want.MTU ||
			slices.ContainsFunc(want.Addresses, func(a string) bool { return !slices.Contains(have.Addresses, a) }) {
			errs = append(errs, fmt.Errorf("have %+v, want %+v", have, want))
		}
	}
	for _, want := range []struct{ Destination, Gateway, Interface string }{
		{"10.100.0.0/16", "10.100.0.1", "data0"},
	} {
		if !slices.Contains(said.Routes, want) {
			errs = append(errs, fmt.Errorf("no route %+v", want))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w\nthe pod said %s", errors.Join(errs...), log)
	}
	return nil
}
