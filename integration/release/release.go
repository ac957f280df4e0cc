package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/plumbline/plumbline/integration/image"
)

// module is that of the checkout.
const module = "github.com/plumbline/plumbline"

// The programs of a release, and what it is built for.
var (
	programs      = []string{"plumbline", "plumbline-cni"}
	architectures = []string{"amd64", "arm64"}
)

// release is one version, and where it is written.
type release struct {
	version  string // with v
	revision string
	registry string
	helm     string // program
	checkout string
	folder   string
}

// https://semver.org, with the v that Go wants and without build metadata, which no tag of an
// image can contain.
var versionForm = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

func (r release) build(ctx context.Context) error {
	switch {
	case r.version == "":
		return errors.New("the commit has no tag: tag it, or set the version, such as VERSION=v0.1.0")
	case !versionForm.MatchString(r.version):
		return fmt.Errorf("version %q is not a semantic version with a leading v: use one such as v0.1.0 or v0.2.0-rc.1", r.version)
	case r.revision == "" || r.registry == "" || r.helm == "":
		return errors.New("a flag is missing: set -revision, -registry and -helm")
	}
	_, err := name.NewTag(r.image()+":"+r.version, name.StrictValidation)
	if err == nil && strings.Contains(r.registry, "://") {
		err = errors.New("it is not a URL")
	}
	if err != nil {
		return fmt.Errorf("registry %q: want a host and a path, such as registry.example.com/net: %w", r.registry, err)
	}
	if err := r.clean(); err != nil {
		return err
	}
	for _, architecture := range architectures {
		for _, program := range programs {
			if err := r.compile(ctx, program, architecture); err != nil {
				return err
			}
		}
	}
	if err := r.describeModules(ctx); err != nil {
		return err
	}
	digest, err := r.writeImage()
	if err != nil {
		return err
	}
	if err := r.writeChart(ctx, digest); err != nil {
		return err
	}
	return r.writeSums()
}

// clean removes what an earlier build has left, but for the programs: go build does not link again what
// would be the same. A folder with anything else is refused, since it may be somebody's home.
func (r release) clean() error {
	if err := os.MkdirAll(r.folder, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(r.folder)
	if err != nil {
		return err
	}
	var old []string
	for _, e := range entries {
		switch name := e.Name(); {
		case programForm.MatchString(name):
		case outputForm.MatchString(name):
			old = append(old, r.path(name))
		default:
			return fmt.Errorf("folder %q has %q, which is not of a release: choose an empty folder, or one that has an earlier release",
				r.folder, name)
		}
	}
	for _, file := range old {
		if err := os.RemoveAll(file); err != nil {
			return err
		}
	}
	return nil
}

var (
	programForm = regexp.MustCompile("^(" + strings.Join(programs, "|") + ")-linux-(" + strings.Join(architectures, "|") + ")$")
	// An archive with a number after its name is one that was not finished.
	outputForm = regexp.MustCompile(`^(plumbline-v?[0-9].*\.(tgz|tar(\.[0-9]+)?)|install\.yaml|sbom\.cdx\.json|licenses\.txt|SHA256SUMS)$`)
)

func (r release) path(name string) string { return filepath.Join(r.folder, name) }

func (r release) program(name, architecture string) string {
	return r.path(name + "-linux-" + architecture)
}

func (r release) image() string { return r.registry + "/plumbline" }

// run runs a program in the checkout, and returns what it prints.
func (r release) run(ctx context.Context, environment []string, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir, command.Env = r.checkout, append(os.Environ(), environment...)
	var complaint strings.Builder
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(arguments, " "), err,
			strings.TrimSpace(complaint.String()))
	}
	return string(out), nil
}

// platform is the environment of the compiler, so that nobody's own changes a release. The flags are those of the
// Makefile, with which all else is compiled and cached.
func platform(architecture string) []string {
	return []string{
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + architecture, "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off",
		"GOFLAGS=-trimpath -buildvcs=false -gcflags=all=-dwarf=false",
	}
}

func (r release) compile(ctx context.Context, program, architecture string) error {
	output, err := filepath.Abs(r.program(program, architecture))
	if err != nil {
		return err
	}
	variables := "-X " + module + "/reconcile/version."
	_, err = r.run(ctx, platform(architecture), "go", "build",
		"-ldflags=-s -w "+variables+"release="+r.version+" "+variables+"revision="+r.revision,
		"-o", output, "./cmd/"+program)
	return err
}

// writeImage writes the image, and returns its digest.
func (r release) writeImage() (string, error) {
	images := map[string]v1.Image{}
	for _, architecture := range architectures {
		files := map[string]string{"/licenses.txt": r.path("licenses.txt")}
		for _, program := range programs {
			files["/"+program] = r.program(program, architecture)
		}
		built, err := image.Image{
			Files:      files,
			Entrypoint: []string{"/plumbline"},
			Compressed: true,
			Labels: map[string]string{
				"org.opencontainers.image.title":    "plumbline",
				"org.opencontainers.image.version":  r.version,
				"org.opencontainers.image.revision": r.revision,
				"org.opencontainers.image.source":   "https://" + module,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		}.Build(architecture)
		if err != nil {
			return "", err
		}
		images[architecture] = built
	}
	index := image.Index(images)
	digest, err := index.Digest()
	if err != nil {
		return "", err
	}
	return digest.String(), image.WriteLayout(r.path("plumbline-"+r.version+"-image.tar"),
		image.Named{Name: r.image() + ":" + r.version, What: index})
}

// writeSums writes the hashes of all files, in the form of sha256sum.
func (r release) writeSums() error {
	entries, err := os.ReadDir(r.folder)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		f, err := os.Open(r.path(e.Name()))
		if err != nil {
			return err
		}
		hash := sha256.New()
		_, err = io.Copy(hash, f)
		f.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", hash.Sum(nil), e.Name())
	}
	return r.write("SHA256SUMS", sums.String())
}

func (r release) write(name, content string) error {
	return os.WriteFile(r.path(name), []byte(content), 0o644)
}
