//go:build soak

package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const tested = "v0.9.9"

// TestBuiltTwice builds a release of the checkout in two folders, and pushes it from both to a registry on
// loopback. Both are the same, bit for bit, and the registry holds the content of the files.
func TestBuiltTwice(t *testing.T) {
	checkout, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	helm := filepath.Join(checkout, ".cache", "bin", "helm")
	command(t, checkout, "make", helm, "CACHE="+filepath.Join(checkout, ".cache"))
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://") + "/net"

	var folders, pushed []string
	for _, tree := range []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "another", "place")} {
		copyTree(t, checkout, tree)
		bin := filepath.Join(tree, ".cache", "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(helm, filepath.Join(bin, "helm")); err != nil {
			t.Fatal(err)
		}
		pushed = append(pushed, command(t, tree, "make", "push", "VERSION="+tested, "REGISTRY="+host))
		folders = append(folders, filepath.Join(tree, ".cache", "release"))
	}
	if references(pushed[0]) != references(pushed[1]) {
		t.Errorf("pushed %s, then %s", pushed[0], pushed[1])
	}
	sums := read(t, filepath.Join(folders[0], "SHA256SUMS"))
	if again := read(t, filepath.Join(folders[1], "SHA256SUMS")); sums != again {
		t.Errorf("the two builds differ:\n%s\n%s", sums, again)
	}
	for _, folder := range folders {
		command(t, folder, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	}
	if entries, err := os.ReadDir(folders[0]); err != nil || len(entries) != strings.Count(sums, "\n")+1 {
		t.Errorf("%d files, and sums of %d: %v", len(entries), strings.Count(sums, "\n"), err)
	}

	hold(t, folders[0], host, pushed[0])
	chart := t.TempDir()
	command(t, chart, helm, "pull", "oci://"+host+"/charts/plumbline", "--version", strings.TrimPrefix(tested, "v"), "--plain-http")
	file := "plumbline-" + strings.TrimPrefix(tested, "v") + ".tgz"
	if read(t, filepath.Join(chart, file)) != read(t, filepath.Join(folders[0], file)) {
		t.Error("the chart in the registry is not that of the release")
	}
	command(t, chart, helm, "lint", "--strict", file)
	if line := command(t, folders[0], filepath.Join(folders[0], "plumbline-linux-"+runtime.GOARCH), "--version"); !strings.HasPrefix(line, "plumbline "+tested+" (revision ") {
		t.Errorf("the program says %q", line)
	}
}

// hold checks the image in the registry: what install.yaml runs, and the programs of each architecture.
func hold(t *testing.T, folder, host, pushed string) {
	t.Helper()
	ref, err := name.NewTag(host + "/plumbline:" + tested)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(ref)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	want := ref.String() + "@" + digest.String()
	if install := read(t, filepath.Join(folder, "install.yaml")); !strings.Contains(pushed, want) || strings.Count(install, "image: "+want+"\n") != 2 {
		t.Errorf("want %s in what was pushed, and twice in install.yaml:\n%s", want, pushed)
	}
	for _, architecture := range architectures {
		pulled, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
		if err != nil {
			t.Fatal(err)
		}
		layers, err := pulled.Layers()
		if err != nil {
			t.Fatal(err)
		}
		content, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(content)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"plumbline-linux-" + architecture, "plumbline-cni-linux-" + architecture, "licenses.txt"} {
			if !bytes.Contains(layer, []byte(read(t, filepath.Join(folder, file)))) {
				t.Errorf("the image for %s lacks %s", architecture, file)
			}
		}
	}
}

// references are the lines of what was pushed, without those of make.
func references(said string) (out string) {
	for line := range strings.Lines(said) {
		if strings.Contains(line, "@sha256:") {
			out += line
		}
	}
	return out
}

// copyTree copies what git would commit of the checkout, and nothing of git.
func copyTree(t *testing.T, checkout, tree string) {
	t.Helper()
	if err := os.MkdirAll(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, checkout, "bash", "-c", `set -eo pipefail; git ls-files -coz --exclude-standard | tar -c --null -T - --ignore-failed-read --warning=no-failed-read | tar -xC "$1"`, "copy", tree)
}

func command(t *testing.T, folder, name string, arguments ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, arguments...)
	c.Dir, c.Env = folder, append(os.Environ(), "MAKEFLAGS=")
	said, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, said)
	}
	return string(said)
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
