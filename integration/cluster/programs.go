package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// versions of Kubernetes that a cluster can run, each with its list of modules in the folder kubernetes.
var versions = map[string]kubernetesVersion{
	"1.35": {"v1.35.4", "v1.35.mod"},
	"1.36": {"v1.36.3", "v1.36.mod"},
	"1.37": {"v1.37.2", "go.mod"},
}

// newest is the version that clusters run unless another is chosen.
const newest = "1.37"

type kubernetesVersion struct{ version, modules string }

// chosen is the version that the environment variable PLUMBLINE_KUBERNETES names, "1.35" or "1.36"; by default the
// newest.
var chosen = sync.OnceValues(func() (kubernetesVersion, error) {
	name := cmp.Or(os.Getenv("PLUMBLINE_KUBERNETES"), newest)
	v, ok := versions[name]
	if !ok {
		return v, fmt.Errorf("PLUMBLINE_KUBERNETES: no Kubernetes %q: want one of %q", name, slices.Sorted(maps.Keys(versions)))
	}
	return v, nil
})

// Version is the Kubernetes that clusters run, such as "v1.37.2".
func Version() string {
	v, _ := chosen() // a cluster that starts says what is wrong
	return v.version
}

// noDWARF has the compiler leave out what debuggers want to know, a quarter of its
// work. The Makefile says the same, or plumbline and Kubernetes would share nothing.
const noDWARF = "-gcflags=all=-dwarf=false"

// generated has it inline nothing in packages of Kubernetes that are mostly generated code, or are
// kubectl's: they take a good part of the build, and no time when a cluster runs.
var generated = []string{
	"-gcflags=k8s.io/kubernetes/pkg/apis/...=-dwarf=false -l", "-gcflags=k8s.io/kubernetes/pkg/generated/...=-dwarf=false -l",
	"-gcflags=k8s.io/kubectl/...=-dwarf=false -l", "-gcflags=sigs.k8s.io/kustomize/...=-dwarf=false -l",
}

// build is a folder of programs made from a module of this folder.
type build struct {
	module   string   // a folder beside this file
	modules  string   // its list of modules, go.mod unless said
	programs []string // what it makes
	flags    []string
	packages string
	multi    bool // one file under several names
}

var containerdBuild = build{
	module:   "containerd",
	programs: []string{"containerd", "containerd-shim-runc-v2"},
	flags:    []string{noDWARF, "-ldflags=-s -w", "-tags=no_btrfs,no_devmapper,no_zfs"},
	packages: "tool",
}

// kubernetesBuild is that of a version of Kubernetes.
func kubernetesBuild(v kubernetesVersion) build {
	return build{
		module:   "kubernetes",
		modules:  v.modules,
		programs: []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy"},
		flags: append([]string{"-modfile=" + v.modules, noDWARF, "-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=" +
			v.version}, generated...),
		packages: ".",
		multi:    true,
	}
}

// conformanceBuild is that of Kubernetes' own tests, of the newest version. Its flags are those of Kubernetes, most of which is
// then compiled already.
var conformanceBuild = build{
	module:   "e2e",
	programs: []string{"agnhost", "coredns", "e2e"},
	flags:    kubernetesBuild(versions[newest]).flags[1:],
	packages: "tool",
}

// ensure builds what is not built yet and returns the folder of the programs,
// which is named after all that decides their content. Who comes second waits.
func (b build) ensure(ctx context.Context, places places, progress io.Writer) (string, error) {
	source := filepath.Join(places.source, b.module)
	name, err := b.fingerprint(source)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", b.module, err)
	}
	folder := filepath.Join(places.cache, b.module+"-"+name)
	if exists(folder) {
		return folder, nil
	}
	if err := os.MkdirAll(places.cache, 0o755); err != nil {
		return "", fmt.Errorf("build %s: %w", b.module, err)
	}
	unlock, err := lock(ctx, filepath.Join(places.cache, b.module+".lock"))
	if err != nil {
		return "", fmt.Errorf("build %s: %w", b.module, err)
	}
	defer unlock()
	if exists(folder) {
		return folder, nil
	}
	fmt.Fprintf(progress, "cluster: building %s (once, some minutes) ...\n", b.module)
	began := time.Now()
	if err := b.make(ctx, source, folder); err != nil {
		return "", fmt.Errorf("build %s: %w", b.module, err)
	}
	fmt.Fprintf(progress, "cluster: built %s in %d s\n", b.module, int(time.Since(began).Seconds()))
	return folder, nil
}

// make builds beside the final place: what exists is complete.
func (b build) make(ctx context.Context, source, folder string) error {
	unfinished := folder + ".unfinished"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		return err
	}
	output := unfinished + "/"
	if b.multi {
		output += b.module
	}
	arguments := append([]string{"-n", "10", "go", "build", "-trimpath", "-buildvcs=false", "-o", output}, b.flags...)
	command := exec.CommandContext(ctx, "nice", append(arguments, b.packages)...)
	command.Dir = source
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly", "GOOS=linux")
	// Ended with its compilers, if ctx ends first.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	if said, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%w:\n%s", errors.Join(err, context.Cause(ctx)), said)
	}
	for _, program := range b.programs {
		if !b.multi {
			if !exists(filepath.Join(unfinished, program)) {
				return fmt.Errorf("go build made no %q", program)
			}
			continue
		}
		if err := os.Symlink(b.module, filepath.Join(unfinished, program)); err != nil {
			return err
		}
	}
	return os.Rename(unfinished, folder)
}

// fingerprint is a name for all that decides what a build makes.
func (b build) fingerprint(source string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), runtime.GOARCH, b)
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", err
	}
	commands, err := filepath.Glob(filepath.Join(source, "*", "*.go"))
	if err != nil {
		return "", err
	}
	files = append(files, commands...)
	modules := cmp.Or(b.modules, "go.mod")
	files = append(files, filepath.Join(source, modules), filepath.Join(source, strings.TrimSuffix(modules, ".mod")+".sum"))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(hash, filepath.Base(file), len(content))
		hash.Write(content)
	}
	return fmt.Sprintf("%x", hash.Sum(nil))[:12], nil
}

// places are the folders of a checkout that a cluster needs.
type places struct {
	checkout string
	source   string // of this package
	cache    string // what is built, and what runs
}

// findPlaces finds the checkout that the working directory lies in.
func findPlaces() (places, error) {
	dir, err := os.Getwd()
	if err != nil {
		return places{}, fmt.Errorf("find the checkout: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		source := filepath.Join(at, "integration", "cluster")
		if exists(filepath.Join(source, "kubernetes", "go.mod")) {
			return places{checkout: at, source: source, cache: filepath.Join(at, ".cache", "cluster")}, nil
		}
		if at == filepath.Dir(at) {
			return places{}, fmt.Errorf("find the checkout: %q is not inside one", dir)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lock waits until it alone holds the file, which no other process can while this
// process lives and has not called unlock.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = poll(ctx, 100*time.Millisecond, func(context.Context) error {
		return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	})
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("wait for %q: %w", path, err)
	}
	return func() { file.Close() }, nil
}
