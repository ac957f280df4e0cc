package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/plumbline/plumbline/integration/image"
)

// multusBuild is that of the programs of Multus, and of whereabouts, whose program is cmd.
var multusBuild = build{
	module:   "multus",
	programs: []string{"cmd", "install_multus", "multus", "passthru-cni", "thin_entrypoint"},
	flags:    []string{noDWARF, "-ldflags=-s -w"},
	packages: "tool",
}

// Multus builds an archive of the image that the DaemonSet of [Cluster.DeclareMultus] runs, and the program of whereabouts.
func (c *Cluster) Multus(ctx context.Context) (archive, whereabouts string, err error) {
	folder, err := multusBuild.ensure(ctx, c.places, c.options.Log)
	if err != nil {
		return "", "", err
	}
	archive = filepath.Join(c.dir, "multus.tar")
	return archive, filepath.Join(folder, "cmd"), image.WriteFile(archive, image.Image{
		Names: []string{"ghcr.io/k8snetworkplumbingwg/multus-cni:snapshot"},
		Files: map[string]string{
			"/install_multus": filepath.Join(folder, "install_multus"), "/thin_entrypoint": filepath.Join(folder, "thin_entrypoint"),
			"/usr/src/multus-cni/bin/multus":   filepath.Join(folder, "multus"),
			"/usr/src/multus-cni/bin/passthru": filepath.Join(folder, "passthru-cni"),
		},
	})
}

// DeclareMultus applies the objects of Multus, with the DaemonSet, and the types and the account of whereabouts, as their
// modules have them.
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
	manifest, err := os.ReadFile(filepath.Join(folder, "doc", "crds", "daemonset-install.yaml"))
	if err != nil {
		return err
	}
	account, _, _ := strings.Cut(string(manifest), "---\napiVersion: v1\nkind: ConfigMap")
	if err := c.Apply(ctx, account); err != nil {
		return err
	}
	if folder, err = c.moduleFolder(ctx, "multus", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"); err != nil {
		return err
	}
	if manifest, err = os.ReadFile(filepath.Join(folder, "deployments", "multus-daemonset.yml")); err != nil {
		return err
	}
	// The plugins are where Debian has them, in a folder that is kept in memory; and a tenth of an emulated processor is too little.
	replacer := strings.NewReplacer("path: /opt/cni/bin\n", "path: /usr/lib/cni\n",
		"            cpu: \"100m\"\n", "", "            memory: \"50Mi\"\n", "")
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
