package cluster

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/image"
)

// CoreDNSImage is the image of CoreDNS among those of [Conformance].
const CoreDNSImage = "plumbline.test/coredns:1"

// Conformance are the parts of Kubernetes' own tests.
type Conformance struct {
	Program string   // runs them; its flags are those of e2e.test
	Images  string   // an archive of the images that their pods run, and of CoreDNS
	Specs   []string // the names of all tests that a conformant cluster passes, of all parts of Kubernetes
}

// Conformance builds the parts of Kubernetes' own tests, of the newest version.
func (c *Cluster) Conformance(ctx context.Context) (Conformance, error) {
	folder, err := conformanceBuild.ensure(ctx, c.places, c.options.Log)
	if err != nil {
		return Conformance{}, err
	}
	kubernetes, err := c.moduleFolder(ctx, conformanceBuild.module, "k8s.io/kubernetes")
	if err != nil {
		return Conformance{}, err
	}
	out := Conformance{Program: filepath.Join(folder, "e2e"), Images: filepath.Join(c.dir, "conformance.tar")}
	if out.Specs, err = conformanceSpecs(kubernetes); err != nil {
		return out, err
	}
	root, err := c.root(ctx, "conformance")
	if err != nil {
		return out, err
	}
	tests, err := testImage(ctx, root, folder, kubernetes)
	if err != nil {
		return out, fmt.Errorf("image of Kubernetes' own tests: %w", err)
	}
	return out, image.WriteFile(out.Images, tests, image.Image{
		Names:      []string{CoreDNSImage},
		Files:      map[string]string{"/coredns": filepath.Join(folder, "coredns")},
		Entrypoint: []string{"/coredns"},
	})
}

// conformanceSpecs reads the list in the module of Kubernetes.
func conformanceSpecs(kubernetes string) ([]string, error) {
	content, err := os.ReadFile(filepath.Join(kubernetes, "test", "conformance", "testdata", "conformance.yaml"))
	if err != nil {
		return nil, err
	}
	var listed []struct{ Codename string }
	if err := yaml.Unmarshal(content, &listed); err != nil {
		return nil, fmt.Errorf("list of conformance tests: %w", err)
	}
	var names []string
	for _, spec := range listed {
		names = append(names, spec.Codename)
	}
	return names, nil
}

// testPrograms are those that tests of networks run in their pods, beside agnhost, by the names of their files in Debian.
var testPrograms = map[string]string{
	"cat": "cat", "curl": "curl", "dig": "dig", "getent": "getent", "grep": "grep", "hostname": "hostname", "nc": "nc.openbsd",
	"nslookup": "nslookup", "seq": "seq", "sh": "dash", "sleep": "sleep",
}

// testImage is one image under the names of all that tests of networks run: agnhost, with programs of a root file system.
func testImage(ctx context.Context, root, folder, kubernetes string) (image.Image, error) {
	// Of the program, since a version has its own tags.
	listed, err := exec.CommandContext(ctx, filepath.Join(folder, "e2e"), "-list-images").Output()
	if err != nil {
		return image.Image{}, fmt.Errorf("list images: %w", err)
	}
	out := image.Image{
		Files:      map[string]string{"/agnhost": filepath.Join(folder, "agnhost")},
		Entrypoint: []string{"/agnhost"},
		Command:    []string{"pause"},
	}
	for name := range strings.FieldsSeq(string(listed)) {
		switch repository, _, _ := strings.Cut(name, ":"); path.Base(repository) {
		case "agnhost", "busybox", "glibc-dns-testing", "nginx", "pause":
			if strings.HasPrefix(repository, "registry.k8s.io/") {
				out.Names = append(out.Names, name)
			}
		}
	}
	for _, file := range []string{"localhost.crt", "localhost.key"} { // for agnhost porter
		out.Files["/"+file] = filepath.Join(kubernetes, "test", "images", "agnhost", "porter", file)
	}
	for name, file := range testPrograms {
		if err := addProgram(out.Files, root, "/"+name, filepath.Join(root, "usr", "bin", file)); err != nil {
			return out, err
		}
	}
	out.Files["/bin/sh"] = out.Files["/sh"]
	return out, nil
}

// addProgram adds a file of a root file system to those of an image, with the libraries that it needs.
func addProgram(files map[string]string, root, name, file string) error {
	if files[name] != "" {
		return nil
	}
	files[name] = file
	program, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer program.Close()
	if section := program.Section(".interp"); section != nil {
		content, err := section.Data()
		if err != nil {
			return fmt.Errorf("interpreter of %q: %w", file, err)
		}
		interpreter := strings.TrimRight(string(content), "\x00")
		files[interpreter] = filepath.Join(root, interpreter)
	}
	libraries, err := program.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("libraries of %q: %w", file, err)
	}
	for _, library := range libraries {
		found, err := filepath.Glob(filepath.Join(root, "usr", "lib", "*-linux-gnu", library))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("%q needs %q, of which there are %q", file, library, found)
		}
		if err := addProgram(files, root, "/lib/"+library, found[0]); err != nil {
			return err
		}
	}
	return nil
}
