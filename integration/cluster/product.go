package cluster

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/plumbline/plumbline/integration/image"
)

// ProductNamespace is where [Cluster.Install] installs plumbline.
const ProductNamespace = "plumbline-system"

const productImage = "plumbline.test/plumbline"

// Release is a plumbline that can be installed. The zero Release is that of the
// checkout.
type Release struct {
	version string // the tag of its image; "" for that of the checkout
	archive string // the image
	chart   string // the folder of its chart
}

// tag is that of the release's image.
func (r Release) tag() string { return cmp.Or(r.version, "dev") }

// Release builds plumbline as of a commit of the checkout, which it must hold: a
// clone without history does not.
func (c *Cluster) Release(ctx context.Context, commit string) (Release, error) {
	r := Release{version: commit}
	tree := filepath.Join(c.dir, "release-"+commit)
	r.chart, r.archive = filepath.Join(tree, "chart", "plumbline"), tree+".tar"
	if err := c.export(ctx, commit, tree); err != nil {
		return r, fmt.Errorf("plumbline of commit %s: %w", commit, err)
	}
	program := filepath.Join(c.dir, "plumbline-"+commit)
	if err := c.goBuildIn(ctx, tree, program, "-trimpath", "-ldflags=-s -w", "./cmd/plumbline"); err != nil {
		return r, fmt.Errorf("plumbline of commit %s: %w", commit, err)
	}
	return r, image.WriteFile(r.archive, productOf(r, program, ""))
}

// Variant builds plumbline of the checkout with build tags, for what only tests need.
func (c *Cluster) Variant(ctx context.Context, tags string) (Release, error) {
	program := filepath.Join(c.dir, "plumbline-"+tags)
	r := Release{version: tags, archive: program + ".tar", chart: filepath.Join(c.places.checkout, "chart", "plumbline")}
	if err := c.goBuild(ctx, program, "-trimpath", "-ldflags=-s -w", "-tags", tags, "./cmd/plumbline"); err != nil {
		return r, err
	}
	return r, image.WriteFile(r.archive, productOf(r, program, ""))
}

// productOf is the image of a release; its CNI plugin is left out if it is "".
func productOf(r Release, program, plugin string) image.Image {
	out := image.Image{
		Names: []string{productImage + ":" + r.tag()}, Files: map[string]string{"/plumbline": program},
		Entrypoint: []string{"/plumbline"},
	}
	if plugin != "" {
		out.Files["/plumbline-cni"] = plugin
	}
	return out
}

// Product builds plumbline of the checkout, once, and returns the archive of its image, which
// holds what that of make image does.
func (c *Cluster) Product(ctx context.Context) (string, error) {
	c.building.Lock()
	defer c.building.Unlock()
	archive := filepath.Join(c.dir, "product.tar")
	return archive, c.keep(ctx, "product", archive, func(folder string) image.Image {
		return productOf(Release{}, filepath.Join(folder, "plumbline"), filepath.Join(folder, "plumbline-cni"))
	}, "./cmd/plumbline", "./cmd/plumbline-cni")
}

