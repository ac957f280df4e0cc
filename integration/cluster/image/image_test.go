package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/plumbline/plumbline/integration/cluster/image"
)

// contents reads a tar archive: NAME to mode and content.
func contents(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := files[header.Name]; twice {
			t.Errorf("%q is there twice", header.Name)
		}
		files[header.Name] = string(content)
		if header.Name == "bin/program" && header.Mode != 0o755 {
			t.Errorf("mode of %q: want 755, have %o", header.Name, header.Mode)
		}
	}
}

func TestWrite(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("run me"), 0o700); err != nil {
		t.Fatal(err)
	}
	one := image.Image{
		Names:      []string{"example.test/one:1"},
		Files:      map[string]string{"/bin/program": program},
		Entrypoint: []string{"/bin/program"},
	}
	two := one
	two.Names, two.Entrypoint = []string{"example.test/two:1"}, []string{"/bin/program", "two"}
	var archive, again bytes.Buffer
	if err := image.Write(&archive, one, two); err != nil {
		t.Fatal(err)
	}
	if err := image.Write(&again, one, two); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(archive.Bytes(), again.Bytes()) {
		t.Error("the same images give other bytes")
	}

	files := contents(t, archive.Bytes())
	var manifests []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifests); err != nil {
		t.Fatal(err)
	}
	if len(manifests) != 2 || len(files) != 4 {
		t.Fatalf("want 2 images in 4 files (manifest, 2 configurations, 1 layer), have %d in %d", len(manifests), len(files))
	}
	for i, want := range []image.Image{one, two} {
		if got := fmt.Sprint(manifests[i].RepoTags); got != fmt.Sprint(want.Names) {
			t.Errorf("image %d: want names %v, have %s", i, want.Names, got)
		}
		layer := files[manifests[i].Layers[0]]
		var config struct {
			Config struct{ Entrypoint []string }
			RootFS struct {
				DiffIDs []string `json:"diff_ids"`
			} `json:"rootfs"`
		}
		if err := json.Unmarshal([]byte(files[manifests[i].Config]), &config); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(config.Config.Entrypoint); got != fmt.Sprint(want.Entrypoint) {
			t.Errorf("image %d: want entrypoint %v, have %s", i, want.Entrypoint, got)
		}
		if want := fmt.Sprintf("[sha256:%x]", sha256.Sum256([]byte(layer))); fmt.Sprint(config.RootFS.DiffIDs) != want {
			t.Errorf("image %d: layers %v, but the layer is %s", i, config.RootFS.DiffIDs, want)
		}
		if inside := contents(t, []byte(layer)); inside["bin/program"] != "run me" || len(inside) != 2 {
			t.Errorf("image %d: want bin/ and bin/program, have %q", i, inside)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, source := range map[string]string{"program": os.Args[0], "/../program": os.Args[0], "/program": "/nowhere"} {
		err := image.WriteFile(filepath.Join(t.TempDir(), "x.tar"), image.Image{Files: map[string]string{name: source}})
		if err == nil {
			t.Errorf("%q from %q: want an error", name, source)
		}
	}
}
