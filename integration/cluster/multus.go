package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// DeclareMultus applies the objects of Multus, with the DaemonSet, and the types of whereabouts, as their modules have them.
func (c *Cluster) DeclareMultus(ctx context.Context) error {
	folder, err := c.moduleFolder(ctx, "multus", "github.com/k8snetworkplumbingwg/whereabouts")
	if err != nil {
		return err
	}
	types, err := filepath.Glob(filepath.Join(folder, "doc", "crds", "whereabouts.cni.cncf.io_*.yaml"))
	if err != nil || len(types) == 0 {
		return errors.Join(fmt.Errorf("no types of whereabouts in %q", folder), err)
	}
	if _, err := c.Kubectl(ctx, nil, "apply", "-f", strings.Join(types, ",")); err != nil {
		return err
	}
	if folder, err = c.moduleFolder(ctx, "multus", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"); err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(folder, "deployments", "multus-daemonset.yml"))
	if err != nil {
		return err
	}
	// The plugins are where Debian has them; and a tenth of an emulated processor is too little.
	replacer := strings.NewReplacer("path: /opt/cni/bin\n", "path: /usr/lib/cni\n", "            cpu: \"100m\"\n", "")
	return c.Apply(ctx, replacer.Replace(string(manifest)))
}

// moduleFolder is where go has the files of a module that the module of a folder beside this file needs.
func (c *Cluster) moduleFolder(ctx context.Context, by, module string) (string, error) {
	list := exec.CommandContext(ctx, "sh", "-c", `go mod download "$0" && go list -m -f '{{ .Dir }}' "$0"`, module)
	list.Dir = filepath.Join(c.places.source, by)
	list.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	said, err := list.Output()
	folder := strings.TrimSpace(string(said))
	if err != nil || folder == "" {
		return "", errors.Join(fmt.Errorf("find the files of %s", module), err)
	}
	return folder, nil
}
