package image_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/plumbline/plumbline/integration/image"
)

func program(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte("run me"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// serve starts a registry on loopback, and returns its host and port.
func serve(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// contents reads the only layer of an image: its names, modes and contents, in its order.
func contents(t *testing.T, i v1.Image) (out []string) {
	t.Helper()
	layers, err := i.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("want one layer, have %d: %v", len(layers), err)
	}
	reader, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(reader); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s %o %d %s", header.Name, header.Mode, header.ModTime.Unix(), content))
	}
}

// The image pushed from an archive equals the built one, for each architecture, compressed or not.
func TestPush(t *testing.T) {
	host := serve(t)
	for _, compressed := range []bool{false, true} {
		what := image.Image{
			Files:      map[string]string{"/bin/program": program(t)},
			Entrypoint: []string{"/bin/program", "run"},
			Command:    []string{"forever"},
			User:       "65532",
			Labels:     map[string]string{"a": "b"},
			Compressed: compressed,
		}
		images := map[string]v1.Image{}
		for _, architecture := range []string{"amd64", "arm64"} {
			built, err := what.Build(architecture)
			if err != nil {
				t.Fatal(err)
			}
			images[architecture] = built
		}
		all, one := fmt.Sprintf("%s/all:%t", host, compressed), fmt.Sprintf("%s/one:%t", host, compressed)
		file, again := filepath.Join(t.TempDir(), "a.tar"), filepath.Join(t.TempDir(), "b.tar")
		for _, f := range []string{file, again} {
			if err := image.WriteLayout(f, image.Named{Name: all, What: image.Index(images)}, image.Named{Name: one, What: images["arm64"]}); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := read(t, file), read(t, again); !bytes.Equal(a, b) {
			t.Error("the same images give other bytes")
		}
		pushed, err := image.Push(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if len(pushed) != 2 || !strings.HasPrefix(pushed[0], all+"@sha256:") || !strings.HasPrefix(pushed[1], one+"@sha256:") {
			t.Fatalf("pushed %q", pushed)
		}
		for _, architecture := range []string{"amd64", "arm64"} {
			pulled := pull(t, all, architecture)
			config, err := pulled.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintln(config.OS, config.Architecture, config.Config.Entrypoint, config.Config.User, config.Config.Labels)
			if want := "linux " + architecture + " [/bin/program run] 65532 map[a:b]\n"; got != want {
				t.Errorf("configuration: want %s, have %s", want, got)
			}
			if got, want := contents(t, pulled), []string{"bin/ 755 0 ", "bin/program 755 0 run me"}; !slices.Equal(got, want) {
				t.Errorf("files: want %q, have %q", want, got)
			}
		}
	}
}

func pull(t *testing.T, ref, architecture string) v1.Image {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Image(tag, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
	if err != nil {
		t.Fatal(err)
	}
	return pulled
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Files that two images share are in an archive once.
func TestWriteFile(t *testing.T) {
	one := image.Image{Names: []string{"example.test/one:1", "example.test/one:2"}, Files: map[string]string{"/program": program(t)}, Entrypoint: []string{"/program"}}
	two := one
	two.Names, two.Entrypoint = []string{"example.test/two:1"}, []string{"/program", "two"}
	file := filepath.Join(t.TempDir(), "x.tar")
	if err := image.WriteFile(file, one, two); err != nil {
		t.Fatal(err)
	}
	var blobs int
	for archive := tar.NewReader(bytes.NewReader(read(t, file))); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(header.Name, "blobs/") {
			blobs++
		}
	}
	if blobs != 5 {
		t.Errorf("want a layer, 2 configurations and 2 manifests, have %d blobs", blobs)
	}
}

func TestRefuses(t *testing.T) {
	for file, source := range map[string]string{"program": os.Args[0], "/../program": os.Args[0], "/program": "/nowhere"} {
		if _, err := (image.Image{Files: map[string]string{file: source}}).Build("amd64"); err == nil {
			t.Errorf("%q from %q: want an error", file, source)
		}
	}
	archive := filepath.Join(t.TempDir(), "x.tar")
	if err := image.WriteFile(archive, image.Image{Names: []string{"no tag"}}); err == nil {
		t.Error("a name without a tag: want an error")
	}
	if err := image.Create(archive, func(w io.Writer) error { return image.Tar(w, os.DirFS(t.TempDir()), "") }); err != nil {
		t.Fatal(err)
	}
	if _, err := image.Push(t.Context(), archive); err == nil {
		t.Error("an archive without images: want an error")
	}
	escape := filepath.Join(t.TempDir(), "y.tar")
	if err := image.Create(escape, func(w io.Writer) error {
		to := tar.NewWriter(w)
		return errors.Join(to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "../escaped"}), to.Close())
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := image.Push(t.Context(), escape); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("a name that leads out of the folder: want a refusal, have %v", err)
	}
}