// keep builds commands of the checkout into a folder that outlives the cluster, so that the next one links nothing that has not
// changed, and the archive of an image with them, unless it is there.
func (c *Cluster) keep(ctx context.Context, name, archive string, of func(folder string) image.Image, commands ...string) error {
	if exists(archive) {
		return nil
	}
	folder := filepath.Join(c.places.cache, name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	unlock, err := lock(ctx, folder+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.goBuild(ctx, folder+"/", append([]string{"-trimpath", "-ldflags=-s -w"}, commands...)...); err != nil {
		return err
	}
	return image.WriteFile(archive, of(folder))
}

// export writes the files of a commit into a folder.
func (c *Cluster) export(ctx context.Context, commit, folder string) error {
	if err := exec.CommandContext(ctx, "git", "-C", c.places.checkout, "cat-file", "-e", commit+"^{commit}").Run(); err != nil {
		return fmt.Errorf("%q does not hold it: get the whole history with git fetch --unshallow: %w", c.places.checkout, err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	const script = `set -eo pipefail; git -C "$1" archive "$2" | tar -x -C "$3"`
	if said, err := exec.CommandContext(ctx, "bash", "-c", script, "export", c.places.checkout, commit,
		folder).CombinedOutput(); err != nil {
		return fmt.Errorf("git archive: %w: %s", err, said)
	}
	return nil
}

// Image builds a command of the checkout, such as "./integration/cluster/gpu",
// and an image of that name with nothing but it, and returns the archive.
func (c *Cluster) Image(ctx context.Context, name, command string) (string, error) {
	c.building.Lock()
	defer c.building.Unlock()
	base := filepath.Base(command)
	archive := filepath.Join(c.dir, "image-"+base+".tar")
	return archive, c.keep(ctx, "image-"+base, archive, func(folder string) image.Image {
		inside, program := "/"+base, filepath.Join(folder, base)
		return image.Image{Names: []string{name}, Files: map[string]string{inside: program}, Entrypoint: []string{inside}}
	}, command)
}

// Chart renders plumbline's chart as helm template does. Each value is that which
// follows helm's --set.
func (c *Cluster) Chart(ctx context.Context, values ...string) (string, error) {
	return c.render(ctx, filepath.Join(c.places.checkout, "chart", "plumbline"), true, values...)
}

// render renders a chart, with or without what helm test runs.
func (c *Cluster) render(ctx context.Context, chart string, tests bool, values ...string) (string, error) {
	helm, err := c.helm(ctx)
	if err != nil {
		return "", err
	}
	arguments := []string{
		"template", "plumbline", chart,
		// An older server is tried before the chart accepts it.
		"--namespace", ProductNamespace, "--kube-version", versions[newest].version,
	}
	if !tests {
		arguments = append(arguments, "--skip-tests")
	}
	for _, v := range values {
		arguments = append(arguments, "--set", v)
	}
	command := exec.CommandContext(ctx, helm, arguments...)
	command.Env = append(os.Environ(), "HOME="+c.dir)
	var complaint strings.Builder
	command.Stderr = &complaint
	manifest, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("render the chart: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return string(manifest), nil
}

// Install installs plumbline by its chart on all nodes there are and returns when
// controller and agents are ready. Each value follows helm's --set.
func (c *Cluster) Install(ctx context.Context, values ...string) error {
	return c.InstallRelease(ctx, Release{}, values...)
}

// InstallRelease is Install of another release. Where one is installed already it is
// upgraded, or rolled back.
func (c *Cluster) InstallRelease(ctx context.Context, r Release, values ...string) (err error) {
	if r == (Release{}) {
		if r, err = c.ofCheckout(ctx); err != nil {
			return fmt.Errorf("install plumbline: %w", err)
		}
	}
	c.mu.Lock()
	nodes := make([]*Node, 0, len(c.nodes))
	for _, n := range c.nodes {
		nodes = append(nodes, n)
	}
	c.mu.Unlock()
	for _, n := range nodes {
		if err := n.Import(ctx, r.archive); err != nil {
			return fmt.Errorf("install plumbline: %w", err)
		}
	}
	if err := c.applyChart(ctx, r, values...); err != nil {
		return fmt.Errorf("install plumbline: %w", err)
	}
	return c.Installed(ctx)
}

// InstallAhead applies plumbline's chart before there are nodes, whose NodeOptions.Images have to name its image: they run it as soon
// as they are registered. Installed waits for that.
func (c *Cluster) InstallAhead(ctx context.Context, values ...string) error {
	r, err := c.ofCheckout(ctx)
	if err == nil {
		err = c.applyChart(ctx, r, values...)
	}
	if err != nil {
		return fmt.Errorf("install plumbline: %w", err)
	}
	return nil
}

// ofCheckout is the release of the checkout.
func (c *Cluster) ofCheckout(ctx context.Context) (r Release, err error) {
	r.chart = filepath.Join(c.places.checkout, "chart", "plumbline")
	r.archive, err = c.Product(ctx)
	return r, err
}

func (c *Cluster) applyChart(ctx context.Context, r Release, values ...string) error {
	manifest, err := c.render(ctx, r.chart, false, append([]string{
		"image.repository=" + productImage, "image.tag=" + r.tag(), "image.pullPolicy=Never", "controller.replicas=1",
		"webhook.timeoutSeconds=30", // the machine is emulated
	}, values...)...)
	if err != nil {
		return err
	}
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + ProductNamespace + "}\n---\n"
	_, err = c.Kubectl(ctx, strings.NewReader(namespace+manifest), "apply", "--server-side", "--force-conflicts", "-f", "-")
	return err
}

// Installed returns when plumbline's controller and agents are ready.
func (c *Cluster) Installed(ctx context.Context) error {
	for _, workload := range []string{"deployment/plumbline-controller", "daemonset/plumbline-agent"} {
		if _, err := c.Kubectl(ctx, nil, "-n", ProductNamespace, "rollout", "status", "--timeout=540s", workload); err != nil {
			logs, _ := c.Kubectl(ctx, nil, "-n", ProductNamespace, "logs", "--tail=20", workload)
			return fmt.Errorf("install plumbline: %w\n%s", err, logs)
		}
	}
	return nil
}

// Await returns when all these objects, such as "deviceclass/x", are there.
// kubectl wait --for=create gives up at once when the first of several is not.
func (c *Cluster) Await(ctx context.Context, objects ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, nil, append([]string{"get", "-o", "name"}, objects...)...)
		return err
	})
}

// AwaitSlices returns when a driver has published devices of a node.
func (c *Cluster) AwaitSlices(ctx context.Context, driver, node string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return poll(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		said, err := c.Kubectl(ctx, nil, "get", "resourceslices", "-o", "name",
			"--field-selector=spec.driver="+driver+",spec.nodeName="+node)
		if err == nil && said == "" {
			err = fmt.Errorf("driver %q has published no devices of node %q", driver, node)
		}
		return err
	})
}

// helm returns the program, which is built once from its module.
func (c *Cluster) helm(ctx context.Context) (string, error) {
	program := filepath.Join(c.places.checkout, ".cache", "bin", "helm")
	c.building.Lock()
	defer c.building.Unlock()
	if exists(program) {
		return program, nil
	}
	fmt.Fprintln(c.options.Log, "building helm, once")
	return program, c.goBuild(ctx, program, "-modfile=chart/helm.mod", "-trimpath", "-ldflags=-s -w", "helm.sh/helm/v3/cmd/helm")
}

// goBuild builds a program of the checkout, or several into a folder whose path
// ends in a slash.
func (c *Cluster) goBuild(ctx context.Context, program string, arguments ...string) error {
	return c.goBuildIn(ctx, c.places.checkout, program, arguments...)
}

func (c *Cluster) goBuildIn(ctx context.Context, folder, program string, arguments ...string) error {
	command := exec.CommandContext(ctx, "go", append([]string{"build", "-buildvcs=false", "-o", program}, arguments...)...)
	command.Dir = folder
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w:\n%s", filepath.Base(program), err, said)
	}
	return nil
}
