package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/plumbline/plumbline/integration/cluster/image"
)

// tools builds what of ours runs in nodes and pods, and returns its folder in the
// cluster's. go build's own cache makes that quick.
func (c *Cluster) tools(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	folder := filepath.Join(c.dir, "tools")
	if exists(filepath.Join(c.dir, "images.tar")) {
		return folder, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", folder+"/",
		"./integration/cluster/forward", "./integration/cluster/pod")
	command.Dir = c.places.checkout
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the nodes' tools: %w:\n%s", err, said)
	}
	pod := image.Image{
		Names:      []string{PodImage},
		Files:      map[string]string{"/pod": filepath.Join(folder, "pod")},
		Entrypoint: []string{"/pod"},
	}
	pause := pod
	pause.Names, pause.Entrypoint = []string{pauseImage}, []string{"/pod", "pause"}
	return folder, image.WriteFile(filepath.Join(c.dir, "images.tar"), pod, pause)
}
