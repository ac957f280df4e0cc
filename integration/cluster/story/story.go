// Package story holds the example that plumbline's proposal tells from end to end
// (seed 000 section 6), as written there: a GPU and two VFs below one PCIe root,
// a bond over the VFs, two VLANs on it, each with its addresses and routes. The
// demo shows it and the cluster tests hold it.
//
// The only change is [Pod]'s: the image, which no test machine can pull, is
// replaced by the test pod's, which tells what network it finds.
package story

import (
	"context"
	_ "embed"
	"strings"

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

	//go:embed gpu-driver.yaml
	gpuDriver string
)

// InstallGPU installs the stand-in for the GPU vendor's driver on a node.
func InstallGPU(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
	archive, err := c.Image(ctx, "plumbline.test/gpu:1", "./integration/cluster/gpu")
	if err != nil {
		return err
	}
	if err := n.Import(ctx, archive); err != nil {
		return err
	}
	for _, manifest := range []string{gpuDriver, GPUClass} {
		if _, err := c.Kubectl(ctx, strings.NewReader(manifest), "apply", "-f", "-"); err != nil {
			return err
		}
	}
	_, err = c.Kubectl(ctx, nil, "-n", "kube-system", "rollout", "status", "--timeout=120s", "daemonset/gpu")
	return err
}

// Pod is the user's pod.
func Pod() string {
	return strings.Replace(pod, "image: nvcr.io/nvidia/pytorch:24.05-py3",
		"image: "+cluster.PodImage+"\n      imagePullPolicy: Never", 1)
}
